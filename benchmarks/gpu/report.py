"""The report of ``scripts/gpu_check``: Markdown, from the results of tests and benchmarks."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

#: The target of each test suite and benchmark.
WANTED = {
    "tests": "all tests marked `gpu` pass",
    "front_end": "the tests of `docs/evidence/semantics.md` pass with their tensors on the GPU",
    "front_end_in_workers": "and with their Nodes in GPU workers",
    "hand_over": "a 1 GB tensor to another process in <= 1 ms, no byte copied",
    "node_task": "a NodeTask handed over in <= 150 us",
    "perceptron": "backward of 8 x 8192 in TF32 at >= 90 % of PyTorch's speed",
    "resnet": "ResNet-18, 224 x 224, batch 64: the ratio to PyTorch, with a profile",
    "overlap": "two workers on one GPU: their branches overlap (timeline)",
}


class Part(NamedTuple):
    """The result of one test suite or benchmark."""

    name: str
    has_worked: bool
    #: One line.
    summary: str
    #: Everything else: "text" is shown unchanged.
    figures: dict[str, Any]


def written(parts: Sequence[Part], machine: str, seconds: float, *, is_rehearsal: bool) -> str:
    """The page."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = ["# mpgrad on a GPU", ""]
    if is_rehearsal:
        lines += ["**A rehearsal on the fake driver: no figure here says anything of a GPU.**", ""]
    lines += [f"{now}, {machine}. Written by `scripts/gpu_check` in {seconds:.0f} s.", ""]
    lines += ["| what | wanted | found |", "|---|---|---|"]
    lines += [f"| {part.name} | {WANTED[part.name]} | {_cell(part)} |" for part in parts]
    for part in parts:
        lines += _details(part)
    return "\n".join([*lines, ""])


def _cell(part: Part) -> str:
    said = part.summary.replace("|", "\\|")
    return said if part.has_worked else f"**failed**: {said}"


def _details(part: Part) -> list[str]:
    lines: list[str] = []
    for name, value in part.figures.items():
        if name in ("text", "trace"):
            lines += ["", "```", str(value).rstrip(), "```"]
        elif value:
            lines += ["", f"{name}: {value}"]
    return ["", f"## {part.name}", *lines] if lines else []
