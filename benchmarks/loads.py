"""Loads: how many loops take a given time here, and whether a case's loops took what its name says.

A processor that is shared with others may be half as fast for moments or minutes. Loops that were
counted in such a moment take half the time in the next one, and the case is another one than its
name says. So the loops run once more after they were counted, and in every round, in a row of their
own; figures of a case whose loops took another time are not published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.disturbance import SLOWED
from benchmarks.gil_work import spin
from benchmarks.rounds import CaseResult, Contender, timed

#: How far from what the name says a load may be.
TOLERANCE = 0.1
#: Of ``spin``, the first time; how long one try takes, as long as all branches of the longest case:
#: a processor that has just begun is faster; tries that are compared; the pause after each, so that
#: they do not all lie in one slow moment; and how often all of it is done again if a second look
#: differs.
_LOOPS, _TRY_S, _TRIES, _PAUSE_S, _LOOKS = 50_000, 0.3, 7, 0.02, 5
#: The row of the loops without anything else.
ALONE = "the loops alone"

Seconds = Callable[[int], float]


@dataclass(frozen=True)
class Load:
    """What a sample of a case consists of, to be held against what was measured.

    Attributes:
        milliseconds: what all loops take one after another, by the case's name.
        serial: the row of who runs them one after another; empty if nobody does.
        has_little_else: whether that row cannot take noticeably longer than its loops either.
    """

    milliseconds: float
    serial: str
    has_little_else: bool

    def fault(self, result: CaseResult) -> str:
        """In words, how the measured loops differ from those of the name; empty if they do not."""
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


def _seconds(loops: int) -> float:
    """They run many times in a row, as branches do: after a pause, caches are cold."""
    repeats, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < _TRY_S:
        spin(loops)
        repeats += 1
    return took / repeats


def loops_for(milliseconds: float, seconds: Seconds = _seconds) -> int:
    """How many loops of ``spin`` take that long here.

    Args:
        milliseconds: what they should take.
        seconds: what so many loops take.

    Returns:
        A number that was tried: it took that long within the tolerance, unless the processor's
        speed changed at each of several looks.
    """
    loops = _LOOPS
    for _ in range(_LOOKS):
        loops = max(1, round(loops * milliseconds / 1e3 / _usual(loops, seconds)))
        if abs(_usual(loops, seconds) * 1e3 / milliseconds - 1) <= TOLERANCE:
            break
    return loops


def _usual(loops: int, seconds: Seconds) -> float:
    """The median of the tries that nothing has slowed down; as ``Disturbance`` sees it."""
    tries = []
    for _ in range(_TRIES):
        tries.append(seconds(loops))
        time.sleep(_PAUSE_S)
    return median(took for took in tries if took <= SLOWED * min(tries))
