"""GraphTables: a walked graph as tables, with the user's hooks as Nodes of their own.

Nodes that no result needs are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.arrays.cuda.gpu_nodes import on_gpus
from mpgrad.autograd.frozen_graphs.cached_graphs import Template, Walk, sequence_of
from mpgrad.autograd.frozen_graphs.costs import least_cost, with_division
from mpgrad.autograd.frozen_graphs.frozen_graph import (
    FrozenGraph,
    KeptSink,
    LeafSink,
    RetainSink,
    Sink,
    WantedSink,
)
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.autograd.running.hook_nodes import (
    AccumulateNow,
    ClientNode,
    HooksAfter,
    HooksBefore,
    runs_node_hooks,
)
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Edge, InputMetadata, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, Target, reaches, serial_order

#: The metadata of an input of a client Node that never gets a gradient.
NOTHING = InputMetadata((), np.dtype(np.bool_))

#: Expected run time of a Node in microseconds.
Cost: TypeAlias = Callable[[Node], float]


class GraphTables:
    """The tables while they are being made; index i is one Node in all of them.

    Args:
        walked: the graph.
        logs: whether every Node is logged when it runs.
    """

    def __init__(self, walked: Walk, *, logs: bool) -> None:
        self.logs = logs
        self.nodes: list[Node] = list(walked.nodes)
        self.edges = walked.targets()
        self.index: dict[Node, int] = walked.index_of
        self.runs = [True] * len(self.nodes)
        self.captures: list[tuple[Target, Sink]] = []
        #: The walked Nodes that lead to a wanted gradient; None: all.
        self.kept: list[int] | None = None
        #: Whether user code will run in the client.
        self.has_hooks = logs
        #: The new target of contributions to a Node with hooks before it.
        self.front: dict[int, int] = {}

    # ------------------------------------------------------------------ what is captured

    def want_leaves(self) -> None:
        for at, node in enumerate(self.nodes):
            if isinstance(node, AccumulateGrad):
                self._want_leaf(at, node)

    def _want_leaf(self, at: int, node: AccumulateGrad) -> None:
        leaf: Any = node.leaf()
        self.runs[at] = bool(
            self.logs
            or leaf._post_accumulate_hooks
            or (node.hooks is not None and runs_node_hooks(node))
        )
        if self.runs[at]:
            self.nodes[at] = AccumulateNow(node, logs=self.logs)
            self.has_hooks = True
        else:
            self.captures.append(((at, 0), LeafSink(node)))

    def want_only(self, wanted: Sequence[tuple[Edge, WantedSink]]) -> None:
        """Keep the Nodes that lead to ``wanted``.

        A Node whose gradient ``grad()`` returns runs only if another wanted gradient lies behind
        it. A Node whose tensor gets a ``.grad`` always runs, as in PyTorch: hooks and Functions
        notice.
        """
        found = [
            (self.index[node], input_nr, sink)
            for (node, input_nr), sink in wanted
            if node in self.index
        ]
        leads = reaches(self.edges, [at for at, _, _ in found])
        for at, targets in enumerate(self.edges):
            targets[:] = [t if t is not None and leads[t[0]] else None for t in targets]
            self.runs[at] = any(target is not None for target in targets)
        for at, input_nr, sink in found:
            if isinstance(sink, LeafSink):
                self._want_leaf(at, sink.accumulator)
            elif isinstance(sink, KeptSink):
                self.runs[at] = self.has_hooks = True
                self.nodes[at] = AccumulateNow(sink.accumulator, logs=self.logs, keep=sink.keep)
            elif sink is not None:
                self.captures.append(((at, input_nr), sink))
            else:
                self.runs[at] = True
        self._drop([at for at, leading in enumerate(leads) if not leading])

    def _drop(self, unwanted: Sequence[int]) -> None:
        """Remove Nodes and renumber the others."""
        if not unwanted:
            return
        gone = set(unwanted)
        kept = self.kept = [at for at in range(len(self.nodes)) if at not in gone]
        new = {at: number for number, at in enumerate(kept)}
        self.nodes = [self.nodes[at] for at in kept]
        self.runs = [self.runs[at] for at in kept]
        self.edges = [
            [None if t is None else (new[t[0]], t[1]) for t in self.edges[at]] for at in kept
        ]
        self.captures = [((new[t[0]], t[1]), sink) for t, sink in self.captures]
        self.index = {node: new[at] for node, at in self.index.items() if at in new}

    # ------------------------------------------------------------------ hooks

    def insert_client_nodes(self) -> None:
        """Put client Nodes around each Node with hooks."""
        hooked = [
            (at, node)
            for at, node in enumerate(self.nodes)
            if (self.logs or node.hooks is not None) and not isinstance(node, AccumulateNow)
        ]
        if any(node.hooks and node.hooks.calls_user for _, node in hooked):
            self.has_hooks = True
        for at, node in hooked:
            if node.hooks is not None and not self.has_hooks:
                self._capture_retained(at, node.hooks.retained)
            elif self.logs or (node.hooks and (node.hooks.calls_user or node.hooks.retained)):
                self._insert_around(at, node)
        if self.front:
            self._redirect_all()

    def _capture_retained(self, at: int, retained: dict[int, Any]) -> None:
        """If no user code runs before it, a retained gradient is captured like the others."""
        for input_nr, reference in retained.items():
            tensor = reference()
            if tensor is not None:
                self.captures.append(((at, input_nr), RetainSink(tensor)))

    def _insert_around(self, at: int, node: Node) -> None:
        runs = self.runs[at]
        has_after = runs and runs_node_hooks(node)
        inputs = len(node.input_metadata)
        before = self._append(
            HooksBefore(node, runs=runs, shared=has_after, logs=self.logs and runs),
            [(at, nr) for nr in range(inputs)],
        )
        self.front[at] = before
        if has_after:
            targets = self.edges[at]
            results = [self._expected(target) for target in targets]
            after = self._append(HooksAfter(node, results), targets)
            self.edges[at] = [t and (after, nr) for nr, t in enumerate(targets)]
            self.edges[before] += [(after, len(results) + nr) for nr in range(inputs)]

    def _append(self, node: ClientNode, targets: list[Target | None]) -> int:
        self.nodes.append(node)
        self.runs.append(True)
        self.edges.append(targets)
        return len(self.nodes) - 1

    def _expected(self, target: Target | None) -> InputMetadata:
        """The metadata of the gradient along an edge; any metadata if there is no edge."""
        return NOTHING if target is None else self.nodes[target[0]].input_metadata[target[1]]

    def _redirect_all(self) -> None:
        """Redirect every edge to the hooks before its target, except the edges of those hooks."""
        for at, targets in enumerate(self.edges):
            if not isinstance(self.nodes[at], HooksBefore):
                targets[:] = [self._redirect(target) for target in targets]
        # As in PyTorch, grad() returns the result of the tensor hooks; but if the Node runs as
        # well, it returns their input.
        self.captures = [
            ((self.front.get(at, at) if self.runs[at] else at, nr), sink)
            for (at, nr), sink in self.captures
        ]

    def _redirect(self, target: Target | None) -> Target | None:
        if target is None:
            return None
        return self.front.get(target[0], target[0]), target[1]

    # ------------------------------------------------------------------ the result

    def result(
        self, roots: Sequence[Edge], seeds: Sequence[Any], keep_graph: bool, cost: Cost
    ) -> FrozenGraph:
        kept = [
            (self.index[node], input_nr, seed)
            for (node, input_nr), seed in zip(roots, seeds, strict=True)
            if node in self.index
        ]
        targets = tuple((self.front.get(at, at), input_nr) for at, input_nr, _ in kept)
        specs = self._specs(cost)
        if CUDA.in_use:
            specs = on_gpus(specs, self.nodes)
        spec = GraphSpec(
            specs,
            targets,
            tuple(target for target, _ in self.captures),
            serial_order(specs, targets),
        )
        return FrozenGraph(
            tuple(self.nodes),
            tuple(self.runs),
            spec,
            tuple(seed for _, _, seed in kept),
            tuple(sink for _, sink in self.captures),
            keep_graph,
        )

    def _specs(self, cost: Cost) -> tuple[NodeSpec, ...]:
        """The tables of the Nodes. Those of Nodes that are alike differ in two fields only."""
        # This runs once per Node and backward while the workers wait, so it uses no generator.
        alike: dict[Any, NodeSpec] = {}
        specs = []
        for node, edges, runs in zip(self.nodes, self.edges, self.runs, strict=True):
            number = node.sequence_nr
            if isinstance(node, OperatorNode):
                info = id(node.input_info)
                signature: Any = type(node), id(node.input_metadata), info, runs, node.has_packed
            elif isinstance(node, AccumulateGrad):
                signature = id(node.input_metadata), runs
            else:
                specs.append(_spec_of(node, edges, runs, cost))
                continue
            spec = alike.get(signature)
            if spec is None:
                spec = alike[signature] = _spec_of(node, edges, runs, cost)
            elif runs:
                spec = _new_spec((spec[0], number, tuple(edges), *spec[3:]))
            elif spec[1] != number:
                spec = spec._replace(sequence_nr=number)
            specs.append(spec)
        return tuple(specs)

    def template(self, walked: Walk, roots: Sequence[Edge], frozen: FrozenGraph) -> Template:
        """The template for the next graph of this kind."""
        kept_seeds = [at for at, (node, _) in enumerate(roots) if node in self.index]
        return Template(
            [node.input_metadata for node in walked.nodes],
            *sequence_of(walked),
            [at for at, node in enumerate(walked.nodes) if isinstance(node, AccumulateGrad)],
            self.kept,
            None if len(kept_seeds) == len(roots) else kept_seeds,
            frozen.runs,
            tuple(None if isinstance(sink, LeafSink) else sink for sink in frozen.sinks),
        )


#: Without the Python code of ``NodeSpec.__new__``.
_new_spec: Callable[[tuple[Any, ...]], NodeSpec] = functools.partial(tuple.__new__, NodeSpec)


def _spec_of(node: Node, edges: Sequence[Target | None], runs: bool, cost: Cost) -> NodeSpec:
    spec = NodeSpec(
        node.label,
        node.sequence_nr,
        tuple(edges) if runs else (),
        tuple([meta.nbytes for meta in node.input_metadata]),
        cost(node) if runs else 0.0,
        node.runs_on_client or (runs and node.has_packed),
        not runs,
        isinstance(node, OperatorNode) and node.operator.joint is None,
        node.has_packed and isinstance(node, OperatorNode),
    )
    if runs and isinstance(node, FunctionNode) and node.function._is_branch:
        spec = spec._replace(is_branch=True)
        return spec._replace(cost_us=least_cost(spec, spec.cost_us))
    return with_division(spec, node)
