"""Upstream: which tensors of which messages a graph over hosts leads back to, known in advance.

Each message with tensors takes this along. So the host that calls ``backward()`` knows which of
them will get a gradient, on all hosts, and asks nobody. Where something is not known, a wave of
questions finds it (:mod:`mpgrad.distributed.states.marking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mpgrad.distributed.states.marking import SLOTS_MAX, Reached, Slot

#: The number of a message is the rank of its sender, then a number of this many bits. So is the id
#: of a context.
NUMBER_BITS = 48
#: The slots that one message may name in this way.
NAMED_MAX = 1_000

#: By tensor of a message: the tensors that had come to its sender and lead to it.
Leads: TypeAlias = Sequence[tuple[Slot, ...]]


class Upstream(NamedTuple):
    """What the tensors of one message lead back to."""

    message: int
    #: (some of its tensors, what all of these lead back to).
    groups: tuple[tuple[tuple[int, ...], tuple[Slot, ...]], ...]

    @property
    def size(self) -> int:
        """How many slots it names."""
        return sum(len(numbers) + len(slots) for numbers, slots in self.groups)


def upstream_of(message: int, leads: Leads) -> Upstream:
    """The same, from what each tensor of the message leads back to."""
    groups: dict[tuple[Slot, ...], list[int]] = {}
    for number, slots in enumerate(leads):
        groups.setdefault(slots, []).append(number)
    return Upstream(message, tuple((tuple(numbers), slots) for slots, numbers in groups.items()))


class KnownUpstream:
    """What one host knows of the messages of one context, and what the others know through it."""

    def __init__(self) -> None:
        self._known: dict[int, Upstream] = {}
        self._told: dict[int, dict[int, None]] = {}

    def add(self, upstream: Upstream) -> None:
        """Of a message that this host sends. Too much is not worth its way."""
        if upstream.size <= NAMED_MAX:
            self._known[upstream.message] = upstream

    def learn(self, sender: int, told: Iterable[Upstream]) -> None:
        """What ``sender`` has told."""
        known_there = self._told.setdefault(sender, {})
        for upstream in told:
            self._known[upstream.message] = upstream
            known_there[upstream.message] = None

    def untold(self, to: int, message: int) -> tuple[Upstream, ...]:
        """What goes to ``to`` with ``message``: of it, and of all before it that is new there."""
        known_there = self._told.setdefault(to, {})
        found, todo, left = [], [message], NAMED_MAX
        while todo:
            number = todo.pop()
            upstream = self._known.get(number)
            if upstream is None or number in known_there:
                continue
            left -= upstream.size
            if left < 0:
                break
            known_there[number] = None
            found.append(upstream)
            todo += dict.fromkeys(before for _, slots in upstream.groups for before, _ in slots)
        return tuple(found)

    def marks(self, begin: Iterable[Slot]) -> Reached | None:
        """The slots that get gradients if these do, by the rank that has sent them.

        None where something is not known, or is more than a message takes.
        """
        leads: dict[int, Mapping[int, tuple[Slot, ...]]] = {}
        marked: dict[Slot, None] = {}
        todo = [*begin]
        while todo:
            slot = todo.pop()
            if slot in marked:
                continue
            marked[slot] = None
            message, number = slot
            if message not in leads:
                upstream = self._known.get(message)
                if upstream is None:
                    return None
                leads[message] = {nr: slots for numbers, slots in upstream.groups for nr in numbers}
            todo += leads[message][number]
        found: dict[int, list[Slot]] = {}
        for slot in marked:
            found.setdefault(slot[0] >> NUMBER_BITS, []).append(slot)
        return None if max(map(len, found.values()), default=0) > SLOTS_MAX else found
