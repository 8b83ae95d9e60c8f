"""rest_of(): what is left of a graph when its first Nodes have run: a graph by itself.

The sums so far become its seeds. A seed is the first contribution to its sum, so the results are
the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.scheduler.graph_spec import GraphSpec, Target


class Rest(NamedTuple):
    """The graph of the Nodes that have not run, and the numbers of the results that it gives."""

    graph: FrozenGraph
    results: list[int]


def rest_of(frozen: FrozenGraph, done: int, sums_of: Callable[[int], list[Any]]) -> Rest:
    """The graph behind the first ``done`` Nodes in serial order.

    Args:
        frozen: the whole graph.
        done: the number of Nodes that have run.
        sums_of: for a Node the sum so far of each of its inputs, or None.
    """
    kept = sorted(frozen.spec.order[done:])
    new = {at: number for number, at in enumerate(kept)}

    def renamed(target: Target) -> Target:
        return new[target[0]], target[1]

    nodes = [
        spec._replace(edges=tuple([edge and renamed(edge) for edge in spec.edges]))
        for spec in [frozen.spec.nodes[at] for at in kept]
    ]
    fed = {edge[0] for node in nodes for edge in node.edges if edge is not None}
    seeds: list[tuple[Target, Any]] = []
    for number, at in enumerate(kept):
        found = [((number, nr), sum_) for nr, sum_ in enumerate(sums_of(at)) if sum_ is not None]
        # A Node that nothing else leads to begins with an undefined gradient.
        seeds += found if found or number in fed else [((number, 0), None)]
    results = [number for number, (at, _) in enumerate(frozen.spec.captures) if at in new]
    spec = GraphSpec(
        tuple(nodes),
        tuple([target for target, _ in seeds]),
        tuple([renamed(frozen.spec.captures[number]) for number in results]),
        tuple([new[at] for at in frozen.spec.order[done:]]),
    )
    graph = FrozenGraph(
        tuple([frozen.nodes[at] for at in kept]),
        tuple([frozen.runs[at] for at in kept]),
        spec,
        tuple([sum_ for _, sum_ in seeds]),
        tuple([frozen.sinks[number] for number in results]),
        frozen.keep_graph,
    )
    return Rest(graph, results)
