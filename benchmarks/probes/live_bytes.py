"""peak_live_bytes(): the memory that a serial backward needs at its peak, a lower bound.

It is counted from the recorded graph, without any allocator: the tensors that the program holds,
saved arrays until their last Node has run, and gradients from their first contribution until the
Node that they flow into has run (a leaf's: to the end).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.rounds import Array
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.tensors.tensor import gradient_edge

#: (address, bytes) of the memory behind an array.
Block = tuple[int, int]


def peak_live_bytes(root: Any, held: Iterable[Any]) -> int:
    """The most bytes alive at a time while one thread runs the backward of ``root``.

    Args:
        root: a scalar Tensor.
        held: tensors that live on: parameters, the batch.
    """
    frozen = freeze([gradient_edge(root)], [None], keep_graph=True, cost=costs.estimate)
    return _peak(frozen, {_block(tensor.detach().numpy()) for tensor in held})


def _peak(frozen: FrozenGraph, held: set[Block]) -> int:
    last_use = _last_uses(frozen, held)
    saved = sum(nbytes for _, nbytes in last_use)
    always = sum(nbytes for _, nbytes in held)
    filled = {target: _input_nbytes(frozen, target) for target in frozen.spec.seeds}
    peak = 0
    for index in frozen.spec.order:
        node = frozen.spec.nodes[index]
        for target in node.edges:
            if target is not None:
                filled[target] = _input_nbytes(frozen, target)
        peak = max(peak, always + saved + sum(filled.values()))
        if not node.is_sink:
            for number in range(len(node.input_nbytes)):
                filled.pop((index, number), None)
        saved -= sum(nbytes for (_, nbytes), last in last_use.items() if last == index)
    return peak


def _input_nbytes(frozen: FrozenGraph, target: tuple[int, int]) -> int:
    index, number = target
    return frozen.spec.nodes[index].input_nbytes[number]


def _last_uses(frozen: FrozenGraph, held: set[Block]) -> dict[Block, int]:
    """For each saved block that the program does not hold, the last Node that reads it."""
    found: dict[Block, int] = {}
    for index in frozen.spec.order:
        node = frozen.nodes[index]
        if isinstance(node, OperatorNode):
            for array in _arrays(node.saved_arrays().values()):
                block = _block(array)
                if block not in held:
                    found[block] = index
    return found


def _arrays(values: Iterable[Any]) -> Iterable[Array]:
    for value in values:
        if isinstance(value, tuple):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


def _block(array: Array) -> Block:
    """The block of the array that owns the memory: views of one block are one block."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.__array_interface__["data"][0], array.nbytes
