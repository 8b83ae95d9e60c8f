"""docs/evidence/operators.md: what of PyTorch's databases is here, and what differs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.operator_database import layers_and_optimizers
from tests.operator_database.verdict import Verdict

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "operators.md"
LEFT = Path(__file__).with_name("left.toml")

_INTRODUCTION = """\
# Operators, layers and optimizers

PyTorch comes with databases of its operators, layers and optimizers, with samples of their
arguments and with arguments that they refuse (`op_db`, `module_db` and `optim_db` in
`torch.testing._internal`). This page says what mpgrad makes of them, beside PyTorch {version}.

{counts}

Tried were: values, dtypes and shapes in float64, float32, float16, complex128, int64, int32, uint8
and bool; first and second gradients of a weighted sum; whether the result lies in the memory of an
argument; the method, the in-place method, Python's operators and `out=`; and whether wrong
arguments raise PyTorch's class of error. Of operators that draw random numbers dtypes and shapes
alone are compared, and of those that order elements the places of equal ones are not. Layers get
PyTorch's parameters and buffers, by name; their gradients are those of inputs and parameters.
Optimizers take {steps} steps; parameters and the state, with its names, are compared.

{trials}

`python -m tests.operator_database --write` writes this page where PyTorch is installed;
`tests/operator_database/left.toml` holds the reasons.

`∂` derivative, `∂∂` second derivative, `out` takes `out=`, `_` has an in-place method, `c` takes
complex numbers.
"""

_POINTS = """\
The operators were also tried at special points: with all tensors, and with the first alone, \
at 0, 1, -1, 0.5 (ties), 40, -40, infinity and minus infinity, at matrices of rank 1, and without \
rows or columns. Right: {right}. `tests/operator_database/special_points.py` does it, and \
`special_left.toml` holds the reasons."""

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
    things = list(dict.fromkeys(thing for verdict in here for thing in verdict.tried))
    trials = [
        f"{thing} {sum(v.right.get(thing, 0) for v in here)} of "
        f"{sum(v.tried.get(thing, 0) for v in here)}"
        for thing in things
    ]
    parts = [
        _INTRODUCTION.format(
            counts=_counts(verdicts),
            steps=layers_and_optimizers.STEPS,
            version=version,
            trials=_wrapped(f"Right: {', '.join(trials)}."),
        ),
        "## What differs",
        "",
        "| | in | why |",
        "|---|---|---|",
    ]
    for verdict in here:
        by_reason: dict[str, list[str]] = {}
        for thing in verdict.differs:
            by_reason.setdefault(left.get(verdict.name, {}).get(thing, "?"), []).append(thing)
        parts += [f"| `{verdict.name}` | {', '.join(t)} | {why} |" for why, t in by_reason.items()]
    parts += _special_points()
    for kind, of_kind in _kinds(verdicts).items():
        parts += ["", f"## {kind} that are here", "", "| | |", "|---|---|"]
        for verdict in of_kind:
            if verdict.is_here:
                marks = [mark for mark, thing in _MARKS if verdict.right.get(thing)]
                parts.append(f"| `{verdict.name}` | {' '.join(marks)} |")
        missing = [verdict.name for verdict in of_kind if not verdict.is_here]
        if missing:
            parts += ["", f"## {kind} that are missing: {len(missing)}", ""]
            parts.append(_wrapped(", ".join(f"`{name}`" for name in missing) + "."))
    return "\n".join([*parts, ""])


def _special_points() -> list[str]:
    from tests.operator_database import special_points  # it writes this page

    counts = special_points.read()[1]
    right = ", ".join(f"{thing} {n['right']} of {n['tried']}" for thing, n in counts.items())
    lines = [_wrapped(_POINTS.format(right=right)), "", "| why | where |", "|---|---|"]
    for why, places in special_points.reasons().items():
        by_operator: dict[str, dict[str, None]] = {}
        for place in places:
            name, thing, _ = place.split(" | ")
            by_operator.setdefault(name, {})[thing] = None
        lines.append(f"| {why} | {', '.join(f'`{name}`' for name in by_operator)} |")
    return ["", "## Special points", "", *lines]


def _kinds(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    kinds: dict[str, list[Verdict]] = {"Operators": [], "Layers": [], "Optimizers": []}
    for verdict in verdicts:
        is_layer = layers_and_optimizers.is_layer(verdict.name)
        is_optimizer = layers_and_optimizers.is_optimizer(verdict.name)
        kinds["Layers" if is_layer else "Optimizers" if is_optimizer else "Operators"] += [verdict]
    return kinds


def _counts(verdicts: Sequence[Verdict]) -> str:
    lines = ["| | in PyTorch | here | right on all that was tried |", "|---|---|---|---|"]
    for kind, of_kind in _kinds(verdicts).items():
        here = [verdict for verdict in of_kind if verdict.is_here]
        right = sum(not verdict.differs for verdict in here)
        lines.append(f"| {kind.lower()} | {len(of_kind)} | {len(here)} | {right} |")
    return "\n".join(lines)


def _wrapped(words: str, width: int = 99) -> str:
    lines, line = [], ""
    for word in words.split(" "):
        if len(line) + len(word) + 1 > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
