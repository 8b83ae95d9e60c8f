"""split(): an expensive Node becomes several, so that a plain chain of layers can use many workers.

The gradient of a layer's input is what the next layer waits for; the gradients of its weights go to
leaves, and nobody waits for those. Where both come from formulas of their own, the second half
is a Node of its own that receives the same gradient from the first ("passes") and may run beside
all that follows.

More than two workers get something of the first half, too, where that is a large product: it is
*cut* into parts, each a Node of its own that writes some columns of the gradient. What reads it
joins them (``Plan.joins``). The parts depend on shapes alone, and so do the bits.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter

from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, NodeSpec, Target

#: A Node of which both halves cost the same is split from here on: the second half must be worth a
#: message and a gradient that is read by another core.
SPLIT_ABOVE_US = 800.0
#: A part of a product costs a message, and waits for one of its own.
CUT_ABOVE_US = 300.0


def split(spec: GraphSpec, *, cuts: bool = False) -> tuple[GraphSpec, tuple[int, ...]]:
    """``spec`` with its expensive Nodes divided, and for each of its Nodes which one it was.

    Nodes keep their numbers; what was part of them comes behind.

    Args:
        spec: the graph.
        cuts: whether products are cut as well.
    """
    nodes, origin = list(spec.nodes), list(range(len(spec.nodes)))
    lone = _lone_targets(spec) if cuts else frozenset()
    for index, node in enumerate(spec.nodes):
        is_rest = [target is not None and spec.nodes[target[0]].is_sink for target in node.edges]
        divided = [node]
        if _is_worth_it(node, is_rest):
            divided = [_half(node, is_rest, False), _half(node, is_rest, True)]
        if cuts and _can_be_cut(divided[0], lone):
            divided[:1] = _cut(divided[0])
        others = range(len(nodes), len(nodes) + len(divided) - 1)
        nodes[index] = divided[0]._replace(passes=tuple(others))
        nodes += divided[1:]
        origin += [index] * len(others)
    behind = {index: nodes[index].passes for index in spec.order}
    order = [divided for index in spec.order for divided in (index, *behind[index])]
    return spec._replace(nodes=tuple(nodes), order=tuple(order)), tuple(origin)


def has_branches_for(spec: GraphSpec, workers: int) -> bool:
    """Whether so many could be busy anyway: the longest path is a small part of the work."""
    behind_us = [0.0] * len(spec.nodes)
    for index in reversed(spec.order):
        node = spec.nodes[index]
        longest = max(
            [behind_us[target[0]] for target in node.edges if target is not None], default=0.0
        )
        behind_us[index] = longest + node.cost_us
    work_us = sum([node.cost_us for node in spec.nodes])
    return work_us >= workers * max(behind_us, default=0.0)


def _is_worth_it(node: NodeSpec, is_rest: list[bool]) -> bool:
    """Whether both halves have something to do and no sum mixes them."""
    # A GPU runs both halves one after the other anyway.
    if not node.is_splittable or node.on_client or node.device != ON_CPU:
        return False
    if node.cost_us * node.second_half_share < SPLIT_ABOVE_US / 2:
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
    """Inputs of Nodes on CPU workers that one gradient flows into."""
    flows = Counter(spec.seeds)
    for node in spec.nodes:
        flows.update(target for target in node.edges if target is not None)
    found = []
    for target, count in flows.items():
        consumer = spec.nodes[target[0]]
        is_on_worker = not consumer.on_client and consumer.device == ON_CPU
        if count == 1 and is_on_worker and not consumer.is_sink:
            found.append(target)
    return frozenset(found)


def _can_be_cut(node: NodeSpec, lone: frozenset[Target]) -> bool:
    """Whether its only output is worth computing in parts, which nothing is added to."""
    if len(node.part_nbytes) < 2 or node.on_client or node.device != ON_CPU:
        return False
    is_alone = node.edges[0] in lone and not any(node.edges[1:])
    return is_alone and node.cost_us >= CUT_ABOVE_US * len(node.part_nbytes)


def _cut(node: NodeSpec) -> list[NodeSpec]:
    count = len(node.part_nbytes)
    return [node._replace(cost_us=node.cost_us / count, part=part) for part in range(count)]
