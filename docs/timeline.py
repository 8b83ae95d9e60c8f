"""Draws docs/timeline.svg: one backward of 16 branches in torch and in mpgrad, as it was measured.

python docs/timeline.py [rounds]

Both take turns; of each, the round is drawn that took least. It needs PyTorch.
"""

from __future__ import annotations

import math
import sys
import time
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import mpgrad as mg
from examples.demo.branches import BRANCHES, branches, calibrate, slope_by_leibniz
from mpgrad.autograd.profiling.ranges import NODE

#: Seconds that the backward of one branch takes.
BRANCH_S = 0.02

#: Pixels: of the whole picture, left of the lanes, and of a lane.
WIDTH, LEFT, LANE, GAP, TOP = 900, 150, 34, 10, 30


class Box(NamedTuple):
    """The backward of one branch; seconds since its ``backward()`` began."""

    lane: str
    started: float
    ended: float


class Run(NamedTuple):
    """One ``backward()``."""

    boxes: list[Box]
    took: float


def in_mpgrad(terms: int) -> Run:
    """In workers of the current engine."""
    sixteen = branches(terms)
    loss = sixteen.make_loss()
    with mg.profiler.profile() as prof:
        loss.backward()
    (run,) = prof.recording.backwards
    boxes = [
        Box(f"mpgrad, worker {node.worker}", node.started - run.started, node.ended - run.started)
        for node in prof.recording.ranges
        if node.kind == NODE and node.name == "TimesPiBackward"
    ]
    return Run(boxes, run.ended - run.started)


def in_torch(terms: int) -> Run:
    """The same branches; each notes when its backward ran."""
    noted: list[tuple[float, float]] = []

    class TimesPi(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * math.pi

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            started = time.perf_counter()
            slope = slope_by_leibniz(terms)
            noted.append((started, time.perf_counter()))
            return grad * slope

    leaves = [torch.full((1000,), k + 1.0, requires_grad=True) for k in range(BRANCHES)]
    loss = torch.cat([TimesPi.apply(leaf) for leaf in leaves]).sum()
    begun = time.perf_counter()
    loss.backward()
    took = time.perf_counter() - begun
    return Run([Box("torch", start - begun, end - begun) for start, end in noted], took)


def drawn(ours: Run, theirs: Run) -> str:
    """Both as SVG, in the colours of a light and of a dark page."""
    lanes = ["torch", *sorted({box.lane for box in ours.boxes})]
    height = TOP + len(lanes) * (LANE + GAP) + 30
    scale = (WIDTH - LEFT - 70) / max(ours.took, theirs.took)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>One backward of 16 branches: torch on one lane, mpgrad on two</title>",
        "<style>text{font:13px system-ui,sans-serif;fill:#333}.torch{fill:#9aa0a6}"
        ".mpgrad{fill:#1a73e8}.end{stroke:#333;stroke-dasharray:3 3}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.end{stroke:#ddd}}</style>",
    ]
    for row, lane in enumerate(lanes):
        y = TOP + row * (LANE + GAP)
        run, kind = (theirs, "torch") if lane == "torch" else (ours, "mpgrad")
        parts.append(f'<text x="0" y="{y + LANE / 2 + 4:.0f}">{escape(lane)}</text>')
        parts += [
            f'<rect class="{kind}" x="{LEFT + box.started * scale:.1f}" y="{y}" rx="2" '
            f'width="{max((box.ended - box.started) * scale - 1, 1):.1f}" height="{LANE}"/>'
            for box in run.boxes
            if box.lane == lane
        ]
    for run, first, last in ((theirs, 0, 1), (ours, 1, len(lanes))):
        x = LEFT + run.took * scale
        top, bottom = TOP + first * (LANE + GAP) - 4, TOP + last * (LANE + GAP) - GAP + 4
        parts.append(f'<path class="end" d="M{x:.1f} {top}V{bottom}"/>')
        words = f"{run.took * 1e3:.0f} ms"
        parts.append(f'<text x="{x + 6:.1f}" y="{(top + bottom) / 2 + 4:.0f}">{words}</text>')
    words = f"one backward() of {BRANCHES} branches; each box is the backward of one branch"
    parts.append(f'<text x="{LEFT}" y="16">{words}</text>')
    machine = f"measured: mpgrad {mg.__version__}, torch {torch.__version__}, 2 workers"
    parts.append(f'<text x="{LEFT}" y="{height - 8}">{machine}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure in turns, and draw the shortest of each."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    terms = calibrate(BRANCH_S)
    ours, theirs = [], []
    with mg.Engine(mode="process", cpu_workers=2):
        in_mpgrad(terms)  # the first one loads modules
        for _ in range(rounds):
            ours.append(in_mpgrad(terms))
            theirs.append(in_torch(terms))
    shortest = min(ours, key=lambda run: run.took), min(theirs, key=lambda run: run.took)
    Path(__file__).with_name("timeline.svg").write_text(drawn(*shortest))
    print(*(f"{run.took * 1e3:.1f} ms" for run in shortest))


if __name__ == "__main__":
    main()
