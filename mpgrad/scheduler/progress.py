"""find_paths(): the longest path behind each task, which determines its priority.
publish_early(): which outputs of a long task other tasks get before it ends.

A chain of layers is one task on one worker. The work that runs beside it (the weight gradients of
each layer) needs only the gradients that the chain has computed so far. So the worker publishes
them as it goes (NodeTaskProgress) and does not wait for anybody. A publication costs the worker a
message. So it publishes only before a Node that takes longer than a message, and only if another
task can then begin, or is more urgent than the rest of this task.

A trunk (see ``fusion``) has no such Node. While workers are idle, it publishes as soon as that lets
a task begin.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mpgrad.scheduler.graph_spec import NodeSpec
from mpgrad.scheduler.plan_tables import Member, OutputSpec
from mpgrad.scheduler.sum_places import Piece, piece_us


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


class Paths(NamedTuple):
    """For each task the longest path from its beginning, and from its end, in microseconds."""

    longest: list[float]
    behind: list[float]


def find_paths(
    costs: Sequence[float],
    outputs: Sequence[Sequence[OutputSpec]],
    leaves_us: Sequence[Sequence[float]],
    wide: Sequence[tuple[int, int, Piece]] = (),
) -> Paths:
    """The longest paths of the groups, followed by those of the pieces of wide sums.

    Pieces run one after another, so the first piece is the most urgent one.

    Args:
        costs: of each group; groups are numbered in a topological order.
        outputs: of each group.
        leaves_us: for each output, the time its group has run when the consumer gets it.
        wide: for each piece the consumer, the bytes of the sum, and the piece.
    """
    longest, behind = [*costs, *(0.0 for _ in wide)], [0.0] * (len(costs) + len(wide))
    pieces_of: dict[int, list[int]] = {}
    for number, (consumer, _, _) in enumerate(wide):
        pieces_of.setdefault(consumer, []).append(number)
    for at in range(len(costs) - 1, -1, -1):
        for output, left_us in zip(outputs[at], leaves_us[at], strict=True):
            if output.task >= 0:
                longest[at] = max(longest[at], left_us + longest[output.task])
                if left_us >= costs[at]:
                    behind[at] = max(behind[at], longest[output.task])
        for number in reversed(pieces_of.get(at, ())):
            _, nbytes, piece = wide[number]
            index = len(costs) + number
            behind[index] = longest[piece.consumer[0]]
            longest[index] = behind[index] + piece_us(piece, nbytes)
    return Paths(longest, behind)


def needed_from(
    positions: list[int],
    outputs: list[list[OutputSpec]],
    client_tasks: list[int],
    wide: list[tuple[int, int, Piece]],
) -> list[int]:
    """``NodeTaskSpec.needed_from`` of each group.

    Client tasks do not pass it on: user code that follows an error does not run, whichever task
    needs it.
    """
    needed, own = positions.copy(), frozenset(client_tasks)
    consumers = [*range(len(positions)), *(consumer for consumer, _, _ in wide)]
    for at in range(len(positions) - 1, -1, -1):
        if at not in own:
            ends = [needed[consumers[out.task]] for out in outputs[at] if out.task >= 0]
            needed[at] = min([needed[at], *ends])
    return needed
