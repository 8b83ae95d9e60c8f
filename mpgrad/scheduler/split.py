"""split(): an expensive Node becomes two, so that a plain chain of layers can use two workers.

The gradient of a layer's input is what the next layer waits for; the gradients of its weights go to
leaves, and nobody waits for those. Where both come from formulas of their own, the second half
is a Node of its own that receives the same gradient from the first ("passes") and may run beside
all that follows.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, NodeSpec, Target

#: A Node of which both halves cost the same is split from here on: the second half must be worth a
#: message and a gradient that is read by another core.
SPLIT_ABOVE_US = 800.0


def split(spec: GraphSpec) -> tuple[GraphSpec, tuple[int, ...]]:
    """``spec`` with its expensive Nodes in two, and for each of its Nodes which one it was.

    Nodes keep their numbers; second halves come behind them.
    """
    nodes, origin = list(spec.nodes), list(range(len(spec.nodes)))
    second: dict[int, int] = {}
    for index, node in enumerate(spec.nodes):
        is_rest = [target is not None and spec.nodes[target[0]].is_sink for target in node.edges]
        if _is_worth_it(node, is_rest):
            second[index] = len(nodes)
            origin.append(index)
            nodes[index] = _half(node, is_rest, False, second[index])
            nodes.append(_half(node, is_rest, True, None))
    order = [
        half for index in spec.order for half in (index, second.get(index)) if half is not None
    ]
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


def _half(node: NodeSpec, is_rest: list[bool], late: bool, passes_to: int | None) -> NodeSpec:
    edges: list[Target | None] = [
        target if rest == late else None for target, rest in zip(node.edges, is_rest, strict=True)
    ]
    passes = (
        () if passes_to is None else tuple((passes_to, nr) for nr in range(len(node.input_nbytes)))
    )
    share = node.second_half_share if late else 1.0 - node.second_half_share
    return node._replace(edges=tuple(edges), cost_us=node.cost_us * share, passes=passes)
