"""Wide sums in pieces: an input with very many contributions is added up as they come.

Otherwise it would hold every one of them until the last has arrived: a weight used a thousand times
would need a thousand gradients' memory. The pieces form a chain, each starting with the sum of the
one before, so the additions are the same ones in the same order, and so are the bits.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler import tuning

#: Contributions that one task adds up: few where they are large, so that memory comes back soon and
#: the work is spread; many where they are small, because each task costs a message.
WIDTH_LARGE, WIDTH_SMALL = 8, 64
LARGE_BYTES = 64 * 1024


class Piece(NamedTuple):
    """A task that adds up part of an input: how many contributions, and where the sum goes."""

    task: int
    places: int
    #: Consumer: task and slot; always place 0.
    consumer: tuple[int, int]


def piece_us(piece: Piece, nbytes: int) -> float:
    """Expected time from the last contribution of ``piece`` to the beginning of what is next."""
    return tuning.MESSAGE_US + piece.places * nbytes / tuning.BYTES_PER_US


class WideSum:
    """How the contributions to one input are spread over a chain of pieces."""

    def __init__(self, consumer: tuple[int, int], count: int, width: int, first_task: int) -> None:
        self._consumer, self._width = consumer, width
        chained = (count - width - 1) // (width - 1) + 1
        tasks = [first_task + at for at in range(chained)]
        ends = [*((task, 0) for task in tasks[1:]), consumer]
        self.pieces = [Piece(task, width, end) for task, end in zip(tasks, ends, strict=True)]
        #: What is left for the consumer itself: the last piece's sum and the last contributions.
        self.places_left = 1 + count - width - (chained - 1) * (width - 1)

    def redirect(self, place: int) -> tuple[int, int, int]:
        """Where contribution number ``place`` goes instead: task, slot, place."""
        if place < self._width:
            return self.pieces[0].task, 0, place
        at, rest = divmod(place - self._width, self._width - 1)
        if at + 1 < len(self.pieces):
            return self.pieces[at + 1].task, 0, rest + 1
        return *self._consumer, rest + 1


def width_for(nbytes: int, count: int) -> int | None:
    """Contributions per piece for an input of ``nbytes``, or None if it needs no pieces."""
    if nbytes <= INLINE_LIMIT_BYTES:
        return None
    width = WIDTH_LARGE if nbytes >= LARGE_BYTES else WIDTH_SMALL
    return width if count > width else None
