"""The command line: which workloads, how thoroughly, and where the figures go."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine
from benchmarks.document import document
from benchmarks.report import Run, as_json, show_case, show_header
from benchmarks.rounds import WARM_UP_ROUNDS, CaseResult, Effort, measure
from benchmarks.workloads import WORKLOADS, Workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``) and return the exit code."""
    options = _parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    if options.list:
        for workload in WORKLOADS.values():
            console.print(f"[bold]{workload.name}[/]\n{workload.about}\n", highlight=False)
        return 0
    chosen = [WORKLOADS[name] for name in options.workloads or WORKLOADS]
    effort = Effort(options.rounds, 1 if options.quick else WARM_UP_ROUNDS)
    run = _run(console, chosen, effort, is_quick=options.quick)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(run), indent=1) + "\n")
    if options.write is not None:
        earlier = None if options.before is None else json.loads(options.before.read_text())
        options.write.write_text(document(run, earlier))
        console.print(f"\nwritten: {options.write}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="mpgrad beside its peers, in one run: medians, spread, ratios per round.",
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        type=_workload,
        metavar="workload",
        help=f"any of {', '.join(WORKLOADS)} (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="say what the workloads are")
    parser.add_argument("--quick", action="store_true", help="few rounds, rough figures")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds of every case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the page of the documents"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="what --json wrote at another commit: the page compares it with this run",
    )
    return parser


def _workload(name: str) -> str:
    if name not in WORKLOADS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(WORKLOADS)}")
    return name


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def _run(console: Console, chosen: Sequence[Workload], effort: Effort, *, is_quick: bool) -> Run:
    start = time.perf_counter()
    run = Run(machine.describe(), machine.load(), is_quick)
    others = machine.OtherPrograms()
    show_header(console, run)
    for workload in chosen:
        run.results[workload.name] = _measure_all(console, workload, run, effort)
    run.load_after, run.others_share = machine.load(), others.share()
    run.seconds = time.perf_counter() - start
    console.print(f"\n{run.seconds:.0f} s", highlight=False)
    if machine.is_busy(run.others_share):
        console.print(
            f"[yellow]Other programs used {run.others_share:.0%} of the cores meanwhile: "
            "the figures are disturbed.[/]",
            highlight=False,
        )
    return run


def _measure_all(
    console: Console, workload: Workload, run: Run, effort: Effort
) -> list[CaseResult]:
    """All cases of a workload; what they need is closed even if one fails."""
    results = []
    with closing(workload.cases(run.is_quick)) as cases:
        for case in cases:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            # Refreshed by hand: a drawing thread would take part in what is measured.
            with Progress(
                *columns, console=console, transient=True, auto_refresh=False
            ) as progress:
                bar = progress.add_task(f"{workload.name}: {case.name}", total=effort.samples(case))

                def tick(progress: Progress = progress, bar: int = bar) -> None:
                    progress.update(bar, advance=1, refresh=True)  # type: ignore[arg-type]

                results.append(measure(case, effort, tick))
            show_case(console, workload.name, results[-1])
    return results
