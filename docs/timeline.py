"""Draws docs/timeline.svg: a training step in torch, in a pool and in mpgrad, as it was measured.

python docs/timeline.py [rounds]

The step has 16 independent items; the forward and the backward of each are loops in Python. All
take turns; of each, the round is drawn that took least. It needs PyTorch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import mpgrad as mg
from examples.demo.branches import calibrate, slope_by_leibniz
from mpgrad.autograd.profiling.ranges import FUNCTION, NODE

ITEMS = 16
#: Seconds of each pass of an item.
PASS_S = 0.02
FORWARD, BACKWARD, BOTH = "forward", "backward", "both"

#: Pixels: of the whole picture, left of the lanes, and of a lane.
WIDTH, LEFT, LANE, GAP, TOP = 900, 160, 30, 8, 30


class Box(NamedTuple):
    """One pass of one item; seconds of ``time.perf_counter``."""

    lane: str
    kind: str
    started: float
    ended: float


class Step(NamedTuple):
    """One step of one contender."""

    boxes: list[Box]
    began: float
    ended: float

    @property
    def took(self) -> float:
        """Seconds."""
        return self.ended - self.began


class TimesPi(mg.Function):
    """x * pi; each pass computes pi anew."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, terms: int) -> mg.Tensor:
        ctx.terms = terms
        return x * slope_by_leibniz(terms)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * slope_by_leibniz(ctx.terms), None


def in_mpgrad(terms: int) -> Step:
    """In workers of the current engine."""
    leaves = [mg.full((1000,), k + 1.0, requires_grad=True) for k in range(ITEMS)]
    with mg.profiler.profile() as prof:
        began = time.perf_counter()
        mg.cat(TimesPi.map(leaves, [terms] * ITEMS)).sum().backward()
        ended = time.perf_counter()
    boxes = [
        Box(f"mpgrad, worker {one.worker}", kind, one.started, one.ended)
        for one in prof.recording.ranges
        for kind, of, name in (
            (FORWARD, FUNCTION, "TimesPi.apply"),
            (BACKWARD, NODE, "TimesPiBackward"),
        )
        if one.kind == of and one.name == name and one.worker is not None
    ]
    return Step(boxes, began, ended)


def in_torch(terms: int) -> Step:
    """As a loop; each item notes when its passes ran."""
    boxes: list[Box] = []

    def pi(kind: str) -> float:
        started = time.perf_counter()
        found = slope_by_leibniz(terms)
        boxes.append(Box("torch", kind, started, time.perf_counter()))
        return found

    class TorchTimesPi(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * pi(FORWARD)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * pi(BACKWARD)

    leaves = [torch.full((1000,), k + 1.0, requires_grad=True) for k in range(ITEMS)]
    began = time.perf_counter()
    torch.cat([TorchTimesPi.apply(leaf) for leaf in leaves]).sum().backward()
    return Step(boxes, began, time.perf_counter())


def value_and_slope(terms: int) -> tuple[float, float, float, float, int]:
    """What a task of the pool computes: no autograd, so the slope is written by hand."""
    started = time.perf_counter()
    value, slope = slope_by_leibniz(terms), slope_by_leibniz(terms)
    return value, slope, started, time.perf_counter(), os.getpid()


def in_a_pool(terms: int, pool: ProcessPoolExecutor) -> Step:
    """Value and sensitivity of each item, both in one task."""
    began = time.perf_counter()
    found = list(pool.map(value_and_slope, [terms] * ITEMS))
    ended = time.perf_counter()
    workers = sorted({pid for *_, pid in found})
    boxes = [
        Box(f"pool, process {workers.index(pid)}", BOTH, started, ended)
        for _, _, started, ended, pid in found
    ]
    return Step(boxes, began, ended)


def drawn(steps: list[Step]) -> str:
    """The steps as SVG, in the colours of a light and of a dark page."""
    lanes = [(lane, step) for step in steps for lane in sorted({box.lane for box in step.boxes})]
    height = TOP + len(lanes) * (LANE + GAP) + 30
    scale = (WIDTH - LEFT - 70) / max(step.took for step in steps)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>One training step of 16 items: torch on one lane, a pool and mpgrad on two</title>",
        "<style>text{font:13px system-ui,sans-serif;fill:#333}.forward{fill:#8ab4f8}"
        ".backward{fill:#1a73e8}.both{fill:#9aa0a6}.end{stroke:#333;stroke-dasharray:3 3}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.end{stroke:#ddd}}</style>",
    ]
    for row, (lane, step) in enumerate(lanes):
        y = TOP + row * (LANE + GAP)
        parts.append(f'<text x="0" y="{y + LANE / 2 + 4:.0f}">{escape(lane)}</text>')
        parts += [
            f'<rect class="{box.kind}" x="{LEFT + (box.started - step.began) * scale:.1f}" y="{y}" '
            f'rx="2" width="{max((box.ended - box.started) * scale - 1, 1):.1f}" height="{LANE}"/>'
            for box in step.boxes
            if box.lane == lane
        ]
    for step in steps:
        rows = [row for row, (_, of) in enumerate(lanes) if of is step]
        x = LEFT + step.took * scale
        top, bottom = (
            TOP + rows[0] * (LANE + GAP) - 4,
            TOP + (rows[-1] + 1) * (LANE + GAP) - GAP + 4,
        )
        parts.append(f'<path class="end" d="M{x:.1f} {top}V{bottom}"/>')
        words = f"{step.took * 1e3:.0f} ms"
        parts.append(f'<text x="{x + 6:.1f}" y="{(top + bottom) / 2 + 4:.0f}">{words}</text>')
    words = f"one step of {ITEMS} items: forward (light) and backward (dark)"
    parts.append(f'<text x="{LEFT}" y="16">{words}</text>')
    machine = f"measured: mpgrad {mg.__version__}, torch {torch.__version__}, 2 workers"
    parts.append(f'<text x="{LEFT}" y="{height - 8}">{machine}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure in turns, and draw the shortest of each."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    terms = calibrate(PASS_S)
    with mg.Engine(mode="process", cpu_workers=2), ProcessPoolExecutor(2) as pool:
        contenders: list[Callable[[], Step]] = [
            lambda: in_torch(terms),
            lambda: in_a_pool(terms, pool),
            lambda: in_mpgrad(terms),
        ]
        for contender in contenders:
            contender()  # the first one loads modules
        found = [[contender() for contender in contenders] for _ in range(rounds)]
    shortest = [min(steps, key=lambda step: step.took) for steps in zip(*found, strict=True)]
    Path(__file__).with_name("timeline.svg").write_text(drawn(shortest))
    print(*(f"{step.took * 1e3:.1f} ms" for step in shortest))


if __name__ == "__main__":
    main()
