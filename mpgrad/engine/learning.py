"""learn(): what the times that workers report say about the costs of Nodes."""

from __future__ import annotations

from collections.abc import Sequence

from mpgrad.autograd import costs
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.profiler import unpack_times
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.scheduler.plan_tables import Member, Plan

#: Where all Nodes were expected to be and are this short they teach nothing, in microseconds.
NEGLIGIBLE_US = 25.0
#: A task of more Nodes is not timed Node by Node: as long as tasks may become, its Nodes are short.
TIMED_MAX = 1000


def wants_times(members: Sequence[Member]) -> bool:
    """Whether a task must say when each of its Nodes ran, so that their costs can be learned."""
    return 1 < len(members) <= TIMED_MAX


def that_ran(frozen: FrozenGraph, members: Sequence[Member]) -> list[Member]:
    """Those of a task's members whose rule was run: times are reported of these."""
    return [m for m in members if frozen.runs[m.node] and m.piece_of is None]


def learn(frozen: FrozenGraph, planned: Plan, outcome: CompleteGraph) -> None:
    """Tell the cost model what Nodes took.

    A task of one Node says so by its length, one of several by the times that it reports. Where
    none were asked for, and the first Node makes up nearly all of the task, its time is that
    Node's; otherwise it is shared out: were a long task never learned from, a wrong guess would cut
    it in the wrong places for ever.
    """
    divided: dict[int, _Divided] = {}
    learned: list[tuple[int, float]] = []
    for task, _, microseconds, _, times in outcome.ran:
        members = planned.groups[task]
        if members[0].piece_of is not None:
            continue
        if times is not None and len(members) > 1:
            measured = _measured(frozen, members, microseconds, unpack_times(times))
        elif _is_dominated(frozen, members):
            measured = [(members[0], float(microseconds))]
        else:
            measured = _shared_out(frozen, members, microseconds)
        for member, took_us in measured:
            if member.is_half:
                divided.setdefault(member.node, _Divided()).note(frozen, member, took_us)
            else:
                learned.append((member.node, took_us))
    teach(frozen, learned)
    for node, pieces in divided.items():
        pieces.teach(frozen, node)


def teach(frozen: FrozenGraph, measured: Sequence[tuple[int, float]]) -> None:
    """Tell the cost model what Nodes took, in microseconds, if it matters to a plan.

    If one does, all count: Nodes of a kind share an entry, which would otherwise be learned from
    those alone that were interrupted.
    """
    specs = frozen.spec.nodes
    if any(max(took_us, specs[node].cost_us) > NEGLIGIBLE_US for node, took_us in measured):
        costs.observe((frozen.nodes[node], took_us) for node, took_us in measured)


def durations_us(times: Sequence[float]) -> list[float]:
    """Microseconds from start to end, for each pair of these times in seconds."""
    return [(end - start) * 1e6 for start, end in zip(times[::2], times[1::2], strict=True)]


class _Divided:
    """What the pieces of one Node took: its halves, or the parts of the first and the second."""

    def __init__(self) -> None:
        self._parts_us: dict[tuple[int, int] | None, float] = {}
        self._second_us: float | None = None

    def note(self, frozen: FrozenGraph, member: Member, took_us: float) -> None:
        if _is_second(frozen, member):
            self._second_us = took_us
        else:
            self._parts_us[member.parts] = took_us

    def teach(self, frozen: FrozenGraph, index: int) -> None:
        """Tell the cost model, if all of it was measured."""
        spec, node = frozen.spec.nodes[index], frozen.nodes[index]
        first_us, is_whole = sum(self._parts_us.values()), None in self._parts_us
        measured = sum(parts[1] - parts[0] for parts in self._parts_us if parts is not None)
        if not is_whole and measured < len(spec.part_nbytes):
            return
        if self._second_us is not None:
            costs.observe_halves(node, first_us, self._second_us)
        elif not is_whole and not any(_goes_to_sink(frozen, index)):
            costs.observe([(node, first_us)])


def _measured(
    frozen: FrozenGraph, members: Sequence[Member], task_us: float, times: Sequence[float]
) -> list[tuple[Member, float]]:
    """What each Node of a task took; the time between their rules is shared by all that ran."""
    ran = that_ran(frozen, members)
    took_us = durations_us(times)
    between_us = max(task_us - sum(took_us), 0.0) / max(len(ran), 1)
    return [(member, each_us + between_us) for member, each_us in zip(ran, took_us, strict=True)]


def _is_second(frozen: FrozenGraph, member: Member) -> bool:
    """Whether a half of a Node is the one whose outputs go to sinks (``scheduler.split``)."""
    to_sink = _goes_to_sink(frozen, member.node)
    return any(
        route is not None and late for route, late in zip(member.routes, to_sink, strict=True)
    )


def _goes_to_sink(frozen: FrozenGraph, index: int) -> list[bool]:
    specs = frozen.spec.nodes
    return [target is not None and specs[target[0]].is_sink for target in specs[index].edges]


def _is_dominated(frozen: FrozenGraph, members: tuple[Member, ...]) -> bool:
    """Whether a group's first Node makes up nearly all of its time."""
    specs = frozen.spec.nodes
    first = specs[members[0].node].cost_us
    return sum(specs[member.node].cost_us for member in members[1:]) < 0.1 * first


def _shared_out(
    frozen: FrozenGraph, members: Sequence[Member], task_us: float
) -> list[tuple[Member, float]]:
    """A task's time goes to its longer Nodes, in the proportion in which they were expected."""
    if any(member.is_half for member in members):
        return []  # the other half has times of its own
    specs = frozen.spec.nodes
    longer = [member for member in members if specs[member.node].cost_us > NEGLIGIBLE_US]
    expected_us = sum(specs[member.node].cost_us for member in longer)
    rest_us = sum(specs[member.node].cost_us for member in members) - expected_us
    if not longer or task_us <= rest_us:
        return []
    factor = (task_us - rest_us) / expected_us
    return [(member, specs[member.node].cost_us * factor) for member in longer]
