"""Parcels: what ranks send to each other outside of collectives, and who waits for it.

Knows neither messages nor when a rank is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from mpgrad.distributed.operation import Work


class PendingReceive(NamedTuple):
    """Somebody waits for a parcel."""

    what: str
    #: Ranks of the world; the parcel of any of them will do.
    senders: tuple[int, ...]
    take: Callable[[Sequence[memoryview]], None]
    work: Work
    timeout_s: float
    #: On the clock of who looks after it.
    deadline: float

    def accept(self, sender: int, what: str, frames: Sequence[Any], here: int) -> None:
        """Take a parcel; it is an error where it is not what rank ``here`` wants."""
        self.work.sender = sender
        if what == self.what:
            self.take(frames)
            self.work.end(None)
        else:
            text = f"rank {sender} sent {what}, but rank {here} wants {self.what}"
            self.work.end(RuntimeError(text))


class Parcels:
    """Those that nobody has asked for, and those that somebody waits for.

    Either belongs to a group and a tag. Of one sender they are taken in the order in which they
    came.
    """

    def __init__(self) -> None:
        self._came: dict[tuple[int, int], list[tuple[int, str, Sequence[Any]]]] = {}
        self._awaited: dict[tuple[int, int], list[PendingReceive]] = {}

    def take(
        self, group: int, tag: int, senders: Container[int]
    ) -> tuple[int, str, Sequence[Any]] | None:
        """The first parcel of one of ``senders``: rank, what it is, frames; None: none has come."""
        came = self._came.get((group, tag), [])
        found = next((at for at, parcel in enumerate(came) if parcel[0] in senders), None)
        return None if found is None else came.pop(found)

    def keep(self, group: int, tag: int, sender: int, what: str, frames: Sequence[Any]) -> None:
        """Nobody waits for this one yet."""
        self._came.setdefault((group, tag), []).append((sender, what, frames))

    def await_(self, group: int, tag: int, receive: PendingReceive) -> None:
        """Somebody waits for one that has not come."""
        self._awaited.setdefault((group, tag), []).append(receive)

    def receiver(self, group: int, tag: int, sender: int) -> PendingReceive | None:
        """Who gets a parcel that comes now; None: nobody waits for it."""
        awaited = self._awaited.get((group, tag), [])
        found = next((at for at, one in enumerate(awaited) if sender in one.senders), None)
        return None if found is None else awaited.pop(found)

    @property
    def awaited(self) -> Iterator[PendingReceive]:
        """All that somebody waits for."""
        return (one for all_of in self._awaited.values() for one in all_of)

    def clear(self) -> list[PendingReceive]:
        """Forget everything; who has waited."""
        waiting = list(self.awaited)
        self._came.clear()
        self._awaited.clear()
        return waiting
