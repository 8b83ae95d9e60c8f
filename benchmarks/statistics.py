"""Statistics of samples: medians, spread, paired ratios, and whether a target was reached."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.rounds import CaseResult, Target


class Spread(NamedTuple):
    """Median, smallest and largest of some figures."""

    median: float
    low: float
    high: float


class Verdict(NamedTuple):
    """A target and its outcome; ``measured`` is None if a contender is missing.

    Attributes:
        wanted: the target in words.
        measured: the figure that is compared with it, over the rounds.
        is_reached: by the median.
        missed_by: the missing share of the target; 0 if it is reached.
    """

    wanted: str
    measured: Spread | None
    is_reached: bool
    missed_by: float


def spread(figures: Sequence[float]) -> Spread:
    """The spread of at least one figure."""
    return Spread(median(figures), min(figures), max(figures))


def speed_up(result: CaseResult, contender: str, against: str) -> Spread | None:
    """The speed relative to ``against``, formed per round; None if one is missing."""
    mine, theirs = result.samples.get(contender), result.samples.get(against)
    if not mine or not theirs:
        return None
    return spread([b / a for a, b in zip(mine, theirs, strict=True)])


def time_ratio(result: CaseResult, contender: str, against: str) -> Spread | None:
    """The time (or the bytes) relative to ``against``, formed per round."""
    return speed_up(result, against, contender)


def verdict(result: CaseResult, target: Target) -> Verdict:
    """Compare the median with the target."""
    if target.at_least is not None and target.against is not None:
        found = speed_up(result, target.contender, target.against)
        wanted = f"{target.contender} >= {target.at_least:g}x the speed of {target.against}"
        reached = found is not None and found.median >= target.at_least
        missed = 0.0 if found is None else 1.0 - found.median / target.at_least
    elif target.at_most is not None:
        found, wanted = _time(result, target), f"{target.contender} <= {target.at_most:g}"
        wanted += (
            f"x the {result.quantity} of {target.against}" if target.against else f" {result.unit}"
        )
        reached = found is not None and found.median <= target.at_most
        missed = 0.0 if found is None else found.median / target.at_most - 1.0
    else:
        raise ValueError(f"{target}: it needs at_most, or at_least and against")
    return Verdict(wanted, found, reached, 0.0 if reached else missed)


def _time(result: CaseResult, target: Target) -> Spread | None:
    if target.against is not None:
        return time_ratio(result, target.contender, target.against)
    samples = result.samples.get(target.contender)
    return spread(samples) if samples else None
