"""PreparedGraph: what an engine makes of a graph's tables once, and uses in each step of a loop.

A graph like an earlier one has the very same tables (``autograd.recurring_graphs``), so that the
plan, the wiring of its Nodes and what else is the same in each step are kept beside them and found
without comparing anything.
"""

from __future__ import annotations

from time import perf_counter

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.engine.choice import Experience
from mpgrad.engine.wiring import wiring_of
from mpgrad.operator_node import OperatorNode
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_cache import MakePlan, are_near, costs_of, structure
from mpgrad.scheduler.plan_tables import Member, Plan
from mpgrad.wire.programs import (
    CaptureRule,
    NodeProgram,
    OperatorRule,
    Wiring,
    encode_plain,
    encode_wiring,
)

#: So many plans of a graph are made as soon as its costs have changed; further ones once its
#: backwards have taken so many times as long as the last one was in the making. Where times are
#: noisy, costs change all the time, and planning takes longer than a short backward.
PLANS_AT_ONCE, RUNS_PER_PLAN = 4, 10.0


class PreparedGraph:
    """The plan of one graph, and its Nodes' wirings as far as they were asked for.

    Args:
        spec: the tables.
        plan: made of them.
        took_us: how long that took.
    """

    def __init__(self, spec: GraphSpec, plan: Plan, took_us: float = 0.0) -> None:
        self.spec, self.plan = spec, plan
        #: Of all graphs like this one, once it was asked for.
        self.experience: Experience | None = None
        self._wirings: dict[Member, Wiring] = {}
        self._programs: list[list[NodeProgram | bytes] | None] = [None] * len(plan.tasks)
        self._uses = 0
        self._planned_for, self._is_outdated = costs_of(spec), False
        self._plans, self._planning_us, self._ran_us = 1, took_us, 0.0

    @classmethod
    def made(cls, spec: GraphSpec, make_plan: MakePlan) -> PreparedGraph:
        """A graph that is new."""
        started = perf_counter()
        plan = make_plan(spec)
        return cls(spec, plan, (perf_counter() - started) * 1e6)

    # ------------------------------------------------------------------ how long it serves

    def serves(self, spec: GraphSpec) -> bool:
        """Whether the plan is the one of ``spec``, the same graph with other costs perhaps.

        A plan that is no longer the best one is slower, never wrong.
        """
        if spec is not self.spec:
            if structure(spec) != structure(self.spec):
                return False
            self.spec = spec
            self._is_outdated = not are_near(costs_of(spec), self._planned_for)
        return not self._is_outdated or (
            self._plans >= PLANS_AT_ONCE and self._ran_us < RUNS_PER_PLAN * self._planning_us
        )

    def renewed(self, spec: GraphSpec, make_plan: MakePlan) -> PreparedGraph:
        """The same graph with a new plan."""
        new = PreparedGraph.made(spec, make_plan)
        new.experience, new._plans = self.experience, self._plans + 1
        return new

    def note_run(self, took_us: float) -> None:
        """A backward with this plan is over."""
        self._ran_us += took_us

    def grow_young(self) -> None:
        """Its costs have turned out to be wrong."""
        self._uses = 0

    def learns(self) -> bool:
        """Count one use; whether the cost model should hear what its tasks took."""
        self._uses += 1
        return self._uses <= tuning.SAMPLES or self._uses % tuning.SAMPLES == 0

    # ------------------------------------------------------------------ what is the same each time

    def wiring(self, frozen: FrozenGraph, member: Member) -> Wiring:
        """What surrounds the rule of a task's Node, in a graph with these tables."""
        found = self._wirings.get(member)
        if found is None:
            found = self._wirings[member] = wiring_of(frozen, member)
        return found

    def programs(self, frozen: FrozenGraph, task: int) -> list[NodeProgram | bytes]:
        """For each member of a task, in a graph with these tables, its program if nothing in that
        can be another one in the next step; else its encoded wiring.
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
