"""Cases and how they are measured: all contenders in every round, so that noise hits them alike.

A machine drifts (clock, neighbours, temperature). Contenders therefore take turns, never all of A
and then all of B, and ratios are formed within a round before their median is taken. Each round
has another order, such that everyone follows everyone else equally often: what one leaves behind
(caches, threads that still spin, cores that have gone to sleep) would otherwise always meet the
same one. And a process may be slow for its whole life (where its memory lies, on which core): those
that can be are started anew between rounds, so that no row hangs on one of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: The usual ``Case.quantity``.
TIME = "time"
#: Pause before each sample: threads that spin for work after a parallel loop have gone to sleep.
SETTLE_S = 0.005
#: Rounds that nobody looks at; gradients are compared after them.
WARM_UP_ROUNDS = 3
#: How often a case's processes are there: each time for a share of the rounds, after a warm-up.
GENERATIONS = 3


@dataclass(frozen=True)
class Contender:
    """One way to do a case's work.

    Attributes:
        name: the row of the table.
        sample: does the work once and returns its seconds; None: the contender is not there.
        gradients: what the last sample computed, compared between all contenders.
        same_bits: members of a group so named must agree bit for bit.
        remark: said beside the row, asked after the last round. For a contender that is not there,
            the reason.
        renew: starts the processes that it works with anew.
    """

    name: str
    sample: Callable[[], float] | None
    gradients: Callable[[], Sequence[Any]] | None = None
    same_bits: str = ""
    remark: Callable[[], str] | None = None
    renew: Callable[[], object] | None = None


@dataclass(frozen=True)
class Target:
    """What ``contender`` should reach, per round.

    ``at_least``: so many times the speed of ``against``. ``at_most``: so many times its time, or,
    without ``against``, so much in the case's unit.
    """

    contender: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None


class Point(NamedTuple):
    """Where a case lies on the plot of its workload: at ``x`` on the line called ``series``."""

    series: str
    x: float


@dataclass(frozen=True)
class Case:
    """One piece of work and who does it.

    Attributes:
        name: unique in its workload.
        contenders: in the order in which they take turns.
        baselines: names of contenders that get a ratio column.
        rounds: how often each is measured.
        unit, per_second: samples are multiplied by ``per_second`` to be in ``unit``.
        targets: what should be reached here.
        tolerance: how far gradients may differ between libraries, by norm.
        point: where it lies on its workload's plot.
        warm_up_rounds: instead of as many as all others; for cases that take long.
        quantity: what samples are; of time, ratios are speeds.
        fault: says after the last round why the case is not what its name says; empty if it is.
    """

    name: str
    contenders: Sequence[Contender]
    baselines: Sequence[str]
    rounds: int
    unit: str = "ms"
    per_second: float = 1e3
    targets: Sequence[Target] = ()
    tolerance: float = 1e-5
    point: Point | None = None
    warm_up_rounds: int | None = None
    quantity: str = TIME
    fault: Callable[[CaseResult], str] = lambda result: ""


@dataclass
class CaseResult:
    """What was measured; ``samples`` by contender, one per round, in ``unit``.

    ``fault``: why the figures are not published; empty if they are.
    """

    name: str
    unit: str
    baselines: Sequence[str]
    targets: Sequence[Target]
    samples: dict[str, list[float]] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    point: Point | None = None
    quantity: str = TIME
    fault: str = ""


class WrongGradient(AssertionError):
    """Two contenders do not compute the same."""


def timed(work: Callable[[], object], repeats: int = 1) -> float:
    """Seconds that ``work`` takes; see :func:`backward`."""
    return average(lambda: None, lambda _: work(), repeats)


def backward(build: Callable[[], Any], repeats: int = 1) -> Callable[[], float]:
    """A sample that times ``backward()`` alone of the graph that ``build`` records.

    Args:
        build: the forward pass; returns the root.
        repeats: short work is done so often in a row, after once unseen, and averaged, as a
            training loop does it. Else the sample is mostly what came before: the cold caches that
            the collection leaves, and cores that fell asleep while another contender had its turn
            (a backward of ``mlp_chain`` in workers takes 10.4 ms after a pause of 5 ms and 13.9
            after one of 100 ms; in this process 13.1 and 14.2).
    """
    return lambda: average(build, lambda root: root.backward(), repeats)


def forward_and_backward(
    build: Callable[[], Any], before: Callable[[], object], repeats: int = 1
) -> Callable[[], float]:
    """A sample that times both; ``before`` is not timed. See :func:`backward`."""
    return lambda: average(before, lambda _: build().backward(), repeats)


def average(prepare: Callable[[], Any], work: Callable[[Any], object], repeats: int) -> float:
    """Seconds of ``work(prepare())``, of which only ``work`` counts; see :func:`backward`."""
    gc.collect()
    time.sleep(SETTLE_S)
    if repeats > 1:
        work(prepare())
    seconds = 0.0
    for _ in range(repeats):
        prepared = prepare()
        start = time.perf_counter()
        work(prepared)
        seconds += time.perf_counter() - start
    return seconds / repeats


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure; ``rounds``: instead of each case's own number."""

    rounds: int | None = None
    warm_up_rounds: int = WARM_UP_ROUNDS
    generations: int = GENERATIONS

    def samples(self, case: Case) -> int:
        """How many samples :func:`measure` takes."""
        present = sum(one.sample is not None for one in case.contenders)
        warm_ups = self.warm_ups_of(case) * (1 + len(self.renewals_of(case)))
        return present * (warm_ups + self.rounds_of(case))

    def renewals_of(self, case: Case) -> frozenset[int]:
        """The rounds before which processes start anew; never before the first."""
        if not any(one.renew is not None for one in case.contenders):
            return frozenset()
        rounds = self.rounds_of(case)
        return frozenset(
            rounds * number // self.generations for number in range(1, self.generations)
        ) - {0}

    def warm_ups_of(self, case: Case) -> int:
        """The rounds that nobody looks at."""
        if case.warm_up_rounds is None:
            return self.warm_up_rounds
        return min(case.warm_up_rounds, self.warm_up_rounds)

    def rounds_of(self, case: Case) -> int:
        """The rounds that count."""
        return case.rounds if self.rounds is None else self.rounds


def measure(
    case: Case,
    effort: Effort = Effort(),
    tick: Callable[[], object] = bool,
    take: Callable[[Callable[[], float]], float] = lambda sample: sample(),
) -> CaseResult:
    """Warm up, check that all compute the same, then measure in turns; see also ``GENERATIONS``.

    Args:
        case: what to measure.
        effort: how thoroughly.
        tick: called after each sample, for a progress bar.
        take: takes a sample of time that counts (``Disturbance.sample``).

    Raises:
        WrongGradient: the contenders do not agree.
    """
    result = CaseResult(
        case.name, case.unit, case.baselines, case.targets, point=case.point, quantity=case.quantity
    )
    present = [(one, one.sample) for one in case.contenders if one.sample is not None]

    def warm_up() -> None:
        for _ in range(effort.warm_ups_of(case)):
            for _, sample in present:
                sample()
                tick()
        _check([one for one, _ in present], case.tolerance)

    renewals = effort.renewals_of(case)
    with _collector_off():
        warm_up()
        for turn in range(effort.rounds_of(case)):
            if turn in renewals:
                for one, _ in present:
                    if one.renew is not None:
                        one.renew()
                warm_up()
            for index in order(len(present), turn):
                one, sample = present[index]
                # Only times are disturbed by others, and bytes that were counted before (the cases
                # of memory in ``scale``) cannot be counted again.
                found = take(sample) if case.quantity == TIME else sample()
                result.samples.setdefault(one.name, []).append(found * case.per_second)
                tick()
    for one in case.contenders:
        result.remarks[one.name] = one.remark() if one.remark is not None else ""
    result.fault = case.fault(result)
    return result


def order(count: int, turn: int) -> list[int]:
    """In which order ``count`` contenders take round ``turn``.

    Over ``count`` rounds (twice as many for an odd number) each one follows each other one equally
    often: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
    treatments", Australian Journal of Scientific Research 2 (1949).
    """
    zigzag = [(index + 1) // 2 if index % 2 else -index // 2 for index in range(count)]
    row = [(step + turn) % count for step in zigzag]
    return row[::-1] if count % 2 and turn // count % 2 else row


@contextmanager
def _collector_off() -> Iterator[None]:
    """No cyclic collection inside a sample; there is one before each.

    What exists already (torch alone has 100,000s of objects) is frozen, so that those are short;
    what somebody else has frozen stays so.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not was_frozen:
            gc.unfreeze()


def _check(contenders: Sequence[Contender], tolerance: float) -> None:
    """All contenders have the same gradients: up to rounding, or in a group bit for bit."""
    computed = [
        (one, [np.array(array) for array in one.gradients()])
        for one in contenders
        if one.gradients is not None
    ]
    for index, (one, mine) in enumerate(computed):
        for other, theirs in computed[:index]:
            exact = bool(one.same_bits) and one.same_bits == other.same_bits
            _compare(f"{one.name} and {other.name}", mine, theirs, 0.0 if exact else tolerance)


def _compare(who: str, mine: list[Array], theirs: list[Array], tolerance: float) -> None:
    if len(mine) != len(theirs) or not mine:
        raise WrongGradient(f"{who} have {len(mine)} and {len(theirs)} gradients")
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.shape != b.shape:
            raise WrongGradient(f"{who}: gradient {number} has the shapes {a.shape} and {b.shape}")
        distance = float(np.linalg.norm(a - b))
        if not distance <= tolerance * float(np.linalg.norm(b)):
            raise WrongGradient(f"{who}: gradient {number} differs, by norm, by {distance:.3g}")
