"""A run's figures, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rounds import TIME, CaseResult
from benchmarks.statistics import Spread, speed_up, spread, time_ratio, verdict


@dataclass
class Run:
    """All measurements of one call of the command.

    Attributes:
        machine: see ``machine.describe``.
        load_before, load_after: see ``machine.load``.
        processors: whether they could fall asleep, see ``awake``.
        disturbance: the number of disturbed samples, see there.
        others_share: the share of all cores that other programs used.
        is_quick: few rounds, rough figures.
        seconds: the time of the whole run.
        results: by workload.
    """

    machine: Mapping[str, str]
    load_before: str
    is_quick: bool
    load_after: str = ""
    processors: str = ""
    disturbance: str = ""
    others_share: float = 0.0
    seconds: float = 0.0
    results: dict[str, list[CaseResult]] = field(default_factory=dict)


def published(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The results of cases whose work was that of their name."""
    return [result for result in results if not result.fault]


class Row:
    """One contender's cells, as text."""

    def __init__(self, result: CaseResult, contender: str) -> None:
        samples = result.samples.get(contender)
        self.name = contender
        self.remark = result.remarks.get(contender, "")
        if not samples:
            self.median, self.range = self.remark or "-", ""
            self.ratios = [""] * len(result.baselines)
            self.remark = ""
            return
        found = spread(samples)
        self.median = figure(found.median)
        self.range = f"{figure(found.low)} .. {figure(found.high)}"
        self.ratios = [
            ratio(None if contender == baseline else _relative(result, contender, baseline))
            for baseline in result.baselines
        ]

    @property
    def cells(self) -> list[str]:
        """In the order of :func:`headings`."""
        return [self.name, self.median, self.range, *self.ratios, self.remark]


def headings(result: CaseResult) -> list[str]:
    """Of the table of a case."""
    word = "speed" if result.quantity == TIME else result.quantity
    ratios = [f"{word} / {baseline}" for baseline in result.baselines]
    return ["", f"median, {result.unit}", "min .. max", *ratios, ""]


def _relative(result: CaseResult, contender: str, baseline: str) -> Spread | None:
    """A speed; of bytes how many times as many."""
    if result.quantity == TIME:
        return speed_up(result, contender, baseline)
    return time_ratio(result, contender, baseline)


def cells_of(result: CaseResult) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, one per contender in their order; no column without anything in it."""
    names = headings(result)
    table = [Row(result, contender).cells for contender in result.remarks]
    if not any(row[-1] for row in table):
        names, table = names[:-1], [row[:-1] for row in table]
    return names, table


def figure(value: float) -> str:
    """Three significant digits, no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def ratio(found: Spread | None) -> str:
    """Median of the paired ratios and their range."""
    if found is None:
        return "-"
    return f"{found.median:.2f}x ({found.low:.2f} .. {found.high:.2f})"


def show_header(console: Console, run: Run) -> None:
    """Print the machine and the conditions."""
    for name, text in {
        **run.machine,
        "processors": run.processors,
        "load": run.load_before,
    }.items():
        console.print(f"[dim]{name:>10}[/]  {text}", highlight=False, soft_wrap=True)


def show_case(console: Console, workload: str, result: CaseResult) -> None:
    """Print the table of one case and the results of its targets."""
    count = max((len(samples) for samples in result.samples.values()), default=0)
    table = Table(title=f"{workload}: {result.name} ({count} rounds)", title_justify="left")
    names, cells = cells_of(result)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if 0 < number < 3 else "left")
    for row in cells:
        table.add_row(*row)
    console.print()
    console.print(table)
    if result.fault:
        console.print(f"   [red]not published[/]: {result.fault}", highlight=False)
        return
    for target in result.targets:
        found = verdict(result, target)
        if found.measured is None:
            console.print(f"   [dim]?[/] {found.wanted}: not measured", highlight=False)
            continue
        mark = (
            "[green]reached[/]" if found.is_reached else f"[red]missed by {found.missed_by:.0%}[/]"
        )
        console.print(
            f"   {mark}  {found.wanted}: {figure(found.measured.median)}", highlight=False
        )


def as_json(run: Run, *, has_samples: bool = True) -> dict[str, Any]:
    """All results; without samples the published ones: medians, and those for ``comparison``."""
    return {
        "machine": dict(run.machine),
        "load_before": run.load_before,
        "load_after": run.load_after,
        "processors": run.processors,
        "disturbance": run.disturbance,
        "others_share": run.others_share,
        "quick": run.is_quick,
        "seconds": run.seconds,
        "workloads": {
            name: [
                _case_as_json(result, has_samples)
                for result in (results if has_samples else published(results))
            ]
            for name, results in run.results.items()
        },
    }


def _case_as_json(result: CaseResult, has_samples: bool) -> dict[str, Any]:
    case: dict[str, Any] = {
        "case": result.name,
        "unit": result.unit,
        "median": {
            name: _rounded(spread(samples).median) for name, samples in result.samples.items()
        },
        "speed_up": {
            baseline: _speed_ups(result, baseline)
            for baseline in result.baselines
            if baseline in result.samples
        },
    }
    if has_samples:
        case["samples"], case["remarks"] = result.samples, result.remarks
        case["fault"] = result.fault
        case["targets"] = [verdict(result, target)._asdict() for target in result.targets]
    return case


def _speed_ups(result: CaseResult, baseline: str) -> dict[str, list[float]]:
    found = {name: speed_up(result, name, baseline) for name in result.samples}
    return {
        name: [_rounded(figure) for figure in ratios]
        for name, ratios in found.items()
        if ratios is not None and name != baseline
    }


def _rounded(value: float) -> float:
    """Four significant digits: more would only be noise that changes with every run."""
    return float(f"{value:.4g}")
