"""Compares a run with an earlier one of another commit.

Milliseconds of two runs cannot be compared, but each run has a peer that did not change: the speeds
(or sizes) relative to it are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.report import Run, published
from benchmarks.rounds import CaseResult
from benchmarks.statistics import speed_up

#: A contender with less than this share of its earlier speed (or size) is a regression.
REGRESSION = 0.8


class Change(NamedTuple):
    """One contender in one case: its speed relative to ``baseline``, then and now.

    ``now`` is 0 if the contender has no figure any more although its peer has one.
    """

    case: str
    contender: str
    baseline: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """How many times as fast as before."""
        return self.now / self.before

    @property
    def is_regression(self) -> bool:
        """Whether more than a fifth of the speed is gone."""
        return self.factor < REGRESSION


def changes(earlier: Mapping[str, Any], run: Run) -> Iterator[Change]:
    """Everything that both runs have measured relative to a peer.

    Args:
        earlier: the output of ``scripts/bench --json`` or ``--write``.
        run: the new one.
    """
    for name, results in run.results.items():
        old_cases = {case["case"]: case for case in earlier["workloads"].get(name, ())}
        for result in published(results):
            if result.name in old_cases:
                yield from _changes_of_case(name, old_cases[result.name], result)


def _changes_of_case(name: str, old: Mapping[str, Any], result: CaseResult) -> Iterator[Change]:
    peers = [baseline for baseline in result.baselines if not baseline.startswith("mpgrad")]
    for baseline in peers[:1]:
        if baseline not in result.samples:
            continue
        for contender in result.remarks:
            then = old["speed_up"].get(baseline, {}).get(contender)
            if contender.startswith("mpgrad") and then is not None:
                now = speed_up(result, contender, baseline)
                median = 0.0 if now is None else now.median
                yield Change(f"{name}, {result.name}", contender, baseline, then[0], median)


def show_changes(console: Console, earlier: Mapping[str, Any], run: Run) -> Sequence[Change]:
    """Print how the run compares with an earlier one, the worst changes first; return them."""
    found = sorted(changes(earlier, run), key=lambda change: change.factor)
    then, now = (machine["processor"] for machine in (earlier["machine"], run.machine))
    if then != now:
        console.print(f"[yellow]Another machine: {then} then, {now} now.[/]", highlight=False)
    table = Table(title=f"since commit {earlier['machine']['commit']}", title_justify="left")
    for name in ("case", "", "relative to", "before", "now", "as fast as before"):
        table.add_column(name)
    for change in found:
        figures = [f"{value:.2f}x" for value in (change.before, change.now, change.factor)]
        style = "red" if change.is_regression else ""
        table.add_row(*change[:3], *figures, style=style)
    console.print(table)
    return found
