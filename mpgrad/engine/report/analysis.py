"""What a profile says about parallelism: bounds, what was reached, and why processes were idle.

Figures come from what was measured, none from what was predicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpgrad.autograd.profiling.backward_run import BackwardRun, Queued
from mpgrad.autograd.profiling.ranges import (
    ANNOTATION,
    FUNCTION,
    NODE,
    OPERATOR,
    WAITING,
    Range,
    Recording,
)
from mpgrad.base.machine import available_cpus

#: Why a worker was idle, in the order in which the causes count.
HAND_OVER, CLIENT, SERIAL, QUEUES, END = (
    "planning and hand-over",
    "hooks and Functions in this process",
    "nothing was ready",
    "queues and messages",
    "results and commit",
)
CAUSES = (HAND_OVER, CLIENT, SERIAL, QUEUES, END)

#: How the names of maps' ranges begin.
MAP = "parallel_map("
#: Names of the ranges that data loaders and optimizers note.
_INPUT, _OPTIMIZER = "enumerate(DataLoader)#", "Optimizer.step#"


@dataclass
class BackwardFigures:
    """One backward; times in seconds.

    Attributes:
        took: from its beginning to its end.
        work: what its rules took together.
        chain: what those of its longest chain of Nodes took; no number of workers beats it.
        path: that chain, as indices of Nodes.
        busy: what workers (without any: this process) spent in tasks.
        idle: what workers spent otherwise, by cause.
    """

    run: BackwardRun
    took: float
    work: float
    chain: float
    path: list[int]
    busy: float
    idle: dict[str, float] = field(default_factory=dict)

    @property
    def speed_up(self) -> float:
        """How much faster it was than its rules one after another."""
        return self.work / self.took if self.took else 1.0

    @property
    def bound(self) -> float:
        """What the speed-up cannot exceed, by the longest chain."""
        return self.work / self.chain if self.chain else 1.0


class Step(NamedTuple):
    """All of a profile, as Amdahl's law sees it; seconds.

    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", 1967.
    """

    #: Of the calling thread, outside of backward passes and maps.
    serial: float
    #: The rules of all backward passes and the calls of all maps, one after another.
    parallel: float
    #: What the longest chains of the backward passes took.
    chain: float
    #: Of the calling thread, in maps.
    maps: float
    #: From the first range to the end.
    took: float
    workers: int

    @property
    def share(self) -> float:
        """The share *p* of the time in one process that workers can divide."""
        return self.parallel / (self.serial + self.parallel or 1.0)

    @property
    def reached(self) -> float:
        """How much faster it was than in one process."""
        return (self.serial + self.parallel) / (self.took or 1.0)

    def limit(self, workers: float) -> float:
        """How much faster that many workers can make it: 1 / (s + p / N), or less by the chains."""
        least = self.serial + max(self.parallel / workers, self.chain)
        return (self.serial + self.parallel) / least if least else 1.0


class Shares(NamedTuple):
    """Seconds of the calling thread, outside of each other."""

    forward: float
    backward: float
    optimizer: float
    input: float
    other: float


def figures_of(recording: Recording) -> list[BackwardFigures]:
    """The figures of each backward of a profile."""
    nodes: defaultdict[int, list[Range]] = defaultdict(list)
    for found in recording.ranges:
        if found.kind == NODE and found.backward >= 0:
            nodes[found.backward].append(found)
    return [_figures(run, nodes[run.number]) for run in recording.backwards if run.ended]


def _figures(run: BackwardRun, ranges: Sequence[Range]) -> BackwardFigures:
    seconds = [0.0] * len(run.spec.nodes)
    for found in ranges:
        seconds[found.node] += found.ended - found.started
    chain, path = _longest_chain(run, seconds)
    queued = run.queued()
    in_workers = [item.run for item in queued if run.is_of_worker(item.run)]
    busy = sum([task.ended - task.started for task in in_workers])
    return BackwardFigures(
        run, run.ended - run.started, sum(seconds), chain, path,
        busy if queued else sum(seconds), _idle(run, queued) if queued else {},
    )  # fmt: skip


def _longest_chain(run: BackwardRun, seconds: Sequence[float]) -> tuple[float, list[int]]:
    nodes = run.spec.nodes
    before: list[float] = [0.0] * len(nodes)
    came_from: list[int | None] = [None] * len(nodes)
    last, longest = None, -1.0
    for at in run.spec.order:
        total = before[at] + seconds[at]
        if total > longest:
            last, longest = at, total
        for edge in nodes[at].edges:
            if edge is not None and total > before[edge[0]]:
                before[edge[0]], came_from[edge[0]] = total, at
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = came_from[last]
    return max(longest, 0.0), path[::-1]


def _idle(run: BackwardRun, queued: Sequence[Queued]) -> dict[str, float]:
    """Seconds that workers were idle, by cause: between two events each has one."""
    events: list[tuple[float, int, int, int]] = []
    for item in queued:
        if run.is_of_worker(item.run):
            events.append((item.ready, 1, 0, 0))
            events.append((item.run.started, -1, 1, 0))
            events.append((item.run.ended, 0, -1, 0))
        else:
            events.append((item.run.started, 0, 0, 1))
            events.append((item.run.ended, 0, 0, -1))
    last_end = max(item.run.ended for item in queued)
    handed = run.submitted or run.started
    marks = [(when, 0, 0, 0) for when in (run.started, handed, last_end, run.ended)]
    idle = dict.fromkeys(CAUSES, 0.0)
    ready = running = in_client = 0
    before = run.started
    for when, more_ready, more_running, more_client in sorted([*events, *marks]):
        free = max(run.workers - running, 0) * max(min(when, run.ended) - before, 0.0)
        if free:
            idle[_cause(before, handed, last_end, ready, in_client)] += free
        before = max(before, when)
        ready, running, in_client = (
            ready + more_ready,
            running + more_running,
            in_client + more_client,
        )
    return idle


def _cause(now: float, handed: float, last_end: float, ready: int, in_client: int) -> str:
    if now >= last_end:
        return END
    if now < handed:
        return HAND_OVER
    if in_client:
        return CLIENT
    return QUEUES if ready else SERIAL


def shares_of(recording: Recording) -> Shares:
    """Where the time of the calling thread went, from the first range to the end of the profile."""
    thread = _main_thread(recording)
    spans: list[tuple[float, float, str]] = []
    for found in recording.ranges:
        if found.worker >= 0 or found.thread != thread:
            continue
        if found.kind == ANNOTATION and found.name.startswith(_INPUT):
            spans.append((found.started, found.ended, "input"))
        elif found.kind == ANNOTATION and found.name.startswith(_OPTIMIZER):
            spans.append((found.started, found.ended, "optimizer"))
        elif found.kind in (OPERATOR, FUNCTION):
            spans.append((found.started, found.ended, "forward"))
    spans += [(run.started, run.ended, "backward") for run in recording.backwards if run.ended]
    spent = dict.fromkeys(("forward", "backward", "optimizer", "input"), 0.0)
    begun = end = min([span[0] for span in spans], default=recording.origin)
    # What lies inside of another one is part of that.
    for started, ended, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if ended > end:
            spent[kind] += ended - max(started, end)
            end = ended
    total = (recording.ended or end) - begun
    return Shares(**spent, other=max(total - sum(spent.values()), 0.0))


def step_of(recording: Recording, figures: Sequence[BackwardFigures], shares: Shares) -> Step:
    """The whole profile; without a backward in workers, for as many workers as there are cores."""
    thread = _main_thread(recording)
    maps = {found.name for found in recording.ranges if found.name.startswith(MAP)}
    calls = outside = in_maps = 0.0
    for found in recording.ranges:
        seconds = found.ended - found.started
        if found.kind == FUNCTION and found.worker >= 0:
            calls += seconds
        elif found.worker >= 0 or found.thread != thread:
            continue
        elif f"{MAP}{found.name})" in maps:
            calls += seconds  # of a map, in this process
        elif found.name in maps:
            in_maps += seconds
        elif found.kind == WAITING and found.name != "wait for workers":
            outside += seconds
    took = sum(shares)
    in_workers = [one.run.workers for one in figures if one.run.plan is not None]
    return Step(
        serial=max(took - shares.backward - in_maps - outside, 0.0),
        parallel=sum(one.work for one in figures) + calls,
        chain=sum(one.chain for one in figures),
        maps=in_maps,
        took=took,
        workers=max(in_workers, default=available_cpus()),
    )


def _main_thread(recording: Recording) -> int | None:
    """The thread that has the most time in ranges of its own."""
    spent: defaultdict[int, float] = defaultdict(float)
    for found in recording.ranges:
        if found.worker < 0:
            spent[found.thread] += found.ended - found.started
    return max(spent, key=lambda thread: spent[thread]) if spent else None
