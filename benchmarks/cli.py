"""The command line: the workloads, the effort, and the destination of the figures."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine
from benchmarks.awake import kept_awake
from benchmarks.comparison import REGRESSION, show_changes
from benchmarks.disturbance import PATIENCE_S, QUICK_PATIENCE_S, Disturbance
from benchmarks.document import document
from benchmarks.peers.process import is_installed
from benchmarks.plots import draw
from benchmarks.report import Run, as_json, show_case, show_header
from benchmarks.rounds import CaseResult, Effort, measure
from benchmarks.workloads import WORKLOADS, Workload

#: The figures behind the page of the documents.
COMMITTED = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``).

    Returns:
        The exit code: 1 for a regression, 2 if there was nothing to compare with, 3 if figures are
        not published because a case was not what its name says.
    """
    options = _parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    if options.list:
        for workload in WORKLOADS.values():
            console.print(f"[bold]{workload.name}[/]\n{workload.about}\n", highlight=False)
        return 0
    # Read first: a missing file should be reported before the measurement, and the page to be
    # written may be the one that is compared with.
    committed = _figures(options.against if options.compare else None)
    earlier = _figures(options.before)
    chosen = [WORKLOADS[name] for name in options.workloads or WORKLOADS]
    effort = Effort(options.rounds, 1, 1) if options.quick else Effort(options.rounds)
    usual_s = QUICK_PATIENCE_S if options.quick else PATIENCE_S
    patience_s = usual_s if options.patience is None else float(options.patience)
    run = _run(console, chosen, effort, patience_s, is_quick=options.quick)
    if options.json is not None:
        _write_json(options.json, as_json(run))
    if options.write is not None:
        _write_page(console, options.write, run, earlier)
    is_worse = 0 if committed is None else _compare(console, committed, run)
    return is_worse or _name_faults(console, run)


def _name_faults(console: Console, run: Run) -> int:
    faults = [
        f"not published: {name}, {result.name}: {result.fault}"
        for name, results in run.results.items()
        for result in results
        if result.fault
    ]
    for line in faults:
        console.print(f"[red]{line}[/]", highlight=False)
    return 3 if faults else 0


def _figures(path: Path | None) -> dict[str, Any] | None:
    """The figures of an earlier run."""
    if path is None:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"scripts/bench: cannot read {path}: {error}; "
            f"scripts/bench --write {path.with_suffix('.md')} makes it"
        ) from None
    return found


def _write_json(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n")


def _write_page(console: Console, page: Path, run: Run, earlier: dict[str, Any] | None) -> None:
    """Write the page, its pictures, and the figures that ``--compare`` reads."""
    pictures = draw(run, page)
    page.write_text(document(run, earlier, pictures))
    _write_json(page.with_suffix(".json"), as_json(run, has_samples=False))
    console.print(f"\nwritten: {page}, {page.with_suffix('.json').name}", highlight=False)
    if not is_installed("matplotlib"):
        console.print("no pictures: matplotlib is not installed", highlight=False)


def _compare(console: Console, committed: dict[str, Any], run: Run) -> int:
    found = show_changes(console, committed, run)
    if not found:
        console.print("Nothing to compare: no case was measured beside the same peer both times.")
        return 2
    worse = [change for change in found if change.is_regression]
    console.print(
        f"{len(worse)} of {len(found)} have lost more than {1 - REGRESSION:.0%} of their speed "
        "relative to the peer.",
        style="red" if worse else "green",
    )
    return 1 if worse else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="mpgrad beside its peers, in one run: medians, spread, ratios per round. "
        "Peers that are not installed are left out; --with-peers installs them first.",
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
    parser.add_argument(
        "--patience",
        type=_positive,
        metavar="SECONDS",
        help="how long all samples together may wait for undisturbed moments and be taken again "
        f"(default: {PATIENCE_S:.0f}, with --quick {QUICK_PATIENCE_S:.0f})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the page of the documents, and beside it its pictures and its figures as JSON",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare with the committed figures; exit code 1 if a speed relative to a peer has "
        "lost more than a fifth",
    )
    parser.add_argument(
        "--against",
        type=Path,
        default=COMMITTED,
        metavar="FILE",
        help=f"for --compare: other figures than docs/{COMMITTED.name}",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="what --json or --write wrote at another commit: the page compares it with this run",
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


def _run(
    console: Console,
    chosen: Sequence[Workload],
    effort: Effort,
    patience_s: float,
    *,
    is_quick: bool,
) -> Run:
    start = time.perf_counter()
    run = Run(machine.describe(), machine.load(), is_quick)
    others = machine.OtherPrograms()
    with kept_awake() as run.processors, Disturbance(patience_s) as disturbance:
        show_header(console, run)
        for workload in chosen:
            run.results[workload.name] = _measure_all(console, workload, run, effort, disturbance)
        run.disturbance = str(disturbance)
    run.load_after, run.others_share = machine.load(), others.share()
    run.seconds = time.perf_counter() - start
    console.print(f"\n{run.seconds:.0f} s; {run.disturbance}", highlight=False)
    if machine.is_busy(run.others_share):
        console.print(
            f"[yellow]Other programs used {run.others_share:.0%} of the cores meanwhile: "
            "the figures are disturbed.[/]",
            highlight=False,
        )
    return run


def _measure_all(
    console: Console, workload: Workload, run: Run, effort: Effort, disturbance: Disturbance
) -> list[CaseResult]:
    """Measure all cases of a workload; their resources are closed even if one fails.

    Of a case that comes again, the last result counts.
    """
    results: dict[str, CaseResult] = {}
    with closing(workload.cases(run.is_quick)) as cases:
        for case in cases:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            # Refreshed by hand: a drawing thread would disturb the measurement.
            with Progress(
                *columns, console=console, transient=True, auto_refresh=False
            ) as progress:
                bar = progress.add_task(f"{workload.name}: {case.name}", total=effort.samples(case))

                def tick(progress: Progress = progress, bar: int = bar) -> None:
                    progress.update(bar, advance=1, refresh=True)  # type: ignore[arg-type]

                results[case.name] = measure(case, effort, tick, disturbance.sample)
            show_case(console, workload.name, results[case.name])
    return list(results.values())
