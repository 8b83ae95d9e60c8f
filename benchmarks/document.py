"""docs/benchmarks.md: the tables of a run, its targets, and those it has not reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.comparison import changes
from benchmarks.in_short import in_short
from benchmarks.machine import is_busy
from benchmarks.peers.process import NOT_INSTALLED
from benchmarks.report import Run, cells_of, figure, published
from benchmarks.rounds import TIME, CaseResult
from benchmarks.statistics import Verdict, spread, verdict
from benchmarks.workloads import WORKLOADS

_INTRODUCTION = """\
# Benchmarks

`scripts/bench --write docs/benchmarks.md` writes this page; no figure on it is typed by hand.

All contenders of a case take turns in every round, in one run on one machine. Each round has
another order, so that each contender follows each other one equally often. Twice between its
rounds a case starts all of its processes anew and warms them up again. Where the work is short, a
sample is the mean of a few backwards in a row, each after its forward pass, following one that
does not count. In the cases *in a training loop* the client does 20 ms of other work before each
forward pass.

Before the measurement the gradients are compared: with those of the other contenders up to
rounding, between mpgrad's modes bit for bit. A ratio compares two samples of one round. The
tables show the median of the rounds, and in brackets the smallest and the largest; more than 1x
is faster. The time is that of `backward()` alone unless the workload says otherwise. For all
contenders alike there are rounds of warm-up, no cyclic garbage collection inside a sample in the
measuring process, and no process is bound to a core. mpgrad has two CPU workers with one BLAS
thread each; its `local` mode has one BLAS thread. torch runs in the measuring process. Every
other peer has its own interpreter, measures there, and answers when its threads are at rest.
Ratios of one run can be compared; milliseconds of different runs cannot. The sentence below a
table says what follows from its medians.

Two processors of a virtual machine may be one core for moments or minutes. So the benchmark keeps
the processors awake if the system allows it (a processor that wakes up may get a core that is in
use). It also takes a sample again if, before or after it, a short loop on both processors took
1.35 times its usual time (`benchmarks/disturbance.py`); the table says how often. `--patience`
limits the time for all of that.

`scripts/bench --with-peers --compare` measures again, and names each speed relative to a peer
that has dropped by more than a fifth since this page was written."""

#: Targets that no workload measures yet.
_NOT_MEASURED = ("More than two workers; GPUs.",)


def document(
    run: Run,
    earlier: Mapping[str, Any] | None = None,
    pictures: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The page, as Markdown.

    Args:
        run: the run.
        earlier: another run; the page shows the changes since then.
        pictures: Markdown that shows a picture, by workload.
    """
    blocks = [_INTRODUCTION, *_warnings(run), _machine(run)]
    for name, results in run.results.items():
        blocks += [f"## {name}", WORKLOADS[name].about, *filter(None, [pictures.get(name)])]
        for result in results:
            blocks += [f"### {name}: {result.name}", _table(result), *_in_short(name, result)]
        targets = _targets(published(results))
        if targets:
            blocks += ["Targets:", targets]
    if earlier is not None:
        blocks += ["## Before and after", *_before_and_after(earlier, run)]
    blocks += ["## Not reached yet", _not_reached(run), "## Not measured here", _not_measured(run)]
    return "\n\n".join(blocks) + "\n"


def _before_and_after(earlier: Mapping[str, Any], run: Run) -> Iterator[str]:
    yield (
        f"Speeds relative to the same peer at commit {earlier['machine']['commit']}, measured on "
        "the same machine in a run of its own, and in this one."
    )
    table = [
        [*found[:3], *(f"{ratio:.2f}x" for ratio in (found.before, found.now, found.factor))]
        for found in changes(earlier, run)
    ]
    names = ["case", "", "relative to", "before", "now", "as fast as before"]
    yield markdown_table(names, table) if table else "The runs have no case in common."


def _warnings(run: Run) -> Iterator[str]:
    if run.is_quick:
        yield "**A quick run with few rounds: the figures are rough.**"
    if is_busy(run.others_share):
        yield (
            f"**Other programs used {run.others_share:.0%} of the cores meanwhile: the figures are "
            "disturbed.**"
        )


def _machine(run: Run) -> str:
    lines = {
        **run.machine,
        "load before": run.load_before,
        "load after": run.load_after,
        "used by others": f"{run.others_share:.0%} of the cores",
        "the processors": run.processors,
        "disturbed": run.disturbance,
        "duration": f"{run.seconds:.0f} s",
    }
    return markdown_table(["machine", ""], [[name, text] for name, text in lines.items()])


def _table(result: CaseResult) -> str:
    if result.fault:
        return f"Not published: {result.fault}."
    return markdown_table(*cells_of(result))


#: Workloads whose contenders do not do the same work.
_NOT_ALIKE = ("transport", "memory")


def _in_short(workload: str, result: CaseResult) -> Iterator[str]:
    if result.fault or result.quantity != TIME or workload in _NOT_ALIKE:
        return
    said = in_short({name: spread(found).median for name, found in result.samples.items() if found})
    if said:
        yield said


def _targets(results: Sequence[CaseResult]) -> str:
    table = [
        [result.name, found.wanted, _measured(found), _outcome(found)]
        for result in results
        for found in _verdicts(result)
    ]
    return markdown_table(["case", "target", "measured", ""], table) if table else ""


def _verdicts(result: CaseResult) -> list[Verdict]:
    return [verdict(result, target) for target in result.targets]


def _measured(found: Verdict) -> str:
    if found.measured is None:
        return "-"
    median, low, high = map(figure, found.measured)
    return f"{median} ({low} .. {high})"


def _outcome(found: Verdict) -> str:
    if found.measured is None:
        return "not measured"
    return "reached" if found.is_reached else f"**missed by {found.missed_by:.0%}**"


def _not_reached(run: Run) -> str:
    """Every target that was missed, furthest first."""
    missed = [
        (found.missed_by, f"- {name}, {result.name}: {found.wanted}; measured {_measured(found)}, "
         f"missed by {found.missed_by:.0%}.")
        for name, results in run.results.items()
        for result in published(results)
        for found in _verdicts(result)
        if found.measured is not None and not found.is_reached
    ]  # fmt: skip
    if not missed:
        return "Every target that was measured in this run was reached."
    return "\n".join(line for _, line in sorted(missed, key=lambda item: -item[0]))


def _absent(run: Run) -> Iterable[str]:
    """Contenders without figures: uninstalled ones once, all others with their case."""
    return {
        f"{contender}: {remark}"
        if remark == NOT_INSTALLED
        else f"{name}, {result.name}: {contender} {remark}": None
        for name, results in run.results.items()
        for result in results
        for contender, remark in result.remarks.items()
        if contender not in result.samples
    }


def _not_measured(run: Run) -> str:
    """The parts that are missing in this run, and in all runs so far."""
    lines = [f"- {text}." for text in _absent(run)]
    lines += [
        f"- {name}, {result.name}: {result.fault}."
        for name, results in run.results.items()
        for result in results
        if result.fault
    ]
    lines += [f"- {name}: left out of this run." for name in WORKLOADS if name not in run.results]
    lines += [
        f"- {name}, {result.name}: {found.wanted} (a contender was not there)."
        for name, results in run.results.items()
        for result in results
        for found in _verdicts(result)
        if found.measured is None
    ]
    return "\n".join([*lines, *(f"- {text}" for text in _NOT_MEASURED)])


def markdown_table(names: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *table]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
