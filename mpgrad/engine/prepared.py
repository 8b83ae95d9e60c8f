"""PreparedGraph: what an engine makes of a graph's tables once and uses in each step of a loop.

A graph like an earlier one has the very same tables (``freezing.recurring_graphs``). So its plan,
the wiring of its Nodes and everything else that is the same in each step are kept beside the tables
and found without a comparison.
"""

from __future__ import annotations

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.engine.choice import Experience
from mpgrad.engine.wiring import wiring_of
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_cache import are_near, costs_of, structure
from mpgrad.scheduler.plan_tables import Member, Plan
from mpgrad.wire.programs import (
    CaptureRule,
    NodeProgram,
    OperatorRule,
    Wiring,
    encode_plain,
    encode_wiring,
)


class PreparedGraph:
    """The plan of one graph, and the wirings of its Nodes as far as they were requested.

    Args:
        spec: the tables.
        plan: the plan of these tables.
    """

    def __init__(self, spec: GraphSpec, plan: Plan) -> None:
        self.spec, self.plan = spec, plan
        #: Equal for graphs of one structure whose gradients have the same sizes.
        self.shapes = hash(tuple([node.input_nbytes for node in spec.nodes]))
        #: Shared by all graphs of this structure; set on first use.
        self.experience: Experience | None = None
        self._wirings: dict[Member, Wiring] = {}
        self._programs: list[list[NodeProgram | bytes] | None] = [None] * len(plan.tasks)
        self._uses = 0
        self._planned_for = costs_of(spec)

    def serves(self, spec: GraphSpec) -> bool:
        """Whether the plan is still good for ``spec``, the same graph with perhaps other costs.

        If so, its costs become those of ``spec``. A plan that is no longer the best is slower,
        never wrong.
        """
        if spec is not self.spec:
            if structure(spec) != structure(self.spec) or not are_near(
                costs_of(spec), self._planned_for
            ):
                return False
            self.spec = spec
        return True

    def grow_young(self) -> None:
        """Learn the costs again: they have turned out to be wrong."""
        self._uses = 0

    def learns(self) -> bool:
        """Count a use; whether the cost model should learn from this one."""
        self._uses += 1
        return self._uses <= tuning.SAMPLES or self._uses % tuning.SAMPLES == 0

    def wiring(self, frozen: FrozenGraph, member: Member) -> Wiring:
        """The wiring around the rule of a task's Node, for graphs with these tables."""
        found = self._wirings.get(member)
        if found is None:
            found = self._wirings[member] = wiring_of(frozen, member)
        return found

    def programs(self, frozen: FrozenGraph, task: int) -> list[NodeProgram | bytes]:
        """One entry per member of a task, for graphs with these tables.

        It is the whole program if that is the same in every step, otherwise only the encoded
        wiring.
        """
        found = self._programs[task]
        if found is None:
            found = [_program_of(frozen, member) for member in self.plan.groups[task]]
            self._programs[task] = found
        return found


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
