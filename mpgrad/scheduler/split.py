"""split(): an expensive Node becomes several, so that a plain chain of layers can use many workers.

The next layer waits for the gradient of a layer's input. The gradients of its weights go to leaves,
and nothing waits for them. If both have formulas of their own, the second half becomes a Node of
its own. It receives the same gradient from the first half (``NodeSpec.passes``) and may run beside
all that follows.

With more than two workers, a large matrix product of the first half is *cut* by columns: each of
several workers computes some parts of the gradient, and the consumer joins them (``Plan.joins``).
The parts depend on shapes alone, and so do the bits; the number of workers that compute them does
not matter.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

import math
from collections import Counter

from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, Target


def split_above_us(message_us: float) -> float:
    """The least cost of a Node with two equal halves that is split.

    The second half must be worth a message and a gradient that another core reads.
    """
    return 2.0 * tuning.worth_us(message_us)


def split(
    spec: GraphSpec, *, sharers: int = 1, message_us: float = tuning.MESSAGE_US
) -> tuple[GraphSpec, tuple[int, ...]]:
    """``spec`` with its expensive Nodes divided, and the original Node of each of its Nodes (empty:
    no Node is divided).

    Nodes keep their numbers; the new ones follow at the end.

    Args:
        spec: the graph.
        sharers: how many workers may share a product; with 1, none is cut.
        message_us: the cost of a message.
    """
    nodes, origin = list(spec.nodes), list(range(len(spec.nodes)))
    lone = _lone_targets(spec) if sharers > 1 else frozenset()
    above_us, piece_us = split_above_us(message_us), tuning.worth_us(message_us)
    least_us = min(above_us / 2, piece_us)
    for index, node in enumerate(spec.nodes):
        if node.cost_us < least_us:
            continue
        is_rest = [target is not None and spec.nodes[target[0]].is_sink for target in node.edges]
        divided = [node]
        if _is_worth_it(node, is_rest, above_us):
            divided = [_half(node, is_rest, False), _half(node, is_rest, True)]
        if _can_be_cut(divided[0], lone):
            divided[:1] = _cut(divided[0], sharers, piece_us)
        if len(divided) == 1:
            continue
        others = range(len(nodes), len(nodes) + len(divided) - 1)
        nodes[index] = divided[0]._replace(passes=tuple(others))
        nodes += divided[1:]
        origin += [index] * len(others)
    if len(nodes) == len(spec.nodes):
        return spec, ()
    behind = {index: nodes[index].passes for index in spec.order}
    order = [divided for index in spec.order for divided in (index, *behind[index])]
    return spec._replace(nodes=tuple(nodes), order=tuple(order)), tuple(origin)


def has_branches_for(spec: GraphSpec, workers: int) -> bool:
    """Whether this many workers are busy anyway: the longest path is a small part of the work."""
    work_us = sum([node.cost_us for node in spec.nodes])
    return work_us >= workers * _longest_path_us(spec, [node.cost_us for node in spec.nodes])


def serial_us(spec: GraphSpec, message_us: float) -> float:
    """The longest path of what ``split`` leaves whole, in microseconds: no plan takes less."""
    least_us = tuning.worth_us(message_us)
    whole = [
        node.cost_us < least_us or not (node.is_splittable or node.part_nbytes)
        for node in spec.nodes
    ]
    costs = [node.cost_us * is_whole for node, is_whole in zip(spec.nodes, whole, strict=True)]
    return _longest_path_us(spec, costs)


def _longest_path_us(spec: GraphSpec, costs: list[float]) -> float:
    behind_us = [0.0] * len(costs)
    for index in reversed(spec.order):
        longest = 0.0
        for target in spec.nodes[index].edges:
            if target is not None and behind_us[target[0]] > longest:
                longest = behind_us[target[0]]
        behind_us[index] = longest + costs[index]
    return max(behind_us, default=0.0)


def sharers_among(workers: int) -> int:
    """The number of workers that may share one product.

    The others run second halves, which are about as much work; two workers have enough of them.
    """
    return workers // 2 + 1 if workers > 2 else 1


def _is_worth_it(node: NodeSpec, is_rest: list[bool], above_us: float) -> bool:
    """Whether both halves have something to compute and no sum mixes them."""
    # A GPU runs both halves one after the other.
    if not (node.is_splittable and node.is_for_cpu):
        return False
    if node.cost_us * node.second_half_share < above_us / 2:
        return False
    rest = {target for target, late in zip(node.edges, is_rest, strict=True) if late}
    urgent = {target for target in node.edges if target is not None} - rest
    return bool(rest) and bool(urgent)


def _half(node: NodeSpec, is_rest: list[bool], late: bool) -> NodeSpec:
    edges: list[Target | None] = [
        target if rest == late else None for target, rest in zip(node.edges, is_rest, strict=True)
    ]
    share = node.second_half_share if late else 1.0 - node.second_half_share
    return node._replace(edges=tuple(edges), cost_us=node.cost_us * share)


def _lone_targets(spec: GraphSpec) -> frozenset[Target]:
    """Inputs of Nodes on CPU workers that get exactly one gradient."""
    flows = Counter(spec.seeds)
    for node in spec.nodes:
        flows.update(target for target in node.edges if target is not None)
    found = []
    for target, count in flows.items():
        consumer = spec.nodes[target[0]]
        if count == 1 and consumer.is_for_cpu and not consumer.is_sink:
            found.append(target)
    return frozenset(found)


def _can_be_cut(node: NodeSpec, lone: frozenset[Target]) -> bool:
    """Whether its only output can be computed in parts, and nothing is added to that."""
    if not (node.part_nbytes and node.is_for_cpu):
        return False
    return node.edges[0] in lone and not any(node.edges[1:])


def _cut(node: NodeSpec, sharers: int, above_us: float) -> list[NodeSpec]:
    """``node`` as several Nodes that compute some of its parts each, if that is worth it."""
    count = len(node.part_nbytes)
    shares = min(sharers, count, int(node.cost_us / above_us))
    # The consumer waits for the largest share, so use no more shares than its size requires.
    shares = math.ceil(count / math.ceil(count / max(shares, 1)))
    if shares < 2:
        return [node]
    found = [parts_of(share, shares, count) for share in range(shares)]
    return [
        node._replace(cost_us=node.cost_us * (stop - first) / count, parts=(first, stop))
        for first, stop in found
    ]


def parts_of(share: int, shares: int, parts: int) -> tuple[int, int]:
    """The half-open range of a product's parts that belongs to one of its shares."""
    return parts * share // shares, parts * (share + 1) // shares
