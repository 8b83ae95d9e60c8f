"""docs/operators.md: which operators of PyTorch's database are here, and what differs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.operator_database.verdict import Verdict

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
LEFT = Path(__file__).with_name("left.toml")

_INTRODUCTION = """\
# Operators

PyTorch comes with a database of its operators, with samples of their arguments and with arguments
that they refuse (`torch.testing._internal.common_methods_invocations.op_db`). This page says what
mpgrad makes of it: of {names} public names {here} are here, of which {right} give what PyTorch
{version} gives on all that was tried; {left} differ in something that the table names.

Tried were: values, dtypes and shapes in float64, float32, float16, complex128, int64, int32, uint8
and bool; first and second gradients of a weighted sum; whether the result lies in the memory of an
argument; the method, the in-place method and `out=`; and whether wrong arguments raise PyTorch's
class of error. Of operators that draw random numbers dtypes and shapes alone are compared, and of
those that order elements the places of equal ones are not.

{trials}

`python -m tests.operator_database --write` writes this page where PyTorch is installed;
`tests/operator_database/left.toml` holds the reasons.

`∂` derivative, `∂∂` second derivative, `out` takes `out=`, `_` has an in-place method, `c` takes
complex numbers.
"""

_MARKS = (
    ("∂", "gradient"),
    ("∂∂", "second gradient"),
    ("out", "out="),
    ("_", "in place"),
    ("c", "complex128"),
)


def reasons() -> dict[str, dict[str, str]]:
    """By operator and thing that was tried, why it differs."""
    return tomllib.loads(LEFT.read_text())


def unexpected(verdicts: Sequence[Verdict], left: dict[str, dict[str, str]]) -> list[str]:
    """What does not fit the reasons, a line each."""
    lines = []
    for verdict in verdicts:
        known = left.get(verdict.name, {})
        for thing, text in verdict.differs.items():
            if thing not in known:
                lines.append(f"{verdict.name}, {thing}: {text}")
        lines += [
            f"{verdict.name}, {thing} is right: its reason in left.toml can go"
            for thing in known.keys() - verdict.differs.keys()
        ]
    return lines


def text(verdicts: Sequence[Verdict], version: str) -> str:
    """The page."""
    left = reasons()
    here = [verdict for verdict in verdicts if verdict.is_here]
    differing = [verdict for verdict in here if verdict.differs]
    things = list(dict.fromkeys(thing for verdict in here for thing in verdict.tried))
    trials = [
        f"{thing} {sum(v.right.get(thing, 0) for v in here)} of "
        f"{sum(v.tried.get(thing, 0) for v in here)}"
        for thing in things
    ]
    parts = [
        _INTRODUCTION.format(
            names=len(verdicts),
            here=len(here),
            right=len(here) - len(differing),
            left=len(differing),
            version=version,
            trials=_wrapped(f"Right: {', '.join(trials)}."),
        ),
        "## What differs",
        "",
        "| operator | in | why |",
        "|---|---|---|",
    ]
    for verdict in differing:
        by_reason: dict[str, list[str]] = {}
        for thing in verdict.differs:
            by_reason.setdefault(left.get(verdict.name, {}).get(thing, "?"), []).append(thing)
        parts += [f"| `{verdict.name}` | {', '.join(t)} | {why} |" for why, t in by_reason.items()]
    parts += ["", "## What is here", "", "| operator | |", "|---|---|"]
    for verdict in here:
        marks = [mark for mark, thing in _MARKS if verdict.right.get(thing)]
        parts.append(f"| `{verdict.name}` | {' '.join(marks)} |")
    missing = [verdict.name for verdict in verdicts if not verdict.is_here]
    parts += ["", f"## What is missing: {len(missing)}", ""]
    parts.append(_wrapped(", ".join(f"`{name}`" for name in missing) + "."))
    return "\n".join([*parts, ""])


def _wrapped(words: str, width: int = 99) -> str:
    lines, line = [], ""
    for word in words.split(" "):
        if len(line) + len(word) + 1 > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
