"""The tree over rank numbers by which every reduction adds, and the part of each rank in it.

The ranks form groups by the binary digits of their number, the largest first: 13 ranks are 0 to 7,
8 to 11, and 12. A group adds in halves: T(0..7) = T(0..3) + T(4..7). The groups are added from the
right: T(0..7) + (T(8..11) + T(12)). So the sum of an element depends on the number of ranks alone:
not on where they run, nor on how an array is cut.

The work is recursive halving and doubling, the nearest ranks first, on an array that is cut into as
many segments as the largest group has ranks. Each rank comes to own some segments of its group's
sum; the owners of a smaller group send theirs to those of the next larger one; then all of it goes
back the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

#: How a received range joins the rank's own: it takes its place, or is added on its right or left.
REPLACE, ADD_RIGHT, ADD_LEFT = "replace", "add_right", "add_left"

#: Numbers of the phases; each level of halving and doubling has one of its own.
HALVE, UP, DOWN, DOUBLE = 0, 64, 65, 128


class Send(NamedTuple):
    """Send the segments from ``first`` to before ``last`` to ``peer``."""

    peer: int
    phase: int
    first: int
    last: int


class Receive(NamedTuple):
    """Wait for these segments from ``peer`` and join them with the rank's own."""

    peer: int
    phase: int
    first: int
    last: int
    join: str


Step: TypeAlias = Send | Receive


class Group(NamedTuple):
    """Neighbouring ranks, as many as a power of two."""

    start: int
    width: int


def groups(ranks: int) -> list[Group]:
    """The groups of ``ranks`` ranks, the largest first."""
    found, start = [], 0
    for digit in reversed(range(ranks.bit_length())):
        if ranks >> digit & 1:
            found.append(Group(start, 1 << digit))
            start += 1 << digit
    return found


def segments(ranks: int) -> int:
    """Into how many segments the array is cut."""
    return groups(ranks)[0].width


def combined(parts: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """The parts of all ranks, combined in the order of the tree.

    Args:
        parts: one for each rank, at least one.
        combine: gets two neighbouring parts, the one of the lower ranks first.
    """

    def of_group(start: int, width: int) -> T:
        if width == 1:
            return parts[start]
        half = width // 2
        return combine(of_group(start, half), of_group(start + half, half))

    *others, last = (of_group(*group) for group in groups(len(parts)))
    for part in reversed(others):
        last = combine(part, last)
    return last


def all_reduce_steps(rank: int, ranks: int) -> list[Step]:
    """What ``rank`` does, in this order, so that every rank has the sum of all segments."""
    all_groups = groups(ranks)
    number = next(k for k, group in enumerate(all_groups) if rank < group.start + group.width)
    group, cut = all_groups[number], all_groups[0].width
    steps: list[Step] = []
    halvings: list[tuple[int, int, int]] = []
    first, last = 0, cut
    for level in range(group.width.bit_length() - 1):
        bit, middle = 1 << level, (first + last) // 2
        peer = group.start + (rank - group.start ^ bit)
        halvings.append((peer, first, last))
        if (rank - group.start) & bit:
            steps.append(Send(peer, HALVE + level, first, middle))
            steps.append(Receive(peer, HALVE + level, middle, last, ADD_LEFT))
            first = middle
        else:
            steps.append(Send(peer, HALVE + level, middle, last))
            steps.append(Receive(peer, HALVE + level, first, middle, ADD_RIGHT))
            last = middle
    smaller = all_groups[number + 1] if number + 1 < len(all_groups) else None
    if smaller is not None:
        steps.append(Receive(_owner(smaller, first, cut), UP, first, last, ADD_RIGHT))
    if number > 0:
        parts = list(_parts(all_groups[number - 1], first, last, cut))
        steps += [Send(peer, UP, begin, end) for peer, begin, end in parts]
        steps += [Receive(peer, DOWN, begin, end, REPLACE) for peer, begin, end in parts]
    if smaller is not None:
        steps.append(Send(_owner(smaller, first, cut), DOWN, first, last))
    for level, (peer, begin, end) in reversed(list(enumerate(halvings))):
        steps.append(Send(peer, DOUBLE + level, first, last))
        there = (last, end) if begin == first else (begin, first)
        steps.append(Receive(peer, DOUBLE + level, *there, REPLACE))
        first, last = begin, end
    return steps


def _owner(group: Group, segment: int, cut: int) -> int:
    """The rank of ``group`` that owns ``segment`` of its sum: each halving looked at one bit."""
    place = 0
    for level in range(group.width.bit_length() - 1):
        if segment & (cut >> (level + 1)):
            place |= 1 << level
    return group.start + place


def _parts(group: Group, first: int, last: int, cut: int) -> Iterator[tuple[int, int, int]]:
    """Who in ``group`` owns which part of the segments from ``first`` to before ``last``."""
    length = cut // group.width
    for begin in range(first, last, length):
        yield _owner(group, begin, cut), begin, begin + length
