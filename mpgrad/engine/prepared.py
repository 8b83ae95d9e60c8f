"""PreparedGraph: what the engine makes of a graph's tables once, and uses in each step of a loop.

A graph like an earlier one has the very same tables (``autograd.recurring_graphs``), so that the
plan, the encoded wiring of its Nodes and what else is the same in each step are found by the
identity of the tables, without comparing anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.dispatch import OperatorNode
from mpgrad.engine.choice import Experience
from mpgrad.engine.wiring import wiring_of
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Member, Plan
from mpgrad.wire.programs import (
    CaptureRule,
    NodeProgram,
    OperatorRule,
    encode_plain,
    encode_wiring,
)

#: Nodes of all graphs that are kept, and graphs: those whose tables have been replaced since are
#: never asked for again.
NODES_MAX = 200_000
GRAPHS_MAX = 64


class PreparedGraph:
    """The plan of one graph, and its Nodes' wirings as far as they were asked for."""

    def __init__(self, spec: GraphSpec, plan: Plan) -> None:
        #: Kept, so that its identity stands for it.
        self.spec = spec
        self.plan = plan
        #: Of all graphs like this one, once it was asked for.
        self.experience: Experience | None = None
        self._programs: list[list[NodeProgram | bytes] | None] = [None] * len(plan.tasks)
        self._uses = 0

    def programs(self, frozen: FrozenGraph, task: int) -> list[NodeProgram | bytes]:
        """For each member of a task, in a graph with these tables, its program if nothing in that
        can be another one in the next step; else its encoded wiring.
        """
        found = self._programs[task]
        if found is None:
            found = [_program_of(frozen, member) for member in self.plan.groups[task]]
            self._programs[task] = found
        return found

    def grow_young(self) -> None:
        """Its costs have turned out to be wrong."""
        self._uses = 0

    def learns(self) -> bool:
        """Count one use; whether the cost model should hear what its tasks took."""
        self._uses += 1
        return self._uses <= tuning.YOUNG_USES or self._uses % tuning.YOUNG_USES == 0


class PreparedGraphs:
    """Those used last. Not thread-safe by itself."""

    def __init__(self, make_plan: Callable[[GraphSpec], Plan]) -> None:
        self._make_plan = make_plan
        self._graphs: OrderedDict[int, PreparedGraph] = OrderedDict()
        self._nodes = 0

    def of(self, spec: GraphSpec, *, may_recur: bool) -> PreparedGraph:
        """What is known of a graph with these very tables.

        Args:
            spec: the tables.
            may_recur: whether the same object may come again; else nothing is kept.
        """
        found = self._graphs.get(id(spec))
        if found is not None and found.spec is spec:
            self._graphs.move_to_end(id(spec))
            return found
        made = PreparedGraph(spec, self._make_plan(spec))
        if may_recur:
            self._keep(made)
        return made

    def _keep(self, made: PreparedGraph) -> None:
        self._graphs[id(made.spec)] = made
        self._nodes += len(made.spec.nodes)
        while self._nodes > NODES_MAX or len(self._graphs) > GRAPHS_MAX:
            _, dropped = self._graphs.popitem(last=False)
            self._nodes -= len(dropped.spec.nodes)


def _program_of(frozen: FrozenGraph, member: Member) -> NodeProgram | bytes:
    wiring, node = encode_wiring(wiring_of(frozen, member)), frozen.nodes[member.node]
    if member.piece_of is not None or not frozen.runs[member.node]:
        return NodeProgram(CaptureRule(), wiring)
    if isinstance(node, OperatorNode):
        needs = [info is not None for info in node.input_info]
        if node.operator.asks_for_shapes_alone(needs):
            rule = OperatorRule(node.operator.name, {}, {}, encode_plain(node.plain))
            return NodeProgram(rule, wiring)
    return wiring
