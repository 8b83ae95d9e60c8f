"""``python -m benchmarks.probes.hops``: the way of a backward that comes again, hop by hop.

Each process of an engine notes when it gets messages, runs Functions, and sends messages. The clock
is the same in all of them. The graph is that of ``gil_branches``: 16 Functions behind a sum.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import mpgrad as mg
from benchmarks.gil_work import branch_backward, branch_forward, branch_input
from benchmarks.loads import loops_for
from benchmarks.runners import OTHER_WORK_MS, other_work
from mpgrad.wire.schema import MESSAGES
from mpgrad.wire.transport import Received

BRANCHES, ELEMENTS = 16, 16
#: Backwards before the first one that counts: until then costs are learned.
WARM_UP = 60
#: Names the directory in which the processes leave their notes.
_VARIABLE = "HOPS"

#: What happened, and when (seconds of ``perf_counter``).
Note = tuple[str, float]

_notes: list[Note] = []


def _note(what: str, when: float | None = None) -> None:
    _notes.append((what, time.perf_counter() if when is None else when))


def _leave(name: str) -> None:
    Path(os.environ[_VARIABLE], f"{name}.json").write_text(json.dumps(_notes))


# ---------------------------------------------------------------------- in each process


def hook(process: str, part: Any) -> Any:
    """What ``mpgrad.base.hook_for_tests`` calls in each process."""
    if process == "worker":
        return _noting_worker(part)
    return _Router(part) if process == "coordinator" else _Dealer(part, "client")


class _End:
    """An end of the transport that notes what it gets and sends."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)


class _Dealer(_End):
    """Notes a wake-up, and each kind of message that it sends."""

    def __init__(self, end: Any, name: str) -> None:
        super().__init__(end)
        self._name = name

    def wait(self, timeout_ms: int | None) -> Any:
        readable = self._end.wait(timeout_ms)
        _note(f"{self._name} woken")
        return readable

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        for frame in frames:
            _note(f"{self._name} sends {MESSAGES[frame[0]].__name__} {len(frame)}")
        self._end.send(frames, lane)


class _Router(_End):
    """Notes each kind of message that it gets, and that it sends."""

    def __init__(self, end: Any) -> None:
        super().__init__(end)
        self._kinds: list[str] = []

    def receive(self, timeout_ms: int | None) -> Received:
        received: Received = self._end.receive(timeout_ms)
        for arrival in received.arrivals:
            _note(f"coordinator gets {MESSAGES[arrival.frame[0]].__name__}")
        return received

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._kinds.append(f"coordinator sends {MESSAGES[frame[0]].__name__} {len(frame)}")
        self._end.send(lane, peer, frame)

    def flush(self) -> list[str]:
        for kind in self._kinds:
            _note(kind)
        self._kinds.clear()
        gone: list[str] = self._end.flush()
        return gone

    def close(self) -> None:
        self._end.close()
        _leave("coordinator")


def _noting_worker(kind: Any) -> Any:
    """The class of workers, with notes of wake-ups, Functions and replies."""
    from mpgrad.workers import rules

    run = vars(rules)["run_function_backward"]

    def noting(*args: Any) -> Any:
        _note("rule begins")
        results = run(*args)
        _note("rule ends")
        return results

    vars(rules)["run_function_backward"] = noting

    class Noting(kind):  # type: ignore[misc]
        def __init__(self, endpoint: Any, peer: str, *more: Any) -> None:
            super().__init__(endpoint, peer, *more)
            self._dealer: Any = _Dealer(self._dealer, "worker")  # type: ignore[has-type]

        def close(self) -> None:
            super().close()
            _leave(self.peer)

    return Noting


# ---------------------------------------------------------------------- in the client


class _Engine(mg.Engine):
    """Notes when a frozen graph comes, and when its gradients leave."""

    def execute(self, frozen: Any) -> list[tuple[Any, bool]]:
        _note("execute begins")
        results = super().execute(frozen)
        _note("execute ends")
        return results


class Branch(mg.Function):
    """The branch of ``gil_branches``."""

    forward = staticmethod(branch_forward)
    backward = staticmethod(branch_backward)


class Usage(NamedTuple):
    """Of one process, or summed over backwards: milliseconds of CPU, and how often it slept."""

    cpu_ms: float
    sleeps: float


def _usage_here() -> Usage:
    """Of this process."""
    return Usage(time.process_time() * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)


def _usage_of(pid: int) -> Usage:
    """Of another process, with all its threads (``man 5 proc``: schedstat, status)."""
    nanoseconds, sleeps = 0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                sleeps += int(line.split()[1])
    return Usage(nanoseconds / 1e6, sleeps)


def run(milliseconds: float, backwards: int) -> dict[str, list[Usage]]:
    """Run the backwards; the notes stand in the files of all processes afterwards.

    Returns:
        By the kind of pause, the usage of the client, the coordinator and each worker per backward.
    """
    loops = loops_for(milliseconds) if milliseconds else 0
    leaves = [
        mg.tensor(branch_input(branch, ELEMENTS), requires_grad=True) for branch in range(BRANCHES)
    ]
    used: dict[str, list[Usage]] = {}
    with _Engine("process", cpu_workers=2) as engine:

        def backward(name: str, after: Callable[[], object]) -> list[Usage]:
            for leaf in leaves:
                leaf.grad = None
            after()
            loss = mg.stack([Branch.apply(leaf, loops) for leaf in leaves]).sum()
            pids = [engine.coordinator_pid or 0, *workers] if name == "usage" else []
            others = [_usage_of(pid) for pid in pids]
            before = [_usage_here(), *others]  # what that costs is not the backward's
            _note(name)
            loss.backward()
            _note("end")
            after_it = [_usage_here(), *[_usage_of(pid) for pid in pids]]
            return [
                Usage(now.cpu_ms - then.cpu_ms, now.sleeps - then.sleeps)
                for now, then in zip(after_it, before, strict=True)
            ]

        workers: list[int] = []
        for _ in range(WARM_UP):
            backward("warm-up", bool)
        workers = engine.worker_pids()
        for name, after in KINDS.items():
            for _ in range(backwards):
                backward(name, after)
            samples = [backward("usage", after) for _ in range(backwards // 4 or 1)]
            used[name] = [
                Usage(*[median(figures) for figures in zip(*of_process, strict=True)])
                for of_process in zip(*samples, strict=True)
            ]
    _leave("client")
    return used


#: What happens before each backward, by its name in the table.
KINDS: dict[str, Callable[[], object]] = {
    "back to back": bool,
    f"after {OTHER_WORK_MS} ms of other work": other_work,
}


# ---------------------------------------------------------------------- the table

#: Each row, and the note that it ends with; it begins where the one before ends.
ROWS = (
    ("client: the graph is recognised", "execute begins"),
    ("client: placed, planned, packed, encoded", "client sends GraphSubmitted"),
    ("client -> coordinator", "coordinator gets GraphSubmitted"),
    ("coordinator: decoded, leases, dispatched", "coordinator sends DispatchNodeTask"),
    ("coordinator -> worker", "worker woken"),
    ("worker: decoded, opened", "rule begins"),
    ("worker: Functions and what is between them", "rule ends"),
    ("worker: published, encoded", "worker sends NodeTaskDone"),
    ("worker -> coordinator", "coordinator gets NodeTaskDone"),
    ("coordinator: counted, complete", "coordinator sends CompleteGraph"),
    ("coordinator -> client", "client woken"),
    ("client: results opened, learned", "execute ends"),
    ("client: gradients added to .grad", "end"),
)
_TOTAL, _RULES, _FIXED = "all of it", "of that in Functions", "the rest: the fixed cost"
_AT_ONCE = "both workers at work at once"


def timeline(notes: Sequence[Sequence[Note]], begin: float, end: float) -> dict[str, float] | None:
    """The rows of one backward in microseconds; None if it went another way.

    Of the workers, the one whose reply came last counts.

    Args:
        notes: those of the client, of the coordinator and of each worker, in order of time.
        begin, end: of the backward.
    """
    client, coordinator, *workers = [
        [note for note in some if begin <= note[1] <= end] for some in notes
    ]
    busy = [found for found in workers if _last(found, "worker sends NodeTaskDone") is not None]
    if not busy:
        return None
    worker = max(busy, key=lambda found: _last(found, "worker sends NodeTaskDone") or 0.0)
    rows, before = {}, begin
    for name, what in ROWS:
        where = {"coordinator": coordinator, "worker": worker, "rule": worker}.get(
            what.split()[0], client
        )
        first = what in ("execute begins", "client sends GraphSubmitted", "rule begins")
        if what.endswith(("woken", "GraphSubmitted", "DispatchNodeTask")):
            first = True
        times = [at for note, at in where if note.startswith(what) and at >= before]
        if not times:
            return None
        rows[name] = (times[0] if first else times[-1]) - before
        before += rows[name]
    began = [at for note, at in worker if note == "rule begins"]
    ended = [at for note, at in worker if note == "rule ends"]
    rows[_TOTAL] = end - begin
    rows[_RULES] = sum(ended) - sum(began)
    rows[_FIXED] = rows[_TOTAL] - rows[_RULES]
    spans = [[at for note, at in found if note.startswith("rule")] for found in busy]
    at_once = min(span[-1] for span in spans) - max(span[0] for span in spans)
    rows[_AT_ONCE] = max(0.0, at_once) if len(spans) > 1 else 0.0
    return {name: 1e6 * seconds for name, seconds in rows.items()}


def _last(notes: Sequence[Note], what: str) -> float | None:
    return max((at for note, at in notes if note.startswith(what)), default=None)


def _messages(notes: Sequence[Sequence[Note]], begin: float, end: float) -> tuple[int, int]:
    """How many messages the processes have sent, and their bytes."""
    sizes = [
        int(what.split()[-1])
        for some in notes
        for what, at in some
        if begin <= at <= end and " sends " in what
    ]
    return len(sizes), sum(sizes)


def show(directory: Path, used: dict[str, list[Usage]], share: float) -> None:
    """Print both kinds of backwards beside each other: this quantile of each row."""
    files = sorted(directory.glob("*.json"), key=lambda file: (file.name[0] == "w", file.name))
    notes = [[(what, at) for what, at in json.loads(file.read_text())] for file in files]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in KINDS}
    messages: dict[str, list[tuple[int, int]]] = {name: [] for name in KINDS}
    begins = [(what, at) for what, at in notes[0] if what in KINDS]
    ends = np.array([at for what, at in notes[0] if what == "end"])
    times = [np.array([at for _, at in some]) for some in notes]
    for name, begin in begins:
        end = float(ends[np.searchsorted(ends, begin)])
        near = [
            some[np.searchsorted(at, begin) : np.searchsorted(at, end, "right")]
            for some, at in zip(notes, times, strict=True)
        ]
        rows = timeline(near, begin, end)
        if rows is not None:
            found[name].append(rows)
            messages[name].append(_messages(near, begin, end))
    print(f"{f'microseconds, quantile {share:g}':45}", *[f"{name:>28}" for name in KINDS])
    for row in (*[name for name, _ in ROWS], _TOTAL, _RULES, _FIXED, _AT_ONCE):
        figures = [np.quantile([rows[row] for rows in found[name]], share) for name in KINDS]
        print(f"{row:45}", *[f"{figure:28.0f}" for figure in figures])
    least = [min(rows[_FIXED] for rows in found[name]) for name in KINDS]
    print(f"{'its least':45}", *[f"{figure:28.0f}" for figure in least])
    for row, at in (("messages", 0), ("bytes in them", 1)):
        figures = [median(sent[at] for sent in messages[name]) for name in KINDS]
        print(f"{row:45}", *[f"{figure:28.0f}" for figure in figures])
    print(f"{'backwards':45}", *[f"{len(found[name]):28}" for name in KINDS])
    for at, process in enumerate(("client", "coordinator", "worker 0", "worker 1")):
        row = f"{process}: ms of CPU, times it slept"
        figures_of = [used[name][at] for name in KINDS]
        print(f"{row:45}", *[f"{u.cpu_ms:21.2f}, {u.sleeps:5.0f}" for u in figures_of])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Where the time of a repeated backward goes.")
    parser.add_argument("--milliseconds", type=float, default=0.2, help="the loop of each branch")
    parser.add_argument("--backwards", type=int, default=200, help="of each kind")
    parser.add_argument(
        "--quantile", type=float, default=0.5, help="0.05 says more beside other programs"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {_VARIABLE: directory, "MPGRAD_TEST_HOOK": f"{hook.__module__}:hook"}
        used = run(options.milliseconds, options.backwards)
        show(Path(directory), used, options.quantile)


if __name__ == "__main__":
    # Under its own name: the other processes import it.
    from benchmarks.probes.hops import main as start

    start()
