"""find_paths(): the longest path behind each task, which determines its priority.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpgrad.scheduler.plan_tables import OutputSpec
from mpgrad.scheduler.sum_places import Piece, piece_us


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
