"""PlanCache: a training loop freezes the same graph again and again; its plan is made once.

A plan depends on the structure and on the costs. The structure is compared exactly; costs are
learned and drift a little with each run, so a plan serves until they have changed in earnest. A
plan that is no longer the best one is slower, never wrong.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import Plan, plan

#: Plans that are kept, those used last.
PLANS_MAX = 64
#: A plan serves while the work of the graph stays within this factor of what it was made for.
DRIFT_MAX = 1.25


class PlanCache:
    """Plans by the structure of their graph. Not thread-safe by itself."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._plans: OrderedDict[Any, Plan] = OrderedDict()

    def plan(self, spec: GraphSpec) -> Plan:
        """The plan of ``spec``, made now or before."""
        key = structure(spec)
        found = self._plans.get(key)
        work_us = sum(node.cost_us for node in spec.nodes)
        if found is None or not _is_near(work_us, found.work_us):
            found = self._plans[key] = plan(spec, workers=self._workers)
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return found

    def __len__(self) -> int:
        return len(self._plans)


def structure(spec: GraphSpec) -> Any:
    """All of ``spec`` that decides how its tasks are wired: everything but names and costs."""
    nodes = tuple(
        (
            node.edges,
            node.input_nbytes,
            node.on_client,
            node.is_sink,
            node.is_splittable,
            node.unpacks,
        )
        for node in spec.nodes
    )
    return nodes, spec.seeds, spec.captures, spec.order


def _is_near(now_us: float, then_us: float) -> bool:
    return now_us <= then_us * DRIFT_MAX and then_us <= now_us * DRIFT_MAX
