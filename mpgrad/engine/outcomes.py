"""check_outcome(): whether what the coordinator says of a graph fits the graph.

What it says is believed otherwise, but a number that is out of range must not name another Node.
"""

from __future__ import annotations

from mpgrad.errors import ProtocolError
from mpgrad.scheduler.instructions import CompleteGraph, FailGraph
from mpgrad.scheduler.plan_tables import Plan

#: Kinds of failure, and the least number of a task that each may name: -1 for none.
_LEAST = {"error": 0, "hung": 0, "memory": 0, "lost": -1, "cancelled": -1}


def check_outcome(outcome: CompleteGraph | FailGraph, planned: Plan, captures: int) -> None:
    """Compare an outcome with the plan of its graph, which wants so many ``captures``.

    Raises:
        ProtocolError: it names a task or a Node that there is not, or as many results.
    """
    tasks = len(planned.groups)
    if isinstance(outcome, CompleteGraph):
        if not len(outcome.captures) == len(outcome.exclusive) == captures:
            raise ProtocolError(
                f"{len(outcome.captures)} results ({len(outcome.exclusive)} marks) of a graph "
                f"that has {captures}"
            )
        ran = [task for task, *_ in outcome.ran]
        if ran and not (0 <= min(ran) <= max(ran) < tasks and len(ran) <= tasks):
            raise ProtocolError(f"tasks {min(ran)} to {max(ran)} ran of a graph of {tasks}")
        return
    if not _LEAST.get(outcome.kind, tasks) <= outcome.task < tasks:
        raise ProtocolError(f"{outcome.kind!r} as the end of task {outcome.task} of {tasks}")
    if outcome.kind == "error" and not 0 <= outcome.step < len(planned.groups[outcome.task]):
        raise ProtocolError(f"a failure of Node {outcome.step} of task {outcome.task}")
    figures = outcome.error.split() if outcome.kind == "memory" else [b"0"] * 3
    if len(figures) != 3 or not all(figure.isdigit() for figure in figures):
        raise ProtocolError(f"figures of memory: {outcome.error!r}")
