"""learn(): the costs of Nodes from the times that workers report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.profiling.task_times import unpack_times
from mpgrad.scheduler import tuning
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.scheduler.plan_tables import Member, Plan

#: If all Nodes were expected to be and are this short (in microseconds), nothing is learned.
NEGLIGIBLE_US = tuning.MESSAGE_US / 4
#: A task with more Nodes is not timed: given the limits of a task's length, its Nodes are short.
TIMED_MAX = 1000


def wants_times(members: Sequence[Member]) -> bool:
    """Whether a task must report when each of its Nodes ran, so that their costs can be learned."""
    return len(members) <= TIMED_MAX


def that_ran(runs: Sequence[bool], members: Sequence[Member]) -> list[Member]:
    """The members of a task whose rule was run, which are the ones with reported times."""
    return [m for m in members if runs[m.node] and m.piece_of is None]


def learn(frozen: FrozenGraph, planned: Plan, outcome: CompleteGraph) -> None:
    """Update the cost model with the times that tasks report.

    The time of a task between its rules counts for no Node: every task has it.
    """
    divided: dict[int, _Divided] = {}
    learned: list[tuple[int, float]] = []
    for task, _, _, _, times in outcome.ran:
        if times is None:
            continue
        ran = that_ran(frozen.runs, planned.groups[task])
        for member, took_us in zip(ran, durations_us(unpack_times(times).nodes), strict=True):
            if member.is_half:
                divided.setdefault(member.node, _Divided()).note(frozen, member, took_us)
            else:
                learned.append((member.node, took_us))
    teach(frozen, learned)
    for node, pieces in divided.items():
        pieces.teach(frozen, node)


def teach(frozen: FrozenGraph, measured: Sequence[tuple[int, float]]) -> None:
    """Update the cost model with the times of Nodes in microseconds, if they matter to a plan.

    If one of them matters, all count: Nodes of a kind share an entry, which would otherwise be
    learned only from interrupted runs.
    """
    specs = frozen.spec.nodes
    most_us = max([took_us for _, took_us in measured], default=0.0)
    if most_us <= NEGLIGIBLE_US:
        most_us = max([specs[node].cost_us for node, _ in measured], default=0.0)
    if most_us > NEGLIGIBLE_US:
        costs.observe((frozen.nodes[node], took_us) for node, took_us in measured)


def durations_us(times: Sequence[float]) -> list[float]:
    """Microseconds from start to end, for each pair of times in seconds."""
    found: list[float] = ((np.asarray(times[1::2]) - np.asarray(times[::2])) * 1e6).tolist()
    return found


class _Divided:
    """The times of one Node's pieces: its halves, or the parts of the first half and the second."""

    def __init__(self) -> None:
        self._parts_us: dict[tuple[int, int] | None, float] = {}
        self._second_us: float | None = None

    def note(self, frozen: FrozenGraph, member: Member, took_us: float) -> None:
        if _is_second(frozen, member):
            self._second_us = took_us
        else:
            self._parts_us[member.parts] = took_us

    def teach(self, frozen: FrozenGraph, index: int) -> None:
        """Update the cost model if every piece was measured."""
        spec, node = frozen.spec.nodes[index], frozen.nodes[index]
        first_us, is_whole = sum(self._parts_us.values()), None in self._parts_us
        measured = sum(parts[1] - parts[0] for parts in self._parts_us if parts is not None)
        if not is_whole and measured < len(spec.part_nbytes):
            return
        if self._second_us is not None:
            costs.observe_halves(node, first_us, self._second_us)
        elif not is_whole and not any(_goes_to_sink(frozen, index)):
            costs.observe([(node, first_us)])


def _is_second(frozen: FrozenGraph, member: Member) -> bool:
    """Whether a half of a Node is the one whose outputs go to sinks (``scheduler.split``)."""
    to_sink = _goes_to_sink(frozen, member.node)
    return any(
        route is not None and late for route, late in zip(member.routes, to_sink, strict=True)
    )


def _goes_to_sink(frozen: FrozenGraph, index: int) -> list[bool]:
    specs = frozen.spec.nodes
    return [target is not None and specs[target[0]].is_sink for target in specs[index].edges]
