"""Measures: times with 1, 2, 4, ... workers beside torch and bare processes, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import psutil

import mpgrad as mg
from benchmarks.bare_processes import BareProcesses
from benchmarks.cores.programs import Program
from benchmarks.fresh import call
from benchmarks.loads import Load, alone
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.rounds import Case, CaseResult, Contender, Effort, measure, timed
from benchmarks.runners import Runner, mpgrad_runners, torch_runners
from benchmarks.scaling.costs import Costs
from benchmarks.scaling.networks import Network
from benchmarks.scaling.recording import record
from benchmarks.scaling.validation import Backwards, Check, check
from benchmarks.workloads import perceptrons

LOCAL, WORKERS, TORCH, BARE = "local", "workers", "torch", "bare"
#: By norm, see ``perceptrons.TOLERANCE``: sums in another order cross the kinks of activations.
TOLERANCE = 1e-2
#: Seconds for which an idle engine is watched.
_IDLE_S = 3.0


class Resources(NamedTuple):
    """An engine of so many workers.

    Attributes:
        start_s: seconds until all of them are ready.
        idle: the part of one core that its processes use while nothing runs.
        nbytes: the memory of its processes after a backward; what they share counts once.
    """

    start_s: float
    idle: float
    nbytes: int


class Used(NamedTuple):
    """Seconds of one backward: those that the coordinator computed, and all."""

    busy_s: float
    all_s: float


@dataclass
class Measured:
    """One program.

    Attributes:
        times: milliseconds, by rows of ``row_of``.
        coordinator: by workers, what the coordinator used in each backward.
        checks: by workers, the simulation beside the measurement.
    """

    times: CaseResult
    coordinator: dict[int, list[Used]] = field(default_factory=dict)
    checks: dict[int, Check] = field(default_factory=dict)


def row_of(kind: str, count: int = 0) -> str:
    """The row of a contender."""
    return f"{kind} {count}" if count else kind


def counts_up_to(cores: int) -> list[int]:
    """1, 2, 4, ... and ``cores`` itself."""
    counts = [1]
    while counts[-1] * 2 <= cores:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == cores else [*counts, cores]


def measure_program(
    program: Program,
    counts: Sequence[int],
    effort: Effort,
    take: Callable[[Callable[[], float]], float],
) -> Measured:
    """All contenders in turns."""
    used: dict[int, list[Used]] = {count: [] for count in counts}
    with ExitStack() as stack:
        (local,) = stack.enter_context(mpgrad_runners("local"))
        contenders = [_named(local.contender(program.make), row_of(LOCAL))]
        for count in counts:
            (runner,) = stack.enter_context(mpgrad_runners("process", workers=count))
            made = _named(runner.contender(program.make), row_of(WORKERS, count))
            contenders.append(_watched(made, runner, used[count]))
        # torch runs Python on one thread, however many it has.
        threads = [1] if program.loops is not None else counts
        for count, runner in zip(threads, torch_runners(*threads), strict=True):
            contenders.append(_named(runner.contender(program.make), row_of(TORCH, count)))
        load = None
        if program.loops is not None:
            loops = program.loops()
            load = Load(loops.milliseconds, serial="", has_little_else=False)
            contenders += [
                _bare(
                    stack.enter_context(
                        BareProcesses(loops.branches, loops.each, elements=16, processes=count)
                    ),
                    count,
                )
                for count in counts
            ]
            contenders.append(alone(loops.each, loops.branches, 1))
        case = Case(
            program.name,
            contenders,
            (row_of(LOCAL),),
            effort.rounds or 1,
            tolerance=TOLERANCE,
            fault=(lambda result: "") if load is None else load.fault,
        )
        times = measure(case, effort, take=take)
    rounds = len(times.samples[row_of(LOCAL)])
    return Measured(times, {count: found[-rounds:] for count, found in used.items()})


def check_program(
    program: Program, counts: Sequence[int], costs: Costs, backwards: Backwards
) -> Iterator[tuple[int, Check]]:
    """The simulation beside the measurement, for each number of workers."""
    forward = program.make(mg).forward
    recording = record(Network(program.name, program.about, forward))
    for count in counts:
        yield count, check(recording, forward, costs, count, backwards)


def resources(count: int) -> Resources:
    """Of an engine with ``count`` workers, in an interpreter of its own."""
    return Resources(*call("cores.measurement.watch_engine", count))


def watch_engine(count: int) -> Resources:
    """See :func:`resources`; it runs in the other interpreter."""
    mg.tensor([1.0])
    start = time.perf_counter()
    with mg.Engine("process", cpu_workers=count) as engine:
        start_s = time.perf_counter() - start
        perceptrons.program(Perceptrons(count, 4, 512), mg).forward().backward()
        pid = engine.coordinator_pid
        assert pid is not None
        pids = [pid, *engine.worker_pids()]
        before_s = sum(map(_cpu_s, pids))
        time.sleep(_IDLE_S)
        idle = (sum(map(_cpu_s, pids)) - before_s) / _IDLE_S
        nbytes = sum(psutil.Process(number).memory_full_info().pss for number in pids)
    return Resources(start_s, idle, nbytes)


def _cpu_s(pid: int) -> float:
    """Seconds of processors that all threads of a process have used."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _named(contender: Contender, name: str) -> Contender:
    # Its processes stay for all rounds: there are as many of them as the machine has cores.
    return replace(contender, name=name, renew=None)


def _watched(contender: Contender, runner: Runner, used: list[Used]) -> Contender:
    """Notes what the coordinator uses, too."""
    take = contender.sample
    assert take is not None

    def coordinator_s() -> float:
        assert runner.engine is not None
        pid = runner.engine.coordinator_pid
        return 0.0 if pid is None else _cpu_s(pid)

    def sample() -> float:
        before_s = coordinator_s()
        seconds = take()
        used.append(Used(coordinator_s() - before_s, seconds))
        return seconds

    return replace(contender, sample=sample)


def _bare(processes: BareProcesses, count: int) -> Contender:
    return Contender(row_of(BARE, count), lambda: timed(processes.run))
