"""overhead: nodes that do next to nothing, so that only the engine's time is left."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.process import PeerProcess
from benchmarks.rounds import Case, Contender, Target
from benchmarks.runners import ForwardPass, Runner, mpgrad_runners, torch_runners
from benchmarks.small_graphs import digits_arrays, leaf_arrays
from benchmarks.workloads.per_node import TORCH, per_node

ABOUT = """\
Graphs of nodes on 8 float32 numbers. *chain*: each node feeds the next. *wide*: products of as many
leaves, stacked and summed. *tree*: a binary tree of additions over as many leaves. The figure is
time per executed node; wide and tree also accumulate into one leaf per node, which is not counted.
*digits MLP* is a real small graph, whole: 64-32-10, batch 32, log-softmax and negative
log-likelihood. HIPS autograd has each leaf as a root of its own: the lists that it takes cost
quadratic time."""

AUTO = "mpgrad auto"
#: Rounds by number of nodes: large graphs take long, small ones are noisy.
_ROUNDS = {100: 15, 1_000: 15, 10_000: 3}


def cases(quick: bool) -> Generator[Case, None, None]:
    """Three shapes in up to three sizes, and one small network."""
    with PeerProcess("HIPS autograd", "autograd") as hips:
        with mpgrad_runners("process", "local") as runners:
            runners += torch_runners(1)
            for shape in SHAPES:
                for nodes, rounds in _ROUNDS.items():
                    if not quick or nodes <= 1_000:
                        yield _case(runners, hips, shape, nodes, 3 if quick else rounds)
        with mpgrad_runners("auto", "local") as runners:
            runners += torch_runners(1)
            contenders = [runner.contender(_digits, 20) for runner in runners]
            contenders.append(hips.contender("hips_autograd.digits", repeats=20))
            target = Target(AUTO, at_most=0.35)
            yield Case("digits MLP", contenders, (TORCH,), 5 if quick else 31, targets=(target,))


def _case(runners: list[Runner], hips: PeerProcess, shape: str, nodes: int, rounds: int) -> Case:
    repeats = 3000 // nodes or 1
    contenders: list[Contender] = [
        runner.contender(partial(SHAPES[shape], nodes), repeats) for runner in runners
    ]
    contenders.append(hips.contender(f"hips_autograd.{shape}", nodes, repeats=repeats))
    return per_node(shape, nodes, contenders, rounds)


def _leaves(library: Any, count: int) -> list[Any]:
    return [library.tensor(array, requires_grad=True) for array in leaf_arrays(count)]


def _chain(nodes: int, library: Any) -> ForwardPass:
    """``nodes`` nodes: products with a constant, and the sum."""
    leaves = _leaves(library, 1)

    def forward() -> Any:
        (y,) = leaves
        for _ in range(nodes - 1):
            y = y * 1.000001
        return y.sum()

    return ForwardPass(leaves, forward)


def _wide(nodes: int, library: Any) -> ForwardPass:
    """``nodes`` nodes: one product per leaf, the stack and the sum."""
    leaves = _leaves(library, nodes - 2)
    return ForwardPass(leaves, lambda: library.stack([leaf * 2.0 for leaf in leaves]).sum())


def _tree(nodes: int, library: Any) -> ForwardPass:
    """``nodes`` nodes: additions by twos until one tensor is left, and the sum."""
    leaves = _leaves(library, nodes)

    def forward() -> Any:
        level = leaves
        while len(level) > 1:
            rest = level[len(level) & ~1 :]
            level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + rest
        return level[0].sum()

    return ForwardPass(leaves, forward)


#: The graphs by name; each is called with the number of nodes and the library.
SHAPES = {"chain": _chain, "wide": _wide, "tree": _tree}


def _digits(library: Any) -> ForwardPass:
    """A classifier of 8 x 8 images with one hidden layer."""
    arrays = digits_arrays()
    x = library.tensor(arrays.images)
    rows = np.arange(len(arrays.labels))
    index = (library.tensor(rows), library.tensor(arrays.labels))
    leaves = [library.tensor(array, requires_grad=True) for array in arrays.leaves]

    def forward() -> Any:
        w1, b1, w2, b2 = leaves
        hidden = library.relu(x @ w1 + b1)
        log_probabilities = library.log_softmax(hidden @ w2 + b2, dim=1)
        return -log_probabilities[index].mean()

    return ForwardPass(leaves, forward)
