"""Ahead: a plan's first task as a graph of its own. The client runs it before it submits the rest
(``Plan.opens_alone``): in a loop as ``local`` does, and as source when it has come several times.
"""

from __future__ import annotations

from typing import Any

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.devices.device_arrays import CUDA
from mpgrad.dispatch.operator_call import cpu
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.engine.compiled import Compiled, kept
from mpgrad.engine.local import COMPILED_FROM_USE, gradients_of_nodes
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, Target
from mpgrad.scheduler.plan_tables import InnerTarget, Plan


class Ahead:
    """The first task of a graph, and of all graphs with the same tables.

    Args:
        frozen, planned: the graph and its plan.

    Attributes:
        nodes: the Nodes with a rule, in the order in which they run.
        program: its source; or why it has none; None: not yet.
    """

    def __init__(self, frozen: FrozenGraph, planned: Plan) -> None:
        members, specs = planned.groups[0], list[NodeSpec]()
        captures: list[Target] = [(0, 0)] * len(planned.tasks[0].outputs)
        sinks: list[int] = []
        for at, member in enumerate(members):
            spec, edges = frozen.spec.nodes[member.node], list[Target | None]()
            for route, target in zip(member.routes, spec.edges, strict=True):
                if isinstance(route, InnerTarget):
                    edges.append((route.member, route.input_nr))
                elif route is None or target is None:
                    edges.append(None)
                else:  # whatever else flows into it does not matter here
                    captures[route] = len(members) + len(sinks), target[1]
                    edges.append(captures[route])
                    sinks.append(target[0])
            for input_nr, output in member.captures:
                captures[output] = at, input_nr
            specs.append(spec._replace(edges=tuple(edges)))
        specs += [frozen.spec.nodes[sink]._replace(edges=()) for sink in sinks]
        seeds = [
            (number, planned.slots[0][slot])
            for number, (task, slot, _) in enumerate(planned.seeds)
            if task == 0
        ]
        self._spec = GraphSpec(
            tuple(specs),
            tuple([(member, input_nr) for _, (member, input_nr) in seeds]),
            tuple(captures),
            tuple(range(len(specs))),
        )
        self._nodes = [*[member.node for member in members], *sinks]
        self._runs = (*[frozen.runs[member.node] for member in members], *[False] * len(sinks))
        self._seeds = [number for number, _ in seeds]
        self.nodes = [at for at, runs in zip(self._nodes, self._runs, strict=True) if runs]
        self.program: Compiled | str | None = None
        self._uses = 0

    def gradients(self, frozen: FrozenGraph, times: list[float] | None) -> list[Any]:
        """The outputs of the task: arrays, or None. Saved tensors are kept.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
        """
        nodes, seeds = frozen.nodes, frozen.seeds
        part = FrozenGraph(
            tuple([nodes[at] for at in self._nodes]),
            self._runs,
            self._spec,
            tuple([seeds[number] for number in self._seeds]),
            (),
            keep_graph=True,
        )
        self._uses += 1
        if self.program is None and self._uses > COMPILED_FROM_USE:
            kept.add(self, part)
        found: list[Any] | None = None
        if isinstance(self.program, Compiled) and not CUDA.in_use:
            found = self.program.run(part, times)
        return gradients_of_nodes(part, cpu, times) if found is None else found


def ahead_of(frozen: FrozenGraph, planned: Plan) -> Ahead | None:
    """The first task, if it may run ahead: it has no user code, and no part of a Node."""
    nodes, runs = frozen.nodes, frozen.runs
    for member in planned.groups[0]:
        is_operator = isinstance(nodes[member.node], OperatorNode)
        if member.is_half or (runs[member.node] and not is_operator):
            return None
    return Ahead(frozen, planned)
