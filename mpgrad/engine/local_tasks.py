"""LocalTask: a task that the calling thread runs as a graph of its own.

It runs in a loop as ``local`` does, and as source when it has come several times. There are two of
them. The first task of a plan may run before the others are submitted (``Plan.opens_alone``), and
another one while the workers run theirs (``Plan.local_share``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.compiled import Compiled, kept
from mpgrad.engine.local import COMPILED_FROM_USE, gradients_of_nodes
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, Target
from mpgrad.scheduler.plan_tables import InnerTarget, Plan


class LocalTask:
    """One task of a graph, and of all graphs with the same tables.

    Args:
        frozen, planned: the graph and its plan.
        task: the task's number. It waits for nothing but seeds and what task 0 gives.

    Attributes:
        task: its number.
        members: by Node with a rule, in the order in which they run, its number among the Nodes of
            the task.
        nodes: the same Nodes by their number in the graph.
        program: its source; or why it has none; None: not yet.
    """

    def __init__(self, frozen: FrozenGraph, planned: Plan, task: int) -> None:
        self.task, members, specs = task, planned.groups[task], list[NodeSpec]()
        captures: list[Target] = [(0, 0)] * len(planned.tasks[task].outputs)
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
        #: In the order of their places: the slot, whether task 0 gives it, and its number there.
        self._inputs = _inputs_of(planned, task)
        slots = planned.slots[task]
        self._spec = GraphSpec(
            tuple(specs),
            tuple([(slots[slot].member, slots[slot].input_nr) for slot, *_ in self._inputs]),
            tuple(captures),
            tuple(range(len(specs))),
        )
        self._nodes = [*[member.node for member in members], *sinks]
        self._runs = (*[frozen.runs[member.node] for member in members], *[False] * len(sinks))
        self.members = [at for at, runs in enumerate(self._runs) if runs]
        self.nodes = [self._nodes[at] for at in self.members]
        self.program: Compiled | str | None = None
        self._uses = 0

    def gradients(
        self, frozen: FrozenGraph, times: list[float] | None, ahead: Sequence[Any] = ()
    ) -> list[Any]:
        """The outputs of the task: arrays, or None. Saved tensors are kept.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
            ahead: the outputs of task 0, if that has run.
        """
        nodes, seeds = frozen.nodes, frozen.seeds
        part = FrozenGraph(
            tuple([nodes[at] for at in self._nodes]),
            self._runs,
            self._spec,
            tuple([ahead[at] if is_made else seeds[at] for _, is_made, at in self._inputs]),
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


def _inputs_of(planned: Plan, task: int) -> list[tuple[int, bool, int]]:
    placed = [
        (slot, place, False, number)
        for number, (to, slot, place) in enumerate(planned.seeds)
        if to == task
    ]
    if task:
        placed += [
            (output.slot, output.place, True, number)
            for number, output in enumerate(planned.tasks[0].outputs)
            if output.task == task
        ]
    return [(slot, is_made, number) for slot, _, is_made, number in sorted(placed)]


def ahead_of(frozen: FrozenGraph, planned: Plan) -> LocalTask | None:
    """The first task, if it may run ahead: it has no user code, and no part of a Node."""
    nodes, runs = frozen.nodes, frozen.runs
    for member in planned.groups[0]:
        is_operator = isinstance(nodes[member.node], OperatorNode)
        if member.is_half or (runs[member.node] and not is_operator):
            return None
    return LocalTask(frozen, planned, 0)
