"""A run beside an earlier one, of another commit: what became faster, and what slower.

Milliseconds of two runs cannot be compared, but each run has a peer that did not change: compared
are the speeds relative to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.report import Run
from benchmarks.rounds import CaseResult
from benchmarks.statistics import speed_up


class Change(NamedTuple):
    """One contender in one case: its speed relative to ``baseline``, then and now."""

    case: str
    contender: str
    baseline: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """How many times as fast as before."""
        return self.now / self.before


def changes(earlier: Mapping[str, Any], run: Run) -> Iterator[Change]:
    """Everything that both runs have measured beside a peer.

    Args:
        earlier: what ``scripts/bench --json`` wrote.
        run: the new one.
    """
    for name, results in run.results.items():
        old_cases = {case["case"]: case for case in earlier["workloads"].get(name, ())}
        for result in results:
            if result.name in old_cases:
                yield from _changes_of_case(name, old_cases[result.name], result)


def _changes_of_case(name: str, old: Mapping[str, Any], result: CaseResult) -> Iterator[Change]:
    peers = [baseline for baseline in result.baselines if not baseline.startswith("mpgrad")]
    for baseline in peers[:1]:
        for contender in result.samples:
            then = old["speed_up"].get(baseline, {}).get(contender)
            now = speed_up(result, contender, baseline)
            if contender.startswith("mpgrad") and then is not None and now is not None:
                yield Change(f"{name}, {result.name}", contender, baseline, then[0], now.median)
