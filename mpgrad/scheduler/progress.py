"""Publisher: which outputs of a long task others get before it ends.

A chain of layers is one task on one worker; what runs beside it (the weight gradients of each
layer) needs only the gradients that the chain has come to so far. So the worker publishes them on
its way (NodeTaskProgress) and goes on without waiting for anybody. To publish costs the worker a
message, so it does so only before a Node that takes longer than that.

A chain of cheap Nodes that begins a branch at each of them (a sum of many experts) has no such
Node. While workers have nothing yet, it publishes all the same, as soon as that lets one begin.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpgrad.scheduler.fusion import PUBLISH_BEFORE_US
from mpgrad.scheduler.graph_spec import NodeSpec

if TYPE_CHECKING:
    from mpgrad.scheduler.plan import Member, OutputSpec

#: While workers are idle, what lets one begin is told after so long. Telling the coordinator more
#: often would only keep it busy: what one message makes ready takes it as long to hand out.
PUBLISH_EVERY_US = 50.0


class Publisher:
    """Visits the tasks in a topological order.

    Args:
        nodes: of the graph.
        costs: of each task.
        waits: of each task, how many contributions it waits for.
        seeded: of each task, how many of them are seeds.
        workers: how many there are.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        costs: Sequence[float],
        waits: Sequence[int],
        seeded: Counter[int],
        workers: int,
    ) -> None:
        self._nodes, self._costs, self._waits = nodes, costs, waits
        #: How many workers have nothing to do after the tasks visited so far.
        self._idle = workers - sum(
            [waits[task] == count for task, count in seeded.items() if waits[task]]
        )

    def visit(self, task: int, members: list[Member], outputs: Sequence[OutputSpec]) -> list[float]:
        """Mark those of a task's members before which its outputs so far are published.

        Returns:
            For each output how long the task has run when others get it.
        """
        leaves_us = [self._costs[task]] * len(outputs)
        if all(output.task < 0 for output in outputs):
            return leaves_us
        starts = self._starts(outputs) if self._idle > 0 else set()
        ran_us = told_us = 0.0
        waiting: list[int] = []  # have left the task, and others wait for them
        for at, member in enumerate(members):
            node_us = self._nodes[member.node].cost_us
            waiting += [output for _, output in member.captures if outputs[output].task >= 0]
            is_due = ran_us - told_us >= PUBLISH_EVERY_US and self._idle > 0
            if waiting and (
                node_us >= PUBLISH_BEFORE_US or (is_due and not starts.isdisjoint(waiting))
            ):
                members[at] = member._replace(publishes=True)
                for output in waiting:
                    leaves_us[output] = ran_us
                self._idle -= len(starts.intersection(waiting))
                waiting.clear()
                told_us = ran_us
            waiting += [
                route for route in member.routes if type(route) is int and outputs[route].task >= 0
            ]
            ran_us += node_us
        self._idle -= len(starts.intersection(waiting))
        return leaves_us

    def _starts(self, outputs: Sequence[OutputSpec]) -> set[int]:
        """The outputs with which a task worth a message has all that it waits for."""
        arrived: Counter[int] = Counter()
        found = set()
        for number, (_, task, _, _) in enumerate(outputs):
            if task >= 0 and self._costs[task] >= PUBLISH_BEFORE_US:
                arrived[task] += 1
                if arrived[task] == self._waits[task]:
                    found.add(number)
        return found
