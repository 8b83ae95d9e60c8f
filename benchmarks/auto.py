"""Compares ``auto`` with the better of both modes, on six graphs, as in a training loop.

    python -m benchmarks.auto [GRAPH ...] [--steps N]

Each mode has its own process, new for each graph, so that no mode uses the costs that another one
has learned. They take turns, step by step, so that noise affects them alike: only the ratios count.
Other programs on the machine take time from the workers first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.gil_work import spin
from benchmarks.loads import loops_for

ROOT = Path(__file__).resolve().parents[1]
MODES = ("local", "process", "auto")
STEPS = 50
#: The number of steps before those whose total is compared.
SETTLING = 4

#: A function from the number of a step to its loss; its leaves are those of the graph.
Graph = tuple[list[mg.Tensor], Callable[[int], mg.Tensor]]


class Busy(mg.Function):
    """Holds the GIL for a number of loops in its derivative."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, loops: int) -> Any:
        ctx.loops = loops
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * (2 + 0 * spin(ctx.loops)), None


def branches_of(loops: int, count: int = 16) -> Graph:
    """Functions that hold the GIL for so many loops."""
    leaves = [mg.ones(8, requires_grad=True) for _ in range(count)]
    return leaves, lambda _: mg.stack([Busy.apply(leaf, loops) for leaf in leaves]).sum()


def products(width: int, rows: Callable[[int], int]) -> Graph:
    """Eight branches of four layers; ``rows`` says how many rows a step has."""
    random = np.random.default_rng(0)
    leaves = [
        mg.tensor((random.standard_normal((width, width)) / width**0.5).astype("f4"))
        for _ in range(32)
    ]
    for leaf in leaves:
        leaf.requires_grad = True

    def branch(x: mg.Tensor, weights: list[mg.Tensor]) -> mg.Tensor:
        for weight in weights:
            x = mg.relu(x @ weight)
        return x.mean()

    def loss(step: int) -> mg.Tensor:
        x = mg.ones(rows(step), width)
        return mg.stack([branch(x, leaves[at : at + 4]) for at in range(0, 32, 4)]).sum()

    return leaves, loss


def deep() -> Graph:
    """2,000 products of 1,000 numbers in a chain."""
    leaf = mg.ones(1000, requires_grad=True)

    def loss(_: int) -> mg.Tensor:
        x = leaf
        for _ in range(2000):
            x = x * 1.0001
        return x.sum()

    return [leaf], loss


def tiny() -> Graph:
    """Three operators on 8 numbers."""
    leaves = [mg.ones(8, requires_grad=True) for _ in range(2)]
    return leaves, lambda _: (leaves[0] * leaves[1] + leaves[0]).sum()


#: Graphs by name; those whose name says how long their branches take get a number of loops.
GRAPHS: dict[str, Callable[[int], Graph]] = {
    "16 x 20 ms": branches_of,
    "16 x 2 ms": branches_of,
    "8 branches of products": lambda _: products(512, lambda _: 256),
    "deep": lambda _: deep(),
    "tiny": lambda _: tiny(),
    "other shapes in each step": lambda _: products(256, lambda step: 200 + 7 * step),
}
_MILLISECONDS = {"16 x 20 ms": 20.0, "16 x 2 ms": 2.0}


# ---------------------------------------------------------------------- one mode


def serve(graph: str, loops: int, mode: str) -> None:
    """Print the time of the start; then for each step number on stdin the seconds of backward, and
    whether it ran in workers."""
    leaves, loss = GRAPHS[graph](loops)
    began = time.perf_counter()
    with mg.Engine(mode, cpu_workers=2) as engine:
        print(time.perf_counter() - began, flush=True)
        for line in sys.stdin:
            for leaf in leaves:
                leaf.grad = None
            root, before = loss(int(line)), engine.statistics().backwards_process
            began = time.perf_counter()
            root.backward()
            took = time.perf_counter() - began
            print(json.dumps([took, engine.statistics().backwards_process > before]), flush=True)


class Subject:
    """A process that runs one graph in one mode."""

    def __init__(self, graph: str, loops: int, mode: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.auto", "--serve", graph, str(loops), mode],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start_s: float = self._read()
        self.took_s: list[float] = []
        self.went = ""

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def step(self, number: int) -> None:
        """Run one backward."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        took, in_workers = self._read()
        self.took_s.append(took)
        self.went += "p" if in_workers else "l"

    def total_ms(self) -> float:
        """The total of the steps that are compared."""
        return 1e3 * sum(self.took_s[SETTLING:])

    def close(self) -> None:
        self._process.communicate()


# ---------------------------------------------------------------------- all of them


def compare(graph: str, steps: int) -> None:
    """Run one graph in all modes, and print a row."""
    # Counted once: the modes have to do the same, however fast the processor is just now.
    loops = loops_for(_MILLISECONDS[graph]) if graph in _MILLISECONDS else 0
    subjects = {mode: Subject(graph, loops, mode) for mode in MODES}
    for step in range(steps):
        for turn in range(len(MODES)):
            subjects[MODES[(step + turn) % len(MODES)]].step(step)
    for subject in subjects.values():
        subject.close()
    local, process, auto = subjects.values()
    totals = [subject.total_ms() for subject in (local, process, auto)]
    first_s = min(local.took_s[0], process.start_s + process.took_s[0])
    print(
        f"{graph:<26} {totals[0]:8.0f} {totals[1]:8.0f} {totals[2]:8.0f} "
        f"{totals[2] / min(totals[:2]):6.2f} {auto.took_s[0] / first_s:6.2f}  {auto.went}",
        flush=True,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help=f"any of {', '.join(GRAPHS)}")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if unknown := set(options.graphs) - set(GRAPHS):
        parser.error(f"no such graph: {', '.join(sorted(unknown))}")
    print(
        f"Totals in ms from step {SETTLING + 1} on; auto / the better mode, the same of the first "
        "step (with the start of the workers); where auto ran each step (l or p)\n"
        f"{'':<26} {'local':>8} {'process':>8} {'auto':>8} {'total':>6} {'first':>6}"
    )
    for graph in options.graphs or GRAPHS:
        compare(graph, options.steps)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
