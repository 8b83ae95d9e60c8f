"""RemoteValues: who holds the values that one host owns, and which references are on their way.

Each reference to a value (a *fork*) belongs to one host. Who passes one on keeps his own until the
owner has confirmed the new one. So a value is dropped when nobody holds it, and not before.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

#: (rank of the host that made it, its count there): of a value, and of a fork.
Identity: TypeAlias = tuple[int, int]


#: The values that were lost with a host which their owner remembers.
LOST_MAX = 10_000


class ForkAdded(NamedTuple):
    """``holder`` has a new reference; ``parent`` (-1: nobody) keeps its own until then."""

    value: Identity
    fork: Identity
    holder: int
    parent: int


class ForkDropped(NamedTuple):
    """A holder needs its reference no more."""

    value: Identity
    fork: Identity


class HolderGone(NamedTuple):
    """A host has died or left: it holds nothing any more."""

    rank: int


class ConfirmFork(NamedTuple):
    """Tell ``parent`` that the fork is known: it may let go."""

    parent: int
    fork: Identity


class DropValue(NamedTuple):
    """Nobody holds the value any more."""

    value: Identity


RemoteValueEvent: TypeAlias = ForkAdded | ForkDropped | HolderGone
RemoteValueInstruction: TypeAlias = ConfirmFork | DropValue


class RemoteValues:
    """The owner's book."""

    def __init__(self) -> None:
        #: The forks of each value, and their holders, in the order in which they came.
        self._holders: dict[Identity, dict[Identity, int]] = {}
        #: Forks that were dropped before they were known.
        self._early_drops: set[Identity] = set()
        #: Of values that a host had that has died: that host. It may have passed a reference on.
        self._dead_holders: dict[Identity, int] = {}
        #: The same, of those that were dropped.
        self._lost: dict[Identity, int] = {}

    @property
    def count(self) -> int:
        """How many values have holders."""
        return len(self._holders)

    def is_held(self, value: Identity) -> bool:
        """Whether somebody holds a value."""
        return value in self._holders

    def lost_with(self, value: Identity) -> int | None:
        """The host that has died with a reference to a value that was dropped; None if none has."""
        return self._lost.get(value)

    def handle_event(self, event: RemoteValueEvent) -> list[RemoteValueInstruction]:
        """What follows."""
        if isinstance(event, ForkAdded):
            return self._add(event)
        if isinstance(event, ForkDropped):
            if event.fork not in self._holders.get(event.value, {}):
                self._early_drops.add(event.fork)
                return []
            return self._drop(event.value, event.fork)
        gone = [
            (value, fork)
            for value, forks in self._holders.items()
            for fork, holder in forks.items()
            if holder == event.rank
        ]
        self._dead_holders.update((value, event.rank) for value, _ in gone)
        return [step for value, fork in gone for step in self._drop(value, fork)]

    def _add(self, event: ForkAdded) -> list[RemoteValueInstruction]:
        confirm: list[RemoteValueInstruction] = []
        if event.parent >= 0:
            confirm.append(ConfirmFork(event.parent, event.fork))
        if event.fork in self._early_drops:
            self._early_drops.discard(event.fork)
            return confirm if self.is_held(event.value) else [*confirm, DropValue(event.value)]
        self._holders.setdefault(event.value, {})[event.fork] = event.holder
        return confirm

    def _drop(self, value: Identity, fork: Identity) -> list[RemoteValueInstruction]:
        forks = self._holders[value]
        del forks[fork]
        if forks:
            return []
        del self._holders[value]
        if value in self._dead_holders:
            self._lost[value] = self._dead_holders.pop(value)
            if len(self._lost) > LOST_MAX:
                del self._lost[next(iter(self._lost))]
        return [DropValue(value)]
