"""Wide sums in pieces: an input with very many contributions is added up as they arrive.

Otherwise the input would hold all of them until the last one has arrived: a weight used a thousand
times would need the memory of a thousand gradients. The pieces form a chain, each of which starts
with the sum of the piece before, so the additions, their order and the bits are the same.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler import tuning

#: The number of contributions that one task adds: few large ones, so that memory is released soon
#: and the work is spread; many small ones, because each task costs a message.
WIDTH_LARGE, WIDTH_SMALL = 8, 64
LARGE_BYTES = 64 * 1024


class Piece(NamedTuple):
    """A task that adds part of an input: the number of contributions, and where the sum goes."""

    task: int
    places: int
    #: The consumer: task and slot; the place is always 0.
    consumer: tuple[int, int]


def piece_us(piece: Piece, nbytes: int) -> float:
    """The expected time from the last contribution of ``piece`` to the start of its consumer."""
    return tuning.MESSAGE_US + piece.places * nbytes / tuning.BYTES_PER_US


class WideSum:
    """How the contributions to one input are divided among a chain of pieces."""

    def __init__(self, consumer: tuple[int, int], count: int, width: int, first_task: int) -> None:
        self._consumer, self._width = consumer, width
        chained = (count - width - 1) // (width - 1) + 1
        tasks = [first_task + at for at in range(chained)]
        ends = [*((task, 0) for task in tasks[1:]), consumer]
        self.pieces = [Piece(task, width, end) for task, end in zip(tasks, ends, strict=True)]
        #: The contributions left for the consumer: the last piece's sum and the last contributions.
        self.places_left = 1 + count - width - (chained - 1) * (width - 1)

    def redirect(self, place: int) -> tuple[int, int, int]:
        """The new target of contribution number ``place``: task, slot, place."""
        if place < self._width:
            return self.pieces[0].task, 0, place
        at, rest = divmod(place - self._width, self._width - 1)
        if at + 1 < len(self.pieces):
            return self.pieces[at + 1].task, 0, rest + 1
        return *self._consumer, rest + 1


def width_for(nbytes: int, count: int) -> int | None:
    """Contributions per piece for an input of ``nbytes``; None if it needs no pieces."""
    if nbytes <= INLINE_LIMIT_BYTES:
        return None
    width = WIDTH_LARGE if nbytes >= LARGE_BYTES else WIDTH_SMALL
    return width if count > width else None
