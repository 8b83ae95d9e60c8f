"""FrozenGraph: a backward as plain tables, ready to be executed, and the sinks of its results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mpgrad.autograd.freezing.recurring_graphs import Remembered
from mpgrad.graph.node import Node
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.tensors.accumulate_grad import AccumulateGrad
from mpgrad.tensors.tensor import Tensor


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

    @property
    def may_recur(self) -> bool:
        """Whether the object ``spec`` may serve a later graph, too."""
        return self.remembered is not None

    def only_captures(self, node: Node) -> bool:
        """Whether ``node`` is a leaf's Node whose gradient is a result of ``grad()``."""
        return isinstance(node, AccumulateGrad) and any(
            isinstance(sink, ResultSink) and self.nodes[target[0]] is node
            for target, sink in zip(self.spec.captures, self.sinks, strict=True)
        )
