"""learn(): what the times that workers report say about the costs of Nodes."""

from __future__ import annotations

from mpgrad.autograd import costs
from mpgrad.autograd.freeze import FrozenGraph
from mpgrad.engine.local import NEGLIGIBLE_US
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.scheduler.plan import Member, Plan

#: A plan is wrong in earnest where its tasks took so many times more or less than expected, and the
#: difference is more than a message costs.
FAR_OFF = 2.0
FAR_OFF_US = 1000.0


def is_far_off(planned: Plan, outcome: CompleteGraph) -> bool:
    """Whether a graph that has long been known takes another time now.

    The shapes of a custom Function do not tell how long it takes: it may do a thousand times more
    in the next step, and a plan that makes one task of all its Nodes would then be a serial one.
    """
    took_us = sum([microseconds for _, _, microseconds, _, _ in outcome.ran])
    low, high = sorted((float(took_us), planned.work_us))
    return high > FAR_OFF * low and high - low > FAR_OFF_US


def learn(frozen: FrozenGraph, planned: Plan, outcome: CompleteGraph) -> None:
    """Tell the cost model what Nodes took.

    Where a task's first Node makes up nearly all of it, the task's time is that Node's (or, with
    that of the other half, the whole Node's). Otherwise it is shared out: were a chain that is one
    task never learned from, a wrong guess would cut it in the wrong places for ever.
    """
    halves: dict[int, int] = {}
    for task, _, microseconds, _, _ in outcome.ran:
        members = planned.groups[task]
        head = members[0]
        if head.piece_of is not None:
            continue
        if not _is_dominated(frozen, members):
            _share_out(frozen, members, microseconds)
        elif not head.is_half:
            costs.observe(frozen.nodes[head.node], microseconds)
        elif head.node in halves:
            costs.observe(frozen.nodes[head.node], halves[head.node] + microseconds)
        else:
            halves[head.node] = microseconds


def _is_dominated(frozen: FrozenGraph, members: tuple[Member, ...]) -> bool:
    """Whether a group's first Node makes up nearly all of its time."""
    specs = frozen.spec.nodes
    first = specs[members[0].node].cost_us
    return sum(specs[member.node].cost_us for member in members[1:]) < 0.1 * first


def _share_out(frozen: FrozenGraph, members: tuple[Member, ...], microseconds: float) -> None:
    """A task's time goes to its longer Nodes, in the proportion in which they were expected."""
    if any(member.is_half for member in members):
        return  # it is not said which part of the Node's cost that half is
    specs = frozen.spec.nodes
    longer = [member.node for member in members if specs[member.node].cost_us > NEGLIGIBLE_US]
    expected_us = sum(specs[node].cost_us for node in longer)
    rest_us = sum(specs[member.node].cost_us for member in members) - expected_us
    if longer and microseconds > rest_us:
        factor = (microseconds - rest_us) / expected_us
        for node in longer:
            costs.observe(frozen.nodes[node], specs[node].cost_us * factor)
