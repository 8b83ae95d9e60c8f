"""What a profile notes of calls on hosts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

from mpgrad.autograd.profiling.ranges import FUNCTION, RUNNING, Range
from mpgrad.engine.calls_in_workers import Answered
from mpgrad.engine.cluster.host_in_use import SLOTS
from mpgrad.shm.status_board import SLOTS_MAX


def note_calls(
    host: str, names: Sequence[str], answers: Sequence[Answered | BaseException]
) -> None:
    """Note the calls of one message, if a profile records.

    Clocks of hosts differ. So the last call of each worker ends when the message has come.
    """
    recording = RUNNING.recording
    if recording is None:
        return
    ends, thread, now = dict[int, float](), threading.get_native_id(), perf_counter()
    for name, answered in reversed([*zip(names, answers, strict=True)]):
        if isinstance(answered, BaseException):
            continue
        slot = answered.answer.slot
        ended = ends.get(slot, now)
        ends[slot] = started = ended - answered.took_us / 1e6
        worker = slot // SLOTS * SLOTS_MAX + slot % SLOTS  # above those of this process
        recording.worker_names[worker] = f"worker {slot % SLOTS} of {host}"
        recording.note_range(Range(FUNCTION, name, started, ended, thread, worker))
