"""PlanCache: a training loop freezes the same graph again and again; it is planned once.

A plan depends on the structure and on the costs. The structure is compared exactly. Costs are
learned and drift a little with each run, so a plan is used until they have changed considerably, or
until the work has moved from some Nodes to others. A plan that is no longer the best is slower,
never wrong.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Plan

#: The number of plans that are kept, the last used ones.
PLANS_MAX = 64

MakePlan: TypeAlias = Callable[..., Plan]


class PlanCache:
    """Plans by the structure of their graph. Not thread-safe by itself.

    It serves graphs whose tables are made anew each time, because of hooks. Other graphs keep
    their plan beside their tables.

    Args:
        make_plan: makes a plan of a graph, with ``together`` of ``plan()``.
        least_us: what a Node counts as at least, where costs are compared.
    """

    def __init__(self, make_plan: MakePlan, least_us: float = 0.0) -> None:
        self._make_plan, self._least_us = make_plan, least_us
        self._plans: OrderedDict[Any, tuple[list[float], Plan]] = OrderedDict()

    def plan(self, spec: GraphSpec, together: tuple[int, ...] = ()) -> Plan:
        """The plan of ``spec``: a cached one or a new one; ``together`` as for ``plan()``."""
        key = structure(spec), together
        found = self._plans.get(key)
        costs = costs_of(spec, self._least_us)
        if found is None or not are_near(costs, found[0]):
            found = self._plans[key] = (costs, self._make_plan(spec, together=together))
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return found[1]

    def __len__(self) -> int:
        return len(self._plans)


def structure(spec: GraphSpec) -> Any:
    """All of ``spec`` that decides how its tasks are connected: everything but names and costs.

    (The order contains the sequence numbers.)
    """
    nodes = tuple(
        [
            (
                node.edges,
                node.input_nbytes,
                node.on_client,
                node.is_sink,
                node.is_splittable,
                node.unpacks,
                node.passes,
                node.device,
                node.device_inputs,
                node.part_nbytes,
                node.parts,
                node.is_branch,
            )
            for node in spec.nodes
        ]
    )
    return nodes, spec.seeds, spec.captures, spec.order


def costs_of(spec: GraphSpec, least_us: float = 0.0) -> list[float]:
    """The costs of each Node that runs, at least ``least_us``, in both of its halves."""
    costs = [node.cost_us and max(node.cost_us, least_us) for node in spec.nodes]
    seconds = [cost * node.second_half_share for cost, node in zip(costs, spec.nodes, strict=True)]
    return [cost - second for cost, second in zip(costs, seconds, strict=True)] + seconds


def are_near(now_us: list[float], then_us: list[float]) -> bool:
    """Whether a plan for costs ``then_us`` also fits costs ``now_us``."""
    moved = sum([abs(now - then) for now, then in zip(now_us, then_us, strict=True)])
    return moved <= tuning.DRIFT_MAX * min(sum(now_us), sum(then_us))
