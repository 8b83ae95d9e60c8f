"""Compares ``auto`` with the better of both modes in training loops, on a calm and a busy machine.

    python -m benchmarks.auto [PROGRAM ...] [--steps N]

Each mode has its own process, new for each program, so that no mode uses the costs that another one
has learned. They take turns, step by step (forward and backward), so that noise affects them alike:
only the ratios count. BLAS has one thread, in forward, too. On the busy machine another process
spins on each core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.gil_work import spin
from benchmarks.loads import loops_for
from mpgrad import nn
from mpgrad.base.machine import available_cpus

ROOT = Path(__file__).resolve().parents[1]
MODES = ("local", "process", "auto")
STEPS = 50
#: The number of steps before those whose total is compared.
SETTLING = 4
#: The number of those that a program begins with.
FIRST = 10
#: Ends with its parent.
SPIN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""

#: A step of a training loop, given its number.
Step = Callable[[int], object]
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


def perceptrons() -> Graph:
    """Ten small ones."""
    models = [
        nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        for _ in range(10)
    ]
    x = mg.rand(256, 64)
    leaves: list[mg.Tensor] = [leaf for model in models for leaf in model.parameters()]
    return leaves, lambda _: mg.stack([model(x).square().mean() for model in models]).sum()


def trajectories() -> Graph:
    """Eight solutions of a neural differential equation, with 15 Runge-Kutta steps each."""
    first, second = nn.Linear(2, 32), nn.Linear(32, 2)
    starts = [2 * mg.rand(2) - 1 for _ in range(8)]

    def slope(y: mg.Tensor) -> mg.Tensor:
        return second(mg.tanh(first(y**3)))

    def end(y: mg.Tensor, h: float = 0.05) -> mg.Tensor:
        for _ in range(15):
            k1 = slope(y)
            k2 = slope(y + h / 2 * k1)
            k3 = slope(y + h / 2 * k2)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(y + h * k3))
        return y.abs().mean()

    leaves: list[mg.Tensor] = [*first.parameters(), *second.parameters()]
    return leaves, lambda _: mg.stack([end(start) for start in starts]).sum()


#: Graphs by name; those whose name says how long their branches take get a number of loops.
GRAPHS: dict[str, Callable[[int], Graph]] = {
    "16 x 20 ms": branches_of,
    "16 x 2 ms": branches_of,
    "8 branches of products": lambda _: products(512, lambda _: 256),
    "deep": lambda _: deep(),
    "tiny": lambda _: tiny(),
    "other shapes in each step": lambda _: products(256, lambda step: 200 + 7 * step),
    "10 small perceptrons": lambda _: perceptrons(),
    "neural ODE": lambda _: trajectories(),
}
_MILLISECONDS = {"16 x 20 ms": 20.0, "16 x 2 ms": 2.0}
#: Custom Functions as their authors write them (``tests.process.natural_programs``), 8 items of 1
#: to 5 ms, as a loop and as a map.
NATURAL = ("ODE ensemble", "portfolio", "soft-DTW", "Monte Carlo", "molecules", "memo")
WAYS = {f"{name}, {way}": (name, way) for name in NATURAL for way in ("loop", "map")}
PROGRAMS = (*GRAPHS, *WAYS)


def step_of(program: str, loops: int) -> Step:
    """The step of a program; it says where its Functions run."""
    if program in WAYS:
        from tests.process import natural_programs

        name, way = WAYS[program]
        natural_programs.EFFORT["work"] = 2
        function = natural_programs.PROGRAMS[name].function
        return lambda _: natural_programs.step(function, 8, maps=way == "map")
    leaves, loss = GRAPHS[program](loops)

    def step(number: int) -> None:
        for leaf in leaves:
            leaf.grad = None
        loss(number).backward()

    return step


# ---------------------------------------------------------------------- one mode


def serve(program: str, loops: int, mode: str) -> None:
    """Print the time of the start; then for each step number on stdin its seconds, and whether its
    backward ran in workers."""
    warnings.simplefilter("ignore", mg.errors.PerformanceWarning)
    step = step_of(program, loops)
    began = time.perf_counter()
    with mg.Engine(mode, cpu_workers=2) as engine:
        print(time.perf_counter() - began, flush=True)
        for line in sys.stdin:
            before = engine.statistics().backwards_process
            began = time.perf_counter()
            step(int(line))
            took = time.perf_counter() - began
            print(json.dumps([took, engine.statistics().backwards_process > before]), flush=True)


class Subject:
    """A process that runs one program in one mode."""

    def __init__(self, program: str, loops: int, mode: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.auto", "--serve", program, str(loops), mode],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
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
        """Run one step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        took, in_workers = self._read()
        self.took_s.append(took)
        self.went += "p" if in_workers else "l"

    def total_ms(self) -> float:
        """The total of the steps that are compared."""
        return 1e3 * sum(self.took_s[SETTLING:])

    def first_ms(self) -> float:
        """The total of the first steps, with the start of the engine."""
        return 1e3 * (self.start_s + sum(self.took_s[:FIRST]))

    def close(self) -> None:
        self._process.communicate()


# ---------------------------------------------------------------------- all of them


def compare(program: str, loops: int, steps: int) -> str:
    """Run one program in all modes: the end of its row."""
    subjects = {mode: Subject(program, loops, mode) for mode in MODES}
    for step in range(steps):
        for turn in range(len(MODES)):
            subjects[MODES[(step + turn) % len(MODES)]].step(step)
    for subject in subjects.values():
        subject.close()
    totals, firsts = (
        [of(subject) for subject in subjects.values()]
        for of in (Subject.total_ms, Subject.first_ms)
    )
    return "".join(f"{total:9.1f}" for total in totals) + (
        f"{totals[2] / min(totals[:2]):7.2f}{firsts[2] / min(firsts[:2]):7.2f}"
        f"  {subjects['auto'].went}"
    )


@contextlib.contextmanager
def busy_cores() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Another process spins on each core."""
    spinners = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())])
        for _ in range(available_cpus())
    ]
    try:
        yield spinners
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


MACHINES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "calm": contextlib.nullcontext,
    "busy": busy_cores,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    names = ", ".join(f'"{name}"' for name in PROGRAMS)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"any of {names}")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    print(
        f"Totals of steps in ms from step {SETTLING + 1} on; auto / the better mode, and the same "
        f"of the first {FIRST} steps with the start of the workers; where auto ran each backward "
        f"(l or p)\n{'':32}{'local':>9}{'process':>9}{'auto':>9}{'total':>7}{'first':>7}"
    )
    for program in options.programs or PROGRAMS:
        # Counted once: the modes have to do the same, however fast the processor is just now.
        loops = loops_for(_MILLISECONDS[program]) if program in _MILLISECONDS else 0
        for name, machine in MACHINES.items():
            with machine():
                print(f"{program:27} {name}{compare(program, loops, options.steps)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
