"""The expected cost of a Node's rule, measured or estimated, and how its work can be split.

A wrong estimate costs time, never correctness: costs decide which Nodes are fused and which run
first, and neither changes a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mpgrad.arrays.cpu import column_parts
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata, Node
from mpgrad.scheduler import tuning
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.graph_spec import NodeSpec
from mpgrad.scheduler.split import split_above_us

#: All measurements of this process.
model = CostModel()


def key_of(node: Node) -> Any:
    """The key of the cost of ``node``: everything visible that it depends on."""
    if isinstance(node, FunctionNode):
        # Not the Function itself, which would stay as long as its cost.
        return (type(node).number, node.input_metadata, node.ctx._inputs)
    if isinstance(node, OperatorNode):
        return (node.operator.name, node.input_metadata, node.input_info)
    return type(node)


def signature_of(node: Node) -> Any:
    """What is equal for no Nodes but those with one key, and is made in a fifth of the time: Nodes
    that are alike share the objects that describe them. It is good as long as the Node lives."""
    if isinstance(node, OperatorNode):
        return type(node), id(node.input_metadata), id(node.input_info)
    return id(node)


def costs_of(
    nodes: Sequence[Node], runs: Sequence[bool], cost: Callable[[Node], float]
) -> list[float]:
    """The ``cost`` of each Node that runs, asked once for those that are alike; of others 0."""
    known: dict[Any, float] = {}
    found = []
    for node, is_run in zip(nodes, runs, strict=True):
        if not is_run:
            found.append(0.0)
            continue
        signature = signature_of(node)
        if signature not in known:
            known[signature] = cost(node)
        found.append(known[signature])
    return found


class _Halves(NamedTuple):
    """Key of the cost of the first or second half of a split Node (``scheduler.split``)."""

    key: Any
    is_second: bool


def estimate(node: Node) -> float:
    """Expected microseconds of ``node``'s rule."""
    measured = model.get(key_of(node))
    if measured is not None:
        return measured
    if isinstance(node, FunctionNode):
        # It counts as much as a backward without its tasks, so that several of them run in workers.
        return tuning.BACKWARD_MESSAGES * tuning.MESSAGE_US
    if isinstance(node, OperatorNode):
        return _guess(node)
    return tuning.CALL_US


def is_measured(node: Node) -> bool:
    """Whether the rule of ``node``, or one like it, has run."""
    return model.get(key_of(node)) is not None


def second_half_share(node: Node) -> float:
    """The part of a Node's cost that its second half takes if it is split; at first 0.5."""
    key = key_of(node)
    first, second = model.get(_Halves(key, False)), model.get(_Halves(key, True))
    if first is None or second is None or first + second == 0.0:
        return 0.5
    return second / (first + second)


def observe_halves(node: Node, first_us: float, second_us: float) -> None:
    """Learn from one run in two halves."""
    key = key_of(node)
    model.observe(_Halves(key, False), [first_us])
    model.observe(_Halves(key, True), [second_us])
    observe([(node, first_us + second_us)])


def observe(measured: Iterable[tuple[Node, float]]) -> None:
    """Learn from the runs of one backward: Nodes and the microseconds that their rules took."""
    by_signature: dict[Any, tuple[Node, list[float]]] = {}
    for node, microseconds in measured:
        if isinstance(node, (FunctionNode, OperatorNode)):
            signature = signature_of(node)
            if signature in by_signature:
                by_signature[signature][1].append(microseconds)
            else:
                by_signature[signature] = node, [microseconds]
    alike: dict[Any, tuple[Node, list[float]]] = {}
    for node, measured_us in by_signature.values():
        alike.setdefault(key_of(node), (node, []))[1].extend(measured_us)
    for key, (node, measured_us) in alike.items():
        is_first = model.get(key) is None
        guess = _guess(node) if is_first and isinstance(node, OperatorNode) else None
        model.observe(key, measured_us, guess)


def _guess(node: OperatorNode) -> float:
    shapes = [meta.shape for meta in (*node.input_metadata, *node.input_info) if meta is not None]
    itemsize = node.input_metadata[0].dtype.itemsize
    nbytes = sum(math.prod(shape) for shape in shapes) * itemsize
    cost = tuning.CALL_US + nbytes / tuning.BYTES_PER_US
    if node.operator.name in ("matmul", "linear", "conv2d"):
        cost += _product_flops(node) / tuning.FLOPS_PER_US * itemsize / 4
    return cost


def _channels(image: InputMetadata | None) -> int:
    return 0 if image is None else image.shape[1]


def _product_flops(node: OperatorNode) -> float:
    """2 x (elements of the result) x (length of forward's sum), once per gradient.

    The product for the gradient of one factor has as many operations as forward: (m, k) @ (k, n)
    takes m x k x n multiplications, and so do (m, n) @ (n, k) and (k, m) @ (m, n). A factor that
    needs a gradient shows the length of the sum. An image alone does not show the size of the
    kernel, which is then assumed to be 3 x 3.
    """
    name, result = node.operator.name, math.prod(node.input_metadata[0].shape)
    first, second = (*node.input_info, None)[:2]
    wanted = [info for info in (first, second) if info is not None and len(info.shape) >= 2]
    if name == "conv2d":
        length = math.prod(second.shape[1:]) if second is not None else 9 * _channels(first)
    elif first is not None:
        length = first.shape[-1]
    elif second is not None:
        length = second.shape[-1 if name == "linear" or len(second.shape) < 2 else -2]
    else:
        length = 0
    return 2.0 * result * length * len(wanted)


def least_cost(spec: NodeSpec, cost_us: float) -> float:
    """``cost_us``; for a branch at least as long as a message, so that it is fused with nothing."""
    return max(cost_us, tuning.MESSAGE_US) if spec.is_branch else cost_us


# ---------------------------------------------------------------------- dividing a Node


def with_division(spec: NodeSpec, node: Node) -> NodeSpec:
    """``spec`` with the cost of the Node's second half, and the parts of its first output.

    These are computed only for Nodes that may be worth splitting, in each new graph.
    """
    if not spec.is_splittable or spec.cost_us < split_above_us(tuning.MESSAGE_US):
        return spec
    return spec._replace(
        second_half_share=second_half_share(node), part_nbytes=_part_nbytes(spec, node)
    )


def _part_nbytes(spec: NodeSpec, node: Node) -> tuple[int, ...]:
    """Bytes of the parts in which the first input's gradient is computed (``column_parts``)."""
    if not isinstance(node, OperatorNode) or node.operator.in_columns is None:
        return ()
    first = node.input_info[0]
    if first is None or spec.edges[0] is None:
        return ()
    count = column_parts.count_parts(node.input_metadata[0].shape, first.shape[-1])
    shapes = [column_parts.shape_of(first.shape, (part, part + 1), count) for part in range(count)]
    return tuple([math.prod(shape) * first.dtype.itemsize for shape in shapes])
