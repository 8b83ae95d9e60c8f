"""with_division(): how the work of an expensive Node can be split, if it can."""

from __future__ import annotations

import math

from mpgrad.autograd.freezing.costs import second_half_share
from mpgrad.backends import column_parts
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.graph.node import Node
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import NodeSpec
from mpgrad.scheduler.split import split_above_us


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
