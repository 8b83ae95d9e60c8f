"""publish_early(): which outputs of a long task others get before it ends.

A chain of layers is one task on one worker; what runs beside it (the weight gradients of each
layer) needs only the gradients that the chain has come to so far. So the worker publishes them on
its way (NodeTaskProgress) and goes on without waiting for anybody. To publish costs the worker a
message, so it does so only before a Node that takes longer than that.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpgrad.scheduler.graph_spec import NodeSpec

if TYPE_CHECKING:
    from mpgrad.scheduler.plan import Member, OutputSpec

#: A Node that takes less is not worth a message before it: what waits is told a little later.
PUBLISH_BEFORE_US = 200.0


def publish_early(
    nodes: Sequence[NodeSpec],
    members: list[Member],
    outputs: Sequence[OutputSpec],
    total_us: float,
) -> list[float]:
    """Mark those of a task's members before which its outputs so far are published.

    Returns:
        For each output how long the task has run when others get it.
    """
    leaves_us = [total_us] * len(outputs)
    if all(output.task < 0 for output in outputs):
        return leaves_us
    ran_us = 0.0
    waiting: list[int] = []  # have left the task, and others wait for them
    for at, member in enumerate(members):
        node_us = nodes[member.node].cost_us
        waiting += [output for _, output in member.captures if outputs[output].task >= 0]
        if waiting and node_us >= PUBLISH_BEFORE_US:
            members[at] = member._replace(publishes=True)
            for output in waiting:
                leaves_us[output] = ran_us
            waiting.clear()
        waiting += [
            route for route in member.routes if type(route) is int and outputs[route].task >= 0
        ]
        ran_us += node_us
    return leaves_us
