"""HIPS autograd: a tape on NumPy, like mpgrad's ``local`` mode. Runs in a PeerProcess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.core import VJPNode, add_outgrads, toposort
from autograd.extend import defvjp, primitive
from autograd.tracer import new_box, trace_stack
from threadpoolctl import threadpool_limits

from benchmarks.gil_work import branch_input, spin
from benchmarks.peers.process import Program
from benchmarks.perceptron_arrays import Array, Perceptrons
from benchmarks.small_graphs import digits_arrays, leaf_arrays

Forward = Callable[[list[Any]], Any]


def perceptrons(shape: Perceptrons, threads: int, is_whole: bool) -> Program:
    """Backward of the perceptrons, or forward and backward, with this many BLAS threads."""
    threadpool_limits(threads)
    batch, leaves = shape.arrays()

    def forward(boxes: list[Any]) -> Any:
        total = 0.0
        for model in shape.models(boxes):
            x = batch
            for weight, bias in model:
                x = anp.maximum(anp.dot(x, weight) + bias, 0.0)
            total = total + anp.mean(x)
        return total

    return _whole(forward, leaves) if is_whole else _backward(forward, leaves)


@primitive
def _branch(x: Array, loops: int) -> Any:
    return x.sum()


defvjp(_branch, lambda ans, x, loops: lambda grad: x * (grad * spin(loops)), None)


def gil_branches(branches: int, loops: int, elements: int) -> Program:
    """The branches that hold the GIL, as primitives with their own rule."""
    leaves = [branch_input(branch, elements) for branch in range(branches)]
    return _backward(lambda boxes: anp.sum(anp.array([_branch(x, loops) for x in boxes])), leaves)


def chain(nodes: int) -> Program:
    """``overhead``'s chain."""

    def forward(boxes: list[Any]) -> Any:
        (y,) = boxes
        for _ in range(nodes - 1):
            y = y * np.float32(1.000001)
        return anp.sum(y)

    return _backward(forward, leaf_arrays(1))


def wide(nodes: int) -> Program:
    """``overhead``'s wide graph."""
    return _backward(
        lambda boxes: anp.sum(anp.array([leaf * np.float32(2.0) for leaf in boxes])),
        leaf_arrays(nodes - 2),
    )


def tree(nodes: int) -> Program:
    """``overhead``'s tree of additions."""

    def forward(boxes: list[Any]) -> Any:
        level = boxes
        while len(level) > 1:
            rest = level[len(level) & ~1 :]
            level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + rest
        return anp.sum(level[0])

    return _backward(forward, leaf_arrays(nodes))


def digits() -> Program:
    """``overhead``'s small classifier."""
    threadpool_limits(1)
    arrays = digits_arrays()
    rows = np.arange(len(arrays.labels))

    def forward(boxes: list[Any]) -> Any:
        w1, b1, w2, b2 = boxes
        hidden = anp.maximum(anp.dot(arrays.images, w1) + b1, 0.0)
        logits = anp.dot(hidden, w2) + b2
        logits = logits - anp.max(logits, axis=1, keepdims=True)
        log_sums = anp.log(anp.sum(anp.exp(logits), axis=1, keepdims=True))
        return -anp.mean((logits - log_sums)[rows, arrays.labels])

    return _backward(forward, arrays.leaves)


def _backward(forward: Forward, leaves: Sequence[Array]) -> Program:
    found: list[list[Array]] = []

    def run(vjp: Callable[[], list[Array]]) -> None:
        found[:] = [vjp()]

    return Program(run, lambda: found[0], lambda: vjp_of_leaves(forward, leaves))


def _whole(forward: Forward, leaves: Sequence[Array]) -> Program:
    found: list[list[Array]] = []

    def run(_: None) -> None:
        found[:] = [vjp_of_leaves(forward, leaves)()]

    return Program(run, lambda: found[0])


def vjp_of_leaves(forward: Forward, leaves: Sequence[Array]) -> Callable[[], list[Array]]:
    """Run ``forward`` on boxes of the leaves; the result runs its backward.

    ``autograd.make_vjp`` has one root. Given a list of arrays it unpacks it in the tape, and adds
    every gradient into a list of zeros: 128 ms instead of 95 for ``numpy_branches``, and quadratic
    in the number of leaves. So each leaf is a root here; the loop is that of
    ``autograd.core.backward_pass``.
    """
    with trace_stack.new_trace() as trace:
        roots = [VJPNode.new_root() for _ in leaves]
        end = forward(
            [new_box(leaf, trace, root) for leaf, root in zip(leaves, roots, strict=True)]
        )

    def backward() -> list[Array]:
        gradients: dict[Any, Any] = {end._node: (np.ones_like(end._value), False)}
        done: dict[Any, Array] = {}
        for node in toposort(end._node):
            gradient = gradients.pop(node)
            if not node.parents:
                done[node] = gradient[0]
                continue
            for parent, part in zip(node.parents, node.vjp(gradient[0]), strict=True):
                gradients[parent] = add_outgrads(gradients.get(parent), part)
        return [done[root] for root in roots]

    return backward
