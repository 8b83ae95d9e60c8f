"""overhead: nodes that do next to nothing, so that what is left is the engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from benchmarks.rounds import Case, Target
from benchmarks.runners import ForwardPass, mpgrad_runners, torch_runners

ABOUT = """\
Graphs of nodes on 8 float32 numbers. *chain*: each node feeds the next. *wide*: products of as many
leaves, stacked and summed. *tree*: a binary tree of additions over as many leaves. The figure is
time per executed node; wide and tree also accumulate into one leaf per node, which is not counted.
*digits MLP* is a real small graph, whole: 64-32-10, batch 32, log-softmax and negative
log-likelihood."""

PROCESS = "mpgrad process"
TORCH = "torch 1 thread"
AUTO = "mpgrad auto"
ELEMENTS = 8
#: Rounds by number of nodes: large graphs take long, small ones are noisy.
_ROUNDS = {100: 15, 1_000: 15, 10_000: 3}


def cases(quick: bool) -> Generator[Case, None, None]:
    """Three shapes in up to three sizes, and one small network."""
    with mpgrad_runners("process", "local") as runners:
        runners += torch_runners(1)
        for shape, program in (("chain", _chain), ("wide", _wide), ("tree", _tree)):
            for nodes, rounds in _ROUNDS.items():
                if quick and nodes > 1_000:
                    continue
                yield Case(
                    f"{shape}, {nodes:,} nodes",
                    [
                        runner.contender(_sized(program, nodes), 1000 // nodes or 1)
                        for runner in runners
                    ],
                    (TORCH,),
                    3 if quick else rounds,
                    "us per node",
                    1e6 / nodes,
                    (Target(PROCESS, at_most=10.0),),
                )
    with mpgrad_runners("auto", "local") as runners:
        runners += torch_runners(1)
        yield Case(
            "digits MLP",
            [runner.contender(_digits, 20) for runner in runners],
            (TORCH,),
            5 if quick else 31,
            targets=(Target(AUTO, at_most=0.35),),
        )


def _sized(program: Callable[[Any, int], ForwardPass], nodes: int) -> Callable[[Any], ForwardPass]:
    return lambda library: program(library, nodes)


def _leaves(library: Any, count: int) -> list[Any]:
    random = np.random.default_rng(0)
    values = random.standard_normal((count, ELEMENTS), np.float32)
    return [library.tensor(row, requires_grad=True) for row in values]


def _chain(library: Any, nodes: int) -> ForwardPass:
    """``nodes`` nodes: products with a constant, and the sum."""
    leaves = _leaves(library, 1)

    def forward() -> Any:
        (y,) = leaves
        for _ in range(nodes - 1):
            y = y * 1.0001
        return y.sum()

    return ForwardPass(leaves, forward)


def _wide(library: Any, nodes: int) -> ForwardPass:
    """``nodes`` nodes: one product per leaf, the stack and the sum."""
    leaves = _leaves(library, nodes - 2)
    return ForwardPass(leaves, lambda: library.stack([leaf * 2.0 for leaf in leaves]).sum())


def _tree(library: Any, nodes: int) -> ForwardPass:
    """``nodes`` nodes: additions by twos until one tensor is left, and the sum."""
    leaves = _leaves(library, nodes)

    def forward() -> Any:
        level = leaves
        while len(level) > 1:
            rest = level[len(level) & ~1 :]
            level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + rest
        return level[0].sum()

    return ForwardPass(leaves, forward)


def _digits(library: Any) -> ForwardPass:
    """A classifier of 8 x 8 images with one hidden layer."""
    random = np.random.default_rng(0)

    def leaf(*shape: int) -> Any:
        values = random.standard_normal(shape, np.float32) * np.float32(0.1)
        return library.tensor(values, requires_grad=True)

    x = library.tensor(random.standard_normal((32, 64), np.float32))
    rows, labels = np.arange(32), random.integers(0, 10, 32)
    index = (library.tensor(rows), library.tensor(labels))
    leaves = [leaf(64, 32), leaf(32), leaf(32, 10), leaf(10)]

    def forward() -> Any:
        w1, b1, w2, b2 = leaves
        hidden = library.relu(x @ w1 + b1)
        log_probabilities = library.log_softmax(hidden @ w2 + b2, dim=1)
        return -log_probabilities[index].mean()

    return ForwardPass(leaves, forward)
