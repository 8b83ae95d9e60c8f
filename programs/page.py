"""Writes docs/evidence/programs.md: public programs, and whether their numbers are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from programs.compare import RELATIVE, Outcome, Verdict
from programs.sources import ROOT, Repository

PAGE = ROOT / "docs" / "evidence" / "programs.md"
_BEGIN, _END = "<!-- written by scripts/programs: begin -->\n", "<!-- end -->\n"


class Row(NamedTuple):
    """One program, with both libraries."""

    source: str
    program: str
    torch: Outcome
    ours: Outcome
    verdict: Verdict

    @property
    def comparable(self) -> bool:
        """Whether it runs with PyTorch."""
        return self.torch.code == 0

    @property
    def line(self) -> str:
        """For a terminal."""
        if not self.comparable:
            word = "torch fails"
        else:
            word = "same" if self.verdict.agrees else "differs" if self.verdict.runs else "fails"
        said = self.torch.error if not self.comparable else self.verdict.text
        return f"{word:<12}{self.source}/{self.program}  {said}".rstrip()


def summary(rows: Sequence[Row]) -> str:
    """The counts."""
    runnable = [row for row in rows if row.comparable]
    run = sum(row.verdict.runs for row in runnable)
    same = sum(row.verdict.agrees for row in runnable)
    return f"Of {len(runnable)} programs {run} run with mpgrad, {same} with PyTorch's numbers."


def write(rows: Sequence[Row], repositories: Sequence[Repository], steps: int) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    lines = [
        f"{summary(rows)} A program may begin {steps} backwards; numbers agree within "
        f"{RELATIVE:.1%}.\n",
        "| program | losses, first and last: PyTorch | mpgrad | |",
        "|---|---|---|---|",
        *(_table_row(row) for row in rows),
        "",
        "| repository | commit | licence |",
        "|---|---|---|",
        *(
            f"| [{it.source}]({it.address}) | `{it.commit[:12]}` | {it.licence} |"
            for it in repositories
        ),
    ]
    PAGE.write_text(f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n\n{_END}{after}")


def _table_row(row: Row) -> str:
    # With spaces, so that it does not look like a path in this repository.
    name = f"{row.source.partition('/')[2]}/{row.program}".replace("/", " / ")
    if not row.comparable:
        return f"| {name} | does not run | | {_cell(row.torch.error)} |"
    said = "same" if row.verdict.agrees else _cell(row.verdict.text)
    return f"| {name} | {_losses(row.torch)} | {_losses(row.ours)} | {said} |"


def _losses(outcome: Outcome) -> str:
    if not outcome.losses:
        return "prints only" if outcome.code == 0 else ""
    return f"{outcome.losses[0]:.6g}, {outcome.losses[-1]:.6g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:160]
