"""What the calls of a World give: numbers that depend on seed, items and buffer.

A worker computes them with functions that bugs may be planted in; ``expected_of`` is the oracle.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from mpgrad.calls.array_library import library_of
from mpgrad.calls.branch import sum_of
from simulation.expectations import Wrong, require

#: Of the numbers in a result.
LIBRARY = library_of("mpgrad.calls.own_tensors")


class Call(NamedTuple):
    """A call, as it travels.

    Attributes:
        number: of its branch.
        seed: of the map.
        items: whose results are summed.
        buffer: a Module's buffer, which the call changes; None: it reaches none.
    """

    number: int
    seed: int
    items: tuple[int, ...]
    buffer: float | None


class Recorded(NamedTuple):
    """What a call has recorded, in the place of a ``Branch``.

    Attributes:
        ctx: what its backward reads.
        result: what it has returned.
        buffer: what it has left in the buffer.
    """

    ctx: float
    result: float
    buffer: float | None

    def nbytes(self) -> int:
        """Each branch takes the same room."""
        return 1

    def digest(self) -> int:
        """Of what it has returned."""
        return zlib.crc32(repr((self.result, self.buffer)).encode())


def drawn(seed: int, item: int) -> float:
    """The random number of an item; sums of them depend on their order."""
    chance = Random(f"{seed}:{item}")
    return chance.uniform(-1, 1) * 10 ** chance.randint(0, 6)


def total_of(results: Iterable[float]) -> float:
    """Their sum, as ``parallel_map(out="sum")`` takes it."""
    return functools.reduce(lambda one, other: sum_of(one, other, "f", LIBRARY), results)


def record(call: Call, buffer: float | None) -> Recorded:
    """Run a call in a worker, with a buffer as it was sent."""
    result = total_of([drawn(call.seed, item) for item in call.items])
    left = None if buffer is None else 0.5 * buffer + result
    return Recorded(result * call.seed, result if left is None else result + left, left)


def made_again(call: Call, digest: int) -> Recorded:
    """The branch of a call that ran before; as ``calls.made_again``.

    Raises:
        Wrong: it gives another result than before.
    """
    found = record(call, call.buffer)
    if found.digest() != digest:
        raise Wrong(f"{call} gives another result when it runs again")
    return found


def expected_of(call: Call) -> Recorded:
    """What a call must give, wherever and how often it runs."""
    result = None
    for item in call.items:
        chance = Random(f"{call.seed}:{item}")
        number = chance.uniform(-1, 1) * 10 ** chance.randint(0, 6)
        result = number if result is None else result + number
    require(result is not None, f"{call} has no items")
    assert result is not None
    left = None if call.buffer is None else 0.5 * call.buffer + result
    return Recorded(result * call.seed, result if left is None else result + left, left)
