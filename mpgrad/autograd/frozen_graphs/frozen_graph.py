"""FrozenGraph: a backward as plain tables, ready to be executed; its sinks; what is left of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mpgrad.autograd.frozen_graphs.cached_graphs import Remembered
from mpgrad.recording.graph.node import InputMetadata, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.scheduler.graph_spec import GraphSpec, Target


class LeafSink(NamedTuple):
    """A capture that is added to a leaf's ``.grad``."""

    accumulator: AccumulateGrad


#: Made for each leaf in every step, without the Python code of ``LeafSink.__new__``.
new_leaf_sink: Callable[[tuple[Any]], LeafSink] = functools.partial(tuple.__new__, LeafSink)


class RetainSink(NamedTuple):
    """A capture that is kept in a non-leaf's ``.grad`` (``retain_grad``)."""

    tensor: Tensor


class ResultSink(NamedTuple):
    """A capture that is result ``number`` of ``grad()``."""

    number: int


class KeptSink(NamedTuple):
    """The gradient of a leaf with hooks on its Node: ``keep`` gets what they have made of it.

    It is no capture: it is kept in serial order, and ``.grad`` stays as it is.
    """

    accumulator: AccumulateGrad
    keep: Callable[[Tensor, Tensor], None]


Sink: TypeAlias = LeafSink | RetainSink | ResultSink
#: What becomes of a gradient that is asked for; None: ``retain_grad`` keeps it.
WantedSink: TypeAlias = Sink | KeptSink | None


class FrozenGraph(NamedTuple):
    """A backward that is ready to be executed.

    ``nodes``, ``spec.nodes`` and ``runs`` have the same indices; ``spec.captures[k]`` goes to
    ``sinks[k]``.
    """

    nodes: tuple[Node, ...]
    #: False for a Node whose inputs are captured but whose rule does not run.
    runs: tuple[bool, ...]
    spec: GraphSpec
    #: Seed gradients (arrays or None), one per ``spec.seeds``.
    seeds: tuple[Any, ...]
    sinks: tuple[Sink, ...]
    keep_graph: bool
    #: The memory that keeps the object ``spec`` for later graphs, if any.
    remembered: Remembered | None = None

    def only_captures(self, node: Node) -> bool:
        """Whether ``node`` is a leaf's Node whose gradient is a result of ``grad()``."""
        return isinstance(node, AccumulateGrad) and any(
            isinstance(sink, ResultSink) and self.nodes[target[0]] is node
            for target, sink in zip(self.spec.captures, self.sinks, strict=True)
        )


def expected_of(frozen: FrozenGraph, at: int) -> list[InputMetadata | None]:
    """The metadata that the consumer of each output of a Node expects; None where there is none."""
    nodes = frozen.nodes
    return [
        None if edge is None else nodes[edge[0]].input_metadata[edge[1]]
        for edge in frozen.spec.nodes[at].edges
    ]


class Rest(NamedTuple):
    """The graph of the Nodes that have not run, and the numbers of the results that it gives."""

    graph: FrozenGraph
    results: list[int]


def rest_of(frozen: FrozenGraph, done: int, sums_of: Callable[[int], list[Any]]) -> Rest:
    """The graph behind the first ``done`` Nodes in serial order.

    The sums so far become its seeds. A seed is the first contribution to its sum, so the results
    are the same to the last bit.

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
