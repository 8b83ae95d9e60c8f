"""Cases and their measurement: all contenders in every round, so that noise affects them alike.

A machine drifts (clock, neighbours, temperature). So contenders take turns, never all of A and then
all of B, and ratios are formed within a round before their median is taken. Each round has another
order, such that each contender follows each other one equally often: the effects of one (caches,
threads that still spin, sleeping cores) would otherwise always meet the same next one. A process
may also be slow for its whole life (depending on its memory and core): such processes start anew
between rounds, so that no row depends on one of them.
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
#: Pause before each sample, in which threads that spin after a parallel loop fall asleep.
SETTLE_S = 0.005
#: The number of uncounted rounds; gradients are compared after them.
WARM_UP_ROUNDS = 3
#: How often a case's processes start: each time for a share of the rounds, after a warm-up.
GENERATIONS = 3


@dataclass(frozen=True)
class Contender:
    """One way to do a case's work.

    Attributes:
        name: the row of the table.
        sample: does the work once and returns its seconds; None: the contender is missing.
        gradients: the results of the last sample, compared between all contenders.
        same_bits: members of the group with this name must agree bit for bit.
        remark: shown beside the row, computed after the last round. For a missing contender, the
            reason.
        renew: starts its processes anew.
    """

    name: str
    sample: Callable[[], float] | None
    gradients: Callable[[], Sequence[Any]] | None = None
    same_bits: str = ""
    remark: Callable[[], str] | None = None
    renew: Callable[[], object] | None = None


@dataclass(frozen=True)
class Target:
    """The target of ``contender``, per round.

    ``at_least``: this many times the speed of ``against``. ``at_most``: this many times its time,
    or, without ``against``, this much in the case's unit.
    """

    contender: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None


class Point(NamedTuple):
    """The place of a case on the plot of its workload: at ``x`` on the line called ``series``."""

    series: str
    x: float


@dataclass(frozen=True)
class Case:
    """One piece of work and its contenders.

    Attributes:
        name: unique in its workload.
        contenders: in the order in which they take turns.
        baselines: names of contenders that get a ratio column.
        rounds: the number of measurements of each.
        unit, per_second: samples are multiplied by ``per_second`` to be in ``unit``.
        targets: the targets of this case.
        tolerance: the largest difference of gradients between libraries, by norm.
        point: its place on the workload's plot.
        warm_up_rounds: another number of them than usual; for cases that take long.
        quantity: the quantity of the samples; ratios of time are speeds.
        fault: says after the last round why the work differs from the name; empty if it does not.
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
    """The measurements: ``samples`` by contender, one per round, in ``unit``.

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
    """Two contenders compute different gradients."""


def timed(work: Callable[[], object], repeats: int = 1) -> float:
    """The seconds of ``work``; see :func:`backward`."""
    return average(lambda: None, lambda _: work(), repeats)


def backward(build: Callable[[], Any], repeats: int = 1) -> Callable[[], float]:
    """A sample that times ``backward()`` alone of the graph that ``build`` records.

    Args:
        build: the forward pass; returns the root.
        repeats: short work runs this often in a row, after one uncounted run, and is averaged, as
            in a training loop. Otherwise the sample is dominated by effects of the work before it:
            cold caches after the collection, and cores that fell asleep during the turn of another
            contender.
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
    """The effort of a measurement; ``rounds``: instead of each case's own number."""

    rounds: int | None = None
    warm_up_rounds: int = WARM_UP_ROUNDS
    generations: int = GENERATIONS

    def samples(self, case: Case) -> int:
        """The number of samples that :func:`measure` takes."""
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
        """The number of uncounted rounds."""
        if case.warm_up_rounds is None:
            return self.warm_up_rounds
        return min(case.warm_up_rounds, self.warm_up_rounds)

    def rounds_of(self, case: Case) -> int:
        """The number of rounds that count."""
        return case.rounds if self.rounds is None else self.rounds


def measure(
    case: Case,
    effort: Effort = Effort(),
    tick: Callable[[], object] = bool,
    take: Callable[[Callable[[], float]], float] = lambda sample: sample(),
) -> CaseResult:
    """Warm up, check that all compute the same, then measure in turns; see also ``GENERATIONS``.

    Args:
        case: the case.
        effort: the effort.
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
                # Others disturb only times; and bytes that were counted before (the memory cases of
                # ``scale``) cannot be counted again.
                found = take(sample) if case.quantity == TIME else sample()
                result.samples.setdefault(one.name, []).append(found * case.per_second)
                tick()
    for one in case.contenders:
        result.remarks[one.name] = one.remark() if one.remark is not None else ""
    result.fault = case.fault(result)
    return result


def order(count: int, turn: int) -> list[int]:
    """The order of ``count`` contenders in round ``turn``.

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

    Existing objects (torch alone has hundreds of thousands) are frozen, so that collections are
    short; objects that other code has frozen stay frozen.
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
