"""What a Node's rule is expected to cost: measured before, or guessed from its shapes.

A wrong guess costs time, never correctness: costs decide what is fused and what goes first, and
neither changes a bit of the result.
"""

from __future__ import annotations

import math
from typing import Any

from mpgrad.autograd.functions.function_node import FunctionNode
from mpgrad.autograd.nodes.node import Node
from mpgrad.dispatch import OperatorNode
from mpgrad.scheduler.cost_model import CostModel

#: What any rule costs, in microseconds.
CALL_US = 3.0
#: Elementwise work: bytes per microsecond through memory.
BYTES_PER_US = 4000.0
#: Matrix products: floating-point operations per microsecond on one core.
FLOPS_PER_US = 40_000.0
#: A custom Function that never ran is taken for expensive.
UNKNOWN_FUNCTION_US = 1000.0

#: Everything measured in this process.
model = CostModel()


def key_of(node: Node) -> Any:
    """What the cost of ``node`` depends on, as far as can be seen."""
    if isinstance(node, FunctionNode):
        return (node.function, node.input_metadata, node.ctx._inputs)
    if isinstance(node, OperatorNode):
        return (node.operator.name, node.input_metadata, node.input_info)
    return type(node)


def estimate(node: Node) -> float:
    """Expected microseconds of ``node``'s rule."""
    measured = model.get(key_of(node))
    if measured is not None:
        return measured
    if isinstance(node, FunctionNode):
        return UNKNOWN_FUNCTION_US
    if isinstance(node, OperatorNode):
        return _guess(node)
    return CALL_US


def observe(node: Node, microseconds: float) -> None:
    """Learn from one run."""
    if isinstance(node, FunctionNode):
        model.observe(key_of(node), microseconds)
    elif isinstance(node, OperatorNode):
        key = key_of(node)
        model.observe(key, microseconds, None if model.get(key) is not None else _guess(node))


def _guess(node: OperatorNode) -> float:
    shapes = [meta.shape for meta in (*node.input_metadata, *node.input_info) if meta is not None]
    nbytes = sum(math.prod(shape) * 4 for shape in shapes)
    cost = CALL_US + nbytes / BYTES_PER_US
    if node.operator.name in ("matmul", "linear", "conv2d"):
        cost += _product_flops(node) / FLOPS_PER_US
    return cost


def _product_flops(node: OperatorNode) -> float:
    """2 x (elements of the result) x (length of the sum), once per gradient."""
    result = math.prod(node.input_metadata[0].shape)
    flops = 0.0
    for info in node.input_info:
        if info is not None and len(info.shape) >= 2:
            inner = math.prod(info.shape[1:]) if node.operator.name == "conv2d" else info.shape[-1]
            flops += 2.0 * result * inner
    return flops
