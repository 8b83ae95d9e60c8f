"""The profiler: one range for each Node that a backward ran, and those of ``record_function``.

A range of a Node that ran on a worker carries the worker's own times: ``perf_counter`` reads one
clock of the machine (CLOCK_MONOTONIC) in all its processes. Without an active profile a backward
costs one comparison more.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mpgrad.autograd.profiler_table import Averages, FunctionEvent, TimeRange

if TYPE_CHECKING:
    from mpgrad.autograd.freezing.frozen_graph import FrozenGraph

__all__ = ["ProfilerActivity", "profile", "record_function"]

F = TypeVar("F", bound=Callable[..., Any])


class ProfilerActivity(Enum):
    """What is recorded; here there is only the CPU."""

    CPU = 0


class _Range(NamedTuple):
    """What is noted while the profile runs: times in seconds of ``perf_counter``."""

    name: str
    started: float
    ended: float
    sequence_nr: int
    thread: int
    #: The worker's slot, -1 for the calling process.
    worker: int
    shapes: tuple[Any, ...]


#: The profile that is running; the engines ask for it once per backward.
_active: profile | None = None


def active() -> profile | None:
    """The profile that is running, if there is one."""
    return _active


class profile:
    """Record the Nodes that run in the ``with`` block, in all threads and workers.

    Example::

        with mg.profiler.profile() as prof:
            loss.backward()
        print(prof.key_averages().table(sort_by="cpu_time_total", row_limit=10))

    Args:
        activities: accepted; the CPU is all there is.
        record_shapes: keep the shapes of the gradients that flowed into each Node.
        on_trace_ready: called with the profile at the end.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        on_trace_ready: Callable[[profile], Any] | None = None,
    ) -> None:
        self.activities = set(activities or (ProfilerActivity.CPU,))
        self.record_shapes = record_shapes
        self.on_trace_ready = on_trace_ready
        self._ranges: list[_Range] = []
        self._origin = 0.0

    # ------------------------------------------------------------------ from here to there

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: another profile is running.
        """
        global _active
        if _active is not None:
            raise RuntimeError("Profiler is already enabled: profiles cannot be nested")
        self._origin = perf_counter()
        _active = self

    def stop(self) -> None:
        """End; what was recorded stays."""
        global _active
        if _active is not self:
            raise RuntimeError("can't stop a profile that is not running: call start() first")
        _active = None
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ what the engines note

    def note_nodes(
        self,
        frozen: FrozenGraph,
        indices: Sequence[int],
        times: Sequence[float],
        *,
        worker: int = -1,
    ) -> None:
        """Note Nodes that ran one after another.

        Args:
            frozen: their graph.
            indices: which they are.
            times: for each its start and its end, one after the other.
            worker: the worker's slot; -1 is the calling thread.
        """
        thread = threading.get_native_id()
        for at, index in enumerate(indices):
            node = frozen.nodes[index]
            shapes = tuple(meta.shape for meta in node.input_metadata) if self.record_shapes else ()
            started, ended = times[2 * at], times[2 * at + 1]
            name = frozen.spec.nodes[index].name
            self._ranges.append(
                _Range(name, started, ended, node.sequence_nr, thread, worker, shapes)
            )

    def note_function(self, name: str, started: float, ended: float) -> None:
        """Note a range of ``record_function``."""
        self._ranges.append(_Range(name, started, ended, -1, threading.get_native_id(), -1, ()))

    # ------------------------------------------------------------------ what came of it

    def events(self) -> list[FunctionEvent]:
        """All ranges in the order of their beginnings."""
        return [
            FunctionEvent(
                found.name,
                TimeRange((found.started - self._origin) * 1e6, (found.ended - self._origin) * 1e6),
                found.sequence_nr,
                found.thread,
                None if found.worker < 0 else found.worker,
                found.shapes,
            )
            for found in sorted(self._ranges, key=lambda found: found.started)
        ]

    def key_averages(self) -> Averages:
        """The ranges added up by name."""
        return Averages.of(self.events())

    def export_chrome_trace(self, path: str) -> None:
        """Write the ranges to ``path``, for chrome://tracing and Perfetto.

        The form is the JSON of Chromium's "Trace Event Format": complete events ("X"), times in
        microseconds.
        """
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": _trace(self.events()), "displayTimeUnit": "ms"}, file)


def _trace(events: Sequence[FunctionEvent]) -> list[dict[str, Any]]:
    process = os.getpid()
    rows: dict[tuple[int, int | None], int] = {}
    trace = []
    for event in events:
        # Each worker has a row of its own, whatever thread waited for it.
        row = (event.thread, None) if event.worker is None else (-1, event.worker)
        number = rows.setdefault(row, len(rows))
        trace.append(
            {
                "ph": "X",
                "cat": "user_annotation" if event.sequence_nr < 0 else "cpu_op",
                "name": event.name,
                "pid": process,
                "tid": number,
                "ts": event.time_range.start,
                "dur": event.time_range.elapsed_us(),
                "args": {
                    "Sequence number": event.sequence_nr,
                    "Input Dims": [list(shape) for shape in event.input_shapes],
                },
            }
        )
    names = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": number,
            "args": {"name": f"thread {thread}" if worker is None else f"worker {worker}"},
        }
        for (thread, worker), number in rows.items()
    ]
    return [*names, *trace]


class record_function:
    """A range of its own for the block or function that it is put around.

    Example::

        with mg.profiler.record_function("forward"):
            loss = model(x)

    Args:
        name: of the range.
        args: accepted; text that PyTorch shows beside the name.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._started: list[float] = []

    def __enter__(self) -> record_function:
        self._started.append(perf_counter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        started = self._started.pop()
        if _active is not None:
            _active.note_function(self.name, started, perf_counter())

    def __call__(self, function: F) -> F:
        name, args = self.name, self.args

        @functools.wraps(function)
        def wrapper(*positional: Any, **named: Any) -> Any:
            with record_function(name, args):
                return function(*positional, **named)

        return wrapper  # type: ignore[return-value]


def pack_times(times: Sequence[float]) -> bytes:
    """The times of a task as they travel in a message."""
    return array("d", times).tobytes()


def unpack_times(data: bytes) -> Sequence[float]:
    """The inverse of :func:`pack_times`."""
    return array("d", data)
