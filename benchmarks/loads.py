"""Loads: the number of loops for a given time here, and checks that a case's loops took that time.

A processor that is shared with others may be half as fast for moments or minutes. Loops that were
counted in such a moment take half the time in the next one, and the name of the case is then wrong.
So the loops run once more after they were counted, and in every round, in a row of their own. A
case whose loops took another time is measured again, with as many loops as fit what it found; if
they never fit, its figures are not published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.disturbance import SLOWED
from benchmarks.gil_work import spin
from benchmarks.rounds import CaseResult, Contender, timed

#: The largest relative difference between a load and the name of its case.
TOLERANCE = 0.1
#: The largest one right after the loops were counted; the rest is for changes of the processor.
_COUNTED = TOLERANCE / 4
#: For ``spin``: the loops of the first try; the time of one try, as long as all branches of the
#: longest case (a processor is faster at first); the tries that are compared; the pause after each,
#: so that they do not all fall into one slow moment; and how often the count is repeated if a check
#: differs.
_LOOPS, _TRY_S, _TRIES, _PAUSE_S, _LOOKS = 50_000, 0.3, 7, 0.02, 5
#: About how long the steps of a sample take that is a loop (see ``steps_of``).
SAMPLE_MS = 300.0
#: How often a case is measured until its loops took the time of its name.
ATTEMPTS = 4
#: The row of the loops without anything else.
ALONE = "the loops alone"

Seconds = Callable[[int], float]


@dataclass(frozen=True)
class Load:
    """The load of a sample of a case, to compare with measurements.

    Attributes:
        milliseconds: the time of all loops one after another, by the case's name.
        serial: the row of the contender that runs them one after another; empty if there is none.
        has_little_else: whether that row cannot take noticeably longer than its loops.
    """

    milliseconds: float
    serial: str
    has_little_else: bool

    def fault(self, result: CaseResult) -> str:
        """The difference between the measured loops and the case's name; empty if there is none."""
        rows = {ALONE: True, self.serial: self.has_little_else}
        for row, has_upper_bound in rows.items():
            if not row:
                continue
            if row not in result.samples:
                return f"{row} was not measured"
            found = median(result.samples[row])
            ratio = found / self.milliseconds
            if ratio < 1 - TOLERANCE or (has_upper_bound and ratio > 1 + TOLERANCE):
                return (
                    f"{row} took {found:.3g} ms, and by the name of the case it is "
                    f"{self.milliseconds:.3g} ms ({ratio - 1:+.0%})"
                )
        return ""


def alone(loops: int, branches: int, repeats: int) -> Contender:
    """The row of the loops of all branches, one after another in this process."""

    def run() -> None:
        for _ in range(branches):
            spin(loops)

    return Contender(ALONE, lambda: timed(run, repeats))


def steps_of(work_ms: float) -> int:
    """The steps of a sample in a row, as a loop has them, for so many milliseconds of work each:
    what the turns of others have left in caches is gone by then (see ``rounds.backward``)."""
    return max(2, round(SAMPLE_MS / work_ms))


def in_a_sample(branches: int, repeats: int) -> Seconds:
    """Measures a number of loops as a sample of a case does: after its pause, and for its time."""

    def seconds(loops: int) -> float:
        sample = alone(loops, branches, repeats).sample
        assert sample is not None
        return sample() / branches

    return seconds


class Attempts:
    """The loops for a load, changed while a case that was measured with them had a fault.

    Loops may take another time between the other contenders of a case than by themselves (the clock
    of a processor depends on what ran just before), so the case itself says by how much.

    Args:
        load: the load of a sample.
        milliseconds: the time that the loops should take.
        seconds: measures the time of a number of loops.
        most: how often the case is measured.
    """

    def __init__(
        self, load: Load, milliseconds: float, seconds: Seconds, most: int = ATTEMPTS
    ) -> None:
        self._load, self._milliseconds = load, milliseconds
        self._seconds, self._most = seconds, most
        self._took: float | None = None

    def __iter__(self) -> Iterator[int]:
        """Numbers of loops; the next one only if the case had a fault with the last one."""
        loops = loops_for(self._milliseconds, self._seconds)
        for _ in range(self._most):
            self._took = None
            yield loops
            if self._took is None:
                break
            loops = max(1, round(loops * self._load.milliseconds / self._took))

    def fault(self, result: CaseResult) -> str:
        """``Load.fault`` of a case that was measured with these loops."""
        found = self._load.fault(result)
        if found and ALONE in result.samples:
            self._took = median(result.samples[ALONE])
        return found


def _seconds(loops: int) -> float:
    """They run many times in a row, as branches do, because caches are cold after a pause."""
    repeats, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < _TRY_S:
        spin(loops)
        repeats += 1
    return took / repeats


def loops_for(milliseconds: float, seconds: Seconds = _seconds) -> int:
    """The number of loops of ``spin`` that take that time here.

    Args:
        milliseconds: the time that they should take.
        seconds: measures the time of a number of loops.

    Returns:
        A number that was tried: it took that time within the tolerance, unless the processor's
        speed changed at each of several checks.
    """
    loops = _LOOPS
    for _ in range(_LOOKS):
        loops = max(1, round(loops * milliseconds / 1e3 / _usual(loops, seconds)))
        if abs(_usual(loops, seconds) * 1e3 / milliseconds - 1) <= _COUNTED:
            break
    return loops


def _usual(loops: int, seconds: Seconds) -> float:
    """The median of the tries that were not slowed down, by the criterion of ``Disturbance``."""
    tries = []
    for _ in range(_TRIES):
        tries.append(seconds(loops))
        time.sleep(_PAUSE_S)
    return median(took for took in tries if took <= SLOWED * min(tries))
