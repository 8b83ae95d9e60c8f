"""One workload in two checkouts of mpgrad, in turns: the gain of a change, and its source.

    python -m benchmarks.before_after BEFORE AFTER WORKLOAD [--rounds N] [--stacks]

Each checkout has its own interpreter, and the two take turns, so that noise affects them alike.
After the times it prints, for each of them: CPU milliseconds of every process of the engine, their
time of waiting for a core, and time in the garbage collector. ``--stacks`` also shows the functions
in which py-spy (if it is installed) finds the client, the coordinator and a worker most often. This
file needs no other file and uses public names only, since the checkouts may be old.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

WARM_UP_ROUNDS = 3
#: The number of backwards for the figures other than times.
COUNTED = 10
#: The environment variable that gives the checkouts the result of ``loops_per_ms``.
LOOPS_PER_MS = "BEFORE_AFTER_LOOPS_PER_MS"
SPY_S, SPY_PER_S, SPY_ROWS = 5, 500, 6

Build = Callable[[Any, Any], tuple[list[Any], Callable[[], Any]]]


def _leaves(mg: Any, random: Any, *shapes: tuple[int, ...]) -> list[Any]:
    return [
        mg.tensor(
            (random.standard_normal(shape) * shape[0] ** -0.5).astype("f4"), requires_grad=True
        )
        for shape in shapes
    ]


def wide(nodes: int) -> Build:
    """That many products of 8 numbers, stacked and summed."""

    def build(mg: Any, random: Any) -> tuple[list[Any], Callable[[], Any]]:
        leaves = _leaves(mg, random, *[(8,)] * nodes)
        factor = mg.tensor(np.full(8, 1.5, "f4"))
        return leaves, lambda: mg.stack([leaf * factor for leaf in leaves]).sum()

    return build


def gelu(mg: Any, random: Any) -> tuple[list[Any], Callable[[], Any]]:
    """GELU by tanh of 4096 x 1024 numbers."""
    from mpgrad.nn import functional

    leaves = _leaves(mg, random, (4096, 1024))
    weights = mg.tensor(random.standard_normal((4096, 1024)).astype("f4"))
    return leaves, lambda: (functional.gelu(leaves[0], approximate="tanh") * weights).sum()


def perceptrons(branches: int, layers: int, width: int) -> Build:
    """numpy_branches and mlp_chain."""

    def build(mg: Any, random: Any) -> tuple[list[Any], Callable[[], Any]]:
        batch = mg.tensor(random.standard_normal((256, width)).astype("f4"))
        leaves = _leaves(mg, random, *[(width, width), (width,)] * (branches * layers))

        def branch(mine: list[Any]) -> Any:
            x = batch
            for weight, bias in zip(mine[::2], mine[1::2], strict=True):
                x = mg.relu(x @ weight + bias)
            return x.mean()

        size = 2 * layers
        return leaves, lambda: mg.stack(
            [branch(leaves[start : start + size]) for start in range(0, len(leaves), size)]
        ).sum()

    return build


def gil(branches: int, milliseconds: float) -> Build:
    """That many Functions whose derivative holds the GIL for that time."""

    def build(mg: Any, random: Any) -> tuple[list[Any], Callable[[], Any]]:
        loops = round(float(os.environ[LOOPS_PER_MS]) * milliseconds)

        class Busy(mg.Function):  # type: ignore[misc, name-defined]
            run_on = "worker"

            @staticmethod
            def forward(ctx: Any, x: Any, loops: int) -> Any:
                ctx.loops = loops
                return x.numpy() * 2

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                number = 0
                for step in range(ctx.loops):
                    number += step & 1
                return grad.numpy() * 2, None

        leaves = _leaves(mg, random, *[(8,)] * branches)
        return leaves, lambda: mg.stack([Busy.apply(leaf, loops) for leaf in leaves]).sum()

    return build


def loops_per_ms() -> float:
    """Rounds of the loop above in a millisecond; counted once, for both checkouts."""
    took = []
    for _ in range(20):
        number, start = 0, time.perf_counter()
        for step in range(100_000):
            number += step & 1
        took.append(time.perf_counter() - start)
    return 100_000 / 1e3 / min(took)


def digits(mg: Any, random: Any) -> tuple[list[Any], Callable[[], Any]]:
    """A perceptron 64-32-10 on 32 images of digits."""
    functional = mg.nn.functional
    leaves = _leaves(mg, random, (64, 32), (32,), (32, 10), (10,))
    images = mg.tensor(random.random((32, 64)).astype("f4"))
    labels = mg.tensor(random.integers(0, 10, 32))
    first, first_bias, second, second_bias = leaves

    def loss() -> Any:
        hidden = mg.relu(images @ first + first_bias)
        return functional.cross_entropy(hidden @ second + second_bias, labels)

    return leaves, loss


#: Name -> mode and what to build.
WORKLOADS: dict[str, tuple[str, Build]] = {
    "gil-20ms": ("process", gil(16, 20.0)),
    "gil-2ms": ("process", gil(16, 2.0)),
    "gil-0.2ms": ("process", gil(16, 0.2)),
    "digits": ("auto", digits),
    "wide": ("process", wide(1_000)),
    "wide-local": ("local", wide(10_000)),
    "gelu-local": ("local", gelu),
    "branches": ("process", perceptrons(8, 4, 512)),
    "chain": ("process", perceptrons(1, 8, 512)),
    "chain-wide": ("process", perceptrons(1, 8, 1024)),
}


# ---------------------------------------------------------------------- in a checkout


class Subject:
    """The workload in this interpreter's mpgrad; every public method answers one question."""

    def __init__(self, workload: str) -> None:
        import mpgrad as mg

        mode, build = WORKLOADS[workload]
        self._leaves, self._forward = build(mg, np.random.default_rng(0))
        self._engine = mg.Engine(mode, cpu_workers=2)
        self._is_process = mode == "process"

    def pids(self) -> list[int]:
        """Client, coordinator, workers."""
        if not self._is_process:
            return [os.getpid()]
        return [os.getpid(), self._engine.coordinator_pid or 0, *self._engine.worker_pids()]

    def seconds(self) -> float:
        """The seconds of one backward."""
        gc.collect()
        return self._backward()

    def cpu(self) -> list[list[float]]:
        """Per process: milliseconds of CPU, and of waiting for a core, per backward."""
        spent = np.zeros((len(self.pids()), 2))
        for _ in range(COUNTED):
            root = self._record()
            before = np.array([_schedule(pid) for pid in self.pids()])
            root.backward()
            spent += np.array([_schedule(pid) for pid in self.pids()]) - before
        return [[round(figure, 2) for figure in row] for row in spent / COUNTED / 1e6]

    def collector(self) -> list[float]:
        """Milliseconds in the client's garbage collector, and how often it ran, per backward."""
        began, found = [0.0], [0.0, 0.0]

        def note(phase: str, _: dict[str, int]) -> None:
            if phase == "start":
                began[0] = time.perf_counter()
            else:
                found[0] += (time.perf_counter() - began[0]) * 1e3
                found[1] += 1

        for _ in range(COUNTED):
            root = self._record()
            gc.callbacks.append(note)
            root.backward()
            gc.callbacks.remove(note)
        return [round(figure / COUNTED, 1) for figure in found]

    def tasks(self) -> int:
        """NodeTasks per backward."""
        before = sum(self._engine.statistics().tasks.values())
        self._backward()
        return sum(self._engine.statistics().tasks.values()) - before

    def run(self) -> None:
        """Run until py-spy has finished."""
        end = time.monotonic() + SPY_S + 2
        while time.monotonic() < end:
            self._backward()

    def serve(self) -> None:
        """Answer questions on stdin."""
        with self._engine:
            for line in sys.stdin:
                print(json.dumps(getattr(self, line.strip())()), flush=True)

    def _record(self) -> Any:
        for leaf in self._leaves:
            leaf.grad = None
        return self._forward()

    def _backward(self) -> float:
        root = self._record()
        start = time.perf_counter()
        root.backward()
        return time.perf_counter() - start


def _schedule(pid: int) -> tuple[int, int]:
    """Nanoseconds on a core and waiting for one, of all threads (``man 5 proc``: schedstat)."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    rows = [[int(word) for word in file.read_text().split()[:2]] for file in files]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


# ---------------------------------------------------------------------- both checkouts


class Checkout:
    """An interpreter with the mpgrad of one checkout."""

    def __init__(self, root: Path, workload: str) -> None:
        self.name = root.name
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--serve", workload],
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, question: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, question: str) -> Any:
        self.begin(question)
        return self.answer()

    def stacks(self) -> list[str]:
        """The functions in which py-spy finds each process most often."""
        pids = self.ask("pids")[:3]
        self.begin("run")
        options = ["-r", str(SPY_PER_S), "-d", str(SPY_S), "-f", "raw", "-F", "-o", "/dev/stdout"]
        spies = [
            subprocess.Popen(
                ["py-spy", "record", *options, "-p", str(pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for pid in pids
        ]
        printed = [spy.communicate()[0] for spy in spies]
        self.answer()
        return [_most_often(text) for text in printed]

    def close(self) -> None:
        self._process.communicate()


def _most_often(text: str) -> str:
    found: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if count.isdecimal():
            found[stack.rpartition(";")[2]] += int(count)
    total = sum(found.values()) or 1
    return "; ".join(f"{100 * n / total:.0f} % {name}" for name, n in found.most_common(SPY_ROWS))


def compare(before: Checkout, after: Checkout, rounds: int) -> None:
    """Print the times and their ratio, formed per round."""
    both = (before, after)
    samples: dict[Checkout, list[float]] = {before: [], after: []}
    for turn in range(-WARM_UP_ROUNDS, rounds):
        for checkout in both if turn % 2 else both[::-1]:
            seconds = checkout.ask("seconds")
            if turn >= 0:
                samples[checkout].append(seconds * 1e3)
    for checkout, found in samples.items():
        print(f"{checkout.name}: {median(found):.2f} ms ({min(found):.2f} .. {max(found):.2f})")
    ratios = [a / b for a, b in zip(*samples.values(), strict=True)]
    print(f"before / after: {median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--stacks", action="store_true", help="where py-spy finds the processes")
    options = parser.parse_args()
    os.environ[LOOPS_PER_MS] = str(loops_per_ms())
    before = Checkout(options.before.resolve(), options.workload)
    after = Checkout(options.after.resolve(), options.workload)
    compare(before, after, options.rounds)
    for checkout in (before, after):
        print(f"{checkout.name}: {checkout.ask('tasks')} tasks;", end=" ")
        print(f"CPU and waiting, ms: {checkout.ask('cpu')};", end=" ")
        print(f"collector, ms and times: {checkout.ask('collector')}")
        if options.stacks:
            print(*(f"    {row}" for row in checkout.stacks()), sep="\n")
    for checkout in (before, after):
        checkout.close()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        Subject(sys.argv[2]).serve()
    else:
        main()
