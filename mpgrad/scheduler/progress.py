"""publish_early(): which outputs of a long task other tasks get before it ends.

A chain of layers is one task on one worker. The work that runs beside it (the weight gradients of
each layer) needs only the gradients that the chain has computed so far. So the worker publishes
them as it goes (NodeTaskProgress) and does not wait for anybody. A publication costs the worker a
message. So it publishes only before a Node that takes longer than a message, and only if another
task can then begin, or is more urgent than the rest of this task.

A trunk (see ``fusion``) has no such Node. While workers are idle, it publishes as soon as that lets
a task begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mpgrad.scheduler.critical_path import find_paths
from mpgrad.scheduler.graph_spec import NodeSpec
from mpgrad.scheduler.plan_tables import Member, OutputSpec


class Wired(NamedTuple):
    """The tasks of a plan in a topological order, one entry each."""

    costs: list[float]
    members: list[list[Member]]
    outputs: list[list[OutputSpec]]
    #: The number of contributions that each task waits for, and how many of these are seeds.
    waits: list[int]
    seeded: Counter[int]


def publish_early(
    nodes: Sequence[NodeSpec], wired: Wired, workers: int, local_share: int, message_us: float
) -> list[list[float]]:
    """Mark the members before which the outputs so far are published, not in the local share.

    Returns:
        For each output of each task, how long the task has run when its consumer gets it.
    """
    at_end = [
        [cost] * len(outputs) for cost, outputs in zip(wired.costs, wired.outputs, strict=True)
    ]
    if workers < 2:
        return at_end
    longest_us = find_paths(wired.costs, wired.outputs, at_end).longest
    publisher = _Publisher(nodes, wired, longest_us, message_us)
    publisher.idle = workers - sum(
        [wired.waits[task] == count for task, count in wired.seeded.items()]
    )
    return [
        left_us
        if task == local_share or _runs_elsewhere(nodes[members[0].node])
        else publisher.visit(task, members, left_us)
        for task, (members, left_us) in enumerate(zip(wired.members, at_end, strict=True))
    ]


def _runs_elsewhere(node: NodeSpec) -> bool:
    """Whether no CPU worker runs it. (A GPU worker only starts kernels, which takes no time.)"""
    return not node.is_for_cpu


class _Publisher:
    """Visits the tasks in a topological order.

    Attributes:
        idle: the number of workers without work after the tasks visited so far.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        wired: Wired,
        longest_us: Sequence[float],
        message_us: float,
    ) -> None:
        self._nodes, self._wired, self._longest_us = nodes, wired, longest_us
        self._message_us = message_us
        self.idle = 0

    def visit(self, task: int, members: list[Member], left_us: list[float]) -> list[float]:
        """Mark members of ``task``; update ``left_us``, the times when its outputs leave it."""
        outputs = self._wired.outputs[task]
        complete = _completing(outputs)
        if not complete:
            return left_us
        starts = {at for at, count in complete.items() if self._starts(outputs[at].task, count)}
        ran_us = told_us = 0.0
        waiting: list[int] = []  # outputs that have been computed and that others wait for
        for at, member in enumerate(members):
            node_us = self._nodes[member.node].cost_us
            waiting += [output for _, output in member.captures if outputs[output].task >= 0]
            useful = starts.intersection(waiting)
            rest_us = self._wired.costs[task] - ran_us
            if node_us >= self._message_us:
                is_due = bool(useful) or any(
                    output in complete and self._longest_us[outputs[output].task] > rest_us
                    for output in waiting
                )
            else:
                is_due = bool(useful) and self.idle > 0
                is_due = is_due and min(ran_us - told_us, rest_us) >= self._message_us
            if is_due:
                members[at] = member._replace(publishes=True)
                for output in waiting:
                    left_us[output] = ran_us
                self.idle -= len(useful)
                waiting.clear()
                told_us = ran_us
            waiting += [
                route for route in member.routes if type(route) is int and outputs[route].task >= 0
            ]
            ran_us += node_us
        self.idle -= len(starts.intersection(waiting))
        return left_us

    def _starts(self, consumer: int, count: int) -> bool:
        """Whether ``consumer`` waits for only ``count`` contributions and is worth a message."""
        wired = self._wired
        return wired.waits[consumer] == count and wired.costs[consumer] >= self._message_us


def _completing(outputs: Sequence[OutputSpec]) -> dict[int, int]:
    """The last output for each consumer, with their number: earlier ones are not enough alone."""
    latest: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for number, (_, consumer, _, _) in enumerate(outputs):
        if consumer >= 0:
            latest[consumer] = number
            counts[consumer] += 1
    return {number: counts[consumer] for consumer, number in latest.items()}
