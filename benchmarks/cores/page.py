"""The page that ``scripts/bench cores`` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.cores.measurement import (
    BARE,
    LOCAL,
    TORCH,
    WORKERS,
    Measured,
    Resources,
    Used,
    row_of,
)
from benchmarks.cores.programs import PROGRAMS
from benchmarks.document import markdown_table
from benchmarks.report import figure
from benchmarks.scaling.validation import Check
from benchmarks.statistics import Spread, speed_up, spread

_ABOUT = """\
`scripts/bench cores` writes this page. All contenders of a program take turns. *Speed* is that of
workers relative to `local`, formed in each round: the median, least and greatest. *Bare processes*
run the loops of the Python programs and nothing else: the limit. torch has as many threads as there
are workers; it runs Python on one. *Coordinator* is the part of one core that the coordinator used
during the backwards: at 100 % it is full. *Simulated* is what `scripts/simulate` predicts with the
times of the Nodes when one core works alone, and with those that the workers reported, each beside
the time that was measured with it."""


def page(
    machine: Mapping[str, str],
    measured: Mapping[str, Measured],
    resources: Mapping[int, Resources],
    counts: Sequence[int],
) -> str:
    """All tables."""
    blocks = [
        "# One backward on 1, 2, 4 and more cores",
        _ABOUT,
        markdown_table(["machine", ""], [[name, text] for name, text in machine.items()]),
    ]
    for program in PROGRAMS:
        if (found := measured.get(program.name)) is not None:
            blocks += [f"## {program.name}", f"{program.about}.", *_program(found, counts)]
    if resources:
        blocks += ["## Start, idle use and memory", _resources(resources)]
    return "\n\n".join(blocks) + "\n"


def _program(found: Measured, counts: Sequence[int]) -> Iterator[str]:
    times = found.times
    yield f"`local`: {_ms(times.samples.get(row_of(LOCAL)))}."
    if times.fault:
        yield f"**Not what its name says: {times.fault}.**"
    names = ["workers", "ms", "speed", "torch, ms", "speed / torch", "bare processes, ms",
             "speed / bare processes", "coordinator"]  # fmt: skip
    rows = []
    for count in counts:
        mine = row_of(WORKERS, count)
        has_threads = row_of(TORCH, count) in times.samples
        torch = row_of(TORCH, count if has_threads else 1)
        bare = row_of(BARE, count)
        rows.append(
            [
                str(count),
                _ms(times.samples.get(mine)),
                _ratio(speed_up(times, mine, row_of(LOCAL))),
                _ms(times.samples.get(torch)),
                _ratio(speed_up(times, mine, torch)),
                _ms(times.samples.get(bare)),
                _ratio(speed_up(times, mine, bare)),
                _busy(found.coordinator.get(count, [])),
            ]
        )
    yield markdown_table(names, rows)
    if found.checks:
        yield markdown_table(
            ["workers", "tasks", "measured, ms", "simulated", "error", "with the workers' times",
             "error"],
            [_checked(count, check) for count, check in found.checks.items()],
        )  # fmt: skip


def _checked(count: int, check: Check) -> list[str]:
    return [
        str(count),
        str(check.tasks),
        figure(check.measured_us / 1e3),
        figure(check.alone_us / 1e3),
        f"{check.alone_us / check.measured_us - 1:+.0%}",
        figure(check.reported_us / 1e3),
        f"{check.reported_us / check.measured_us - 1:+.0%}",
    ]


def _resources(resources: Mapping[int, Resources]) -> str:
    return markdown_table(
        ["workers", "seconds until all are ready", "part of a core while idle", "memory, MB"],
        [
            [str(count), f"{one.start_s:.2f}", f"{one.idle:.2%}", f"{one.nbytes / 1e6:,.0f}"]
            for count, one in resources.items()
        ],
    )


def _ms(samples: Sequence[float] | None) -> str:
    return f"{figure(spread(samples).median)} ms" if samples else "-"


def _ratio(found: Spread | None) -> str:
    return "-" if found is None else f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


def _busy(used: Sequence[Used]) -> str:
    all_s = sum(one.all_s for one in used)
    return f"{sum(one.busy_s for one in used) / all_s:.1%}" if all_s else "-"
