"""docs/evidence/conformance.md: how many methods pass, and of each that is left the reason."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.methods import Method, Outcome

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "conformance.md"

_INTRODUCTION = """\
# PyTorch's own autograd tests

`scripts/conformance` runs the test methods of PyTorch 2.6's `test_autograd.py` with mpgrad in
place of `torch`, each method in a separate process, in each mode of the engine. (It gets the file
from Debian's source package; the file is not part of mpgrad.) It runs the {total} methods that
need only autograd on the CPU: no GPU, forward mode, sparse or nested tensors, JIT, or classes
that dispatch.

PyTorch 2.13 itself passes 283 of them; eight changed after 2.6.

`conformance/harness.py` replaces PyTorch's test framework, and `torch._C._WeakTensorRef` by a
weak reference. Where a test expects `torch` in a message, `mpgrad` or `mg` also counts, and
`torch.autograd.torch` is `torch`.

`scripts/conformance --write` writes this page; `conformance/left.toml` contains the reasons.
"""

Found = Mapping[str, Mapping[Method, Outcome]]


def unexpected(found: Found, reasons: Mapping[str, str]) -> list[str]:
    """What does not fit the reasons, a line each."""
    lines = []
    for mode, by_method in found.items():
        for method, outcome in by_method.items():
            reason = _reason(reasons, mode, method)
            if outcome.status != "passed" and not reason:
                lines.append(f"{mode}: {method.name} fails, and left.toml has no reason")
            if outcome.status == "passed" and reason:
                lines.append(f"{mode}: {method.name} passes: its reason in left.toml can go")
    return lines


def _reason(reasons: Mapping[str, str], mode: str, method: Method) -> str:
    """Why a method does not pass in a mode: its name stands for all, or the mode before it."""
    return reasons.get(method.name) or reasons.get(f"{mode}: {method.name}", "")


def write(methods: Sequence[Method], found: Found, reasons: Mapping[str, str]) -> None:
    """Write the page."""
    DOCUMENT.write_text(text(methods, found, reasons))


def text(methods: Sequence[Method], found: Found, reasons: Mapping[str, str]) -> str:
    """The page."""
    groups = collections.Counter(method.group for method in methods)
    parts = [
        _INTRODUCTION.format(total=len(methods)),
        f"| about | methods | {' | '.join(f'pass in `{mode}`' for mode in found)} |",
        "|---" * (2 + len(found)) + "|",
    ]
    for group, total in [*groups.items(), ("**all**", len(methods))]:
        passed = [
            sum(
                outcome.status == "passed"
                for method, outcome in by_method.items()
                if group in (method.group, "**all**")
            )
            for by_method in found.values()
        ]
        parts.append(f"| {group} | {total} | {' | '.join(map(str, passed))} |")
    parts += ["", "## Methods that do not pass, and why", "", "| method | why |", "|---|---|"]
    left = [m for m in methods if any(by[m].status != "passed" for by in found.values() if m in by)]
    parts += [f"| `{m.name.removeprefix('test_')}` | {_why(m, found, reasons)} |" for m in left]
    return "\n".join(parts) + "\n"


def _why(method: Method, found: Found, reasons: Mapping[str, str]) -> str:
    failing = [m for m, by in found.items() if method in by and by[method].status != "passed"]
    only = "" if len(failing) == len(found) else f"(in {', '.join(f'`{m}`' for m in failing)}) "
    return only + (_reason(reasons, failing[0], method) or "not explained yet")
