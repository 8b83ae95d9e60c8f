"""References: the values that this process owns, and the references that it holds and passes on.

A value belongs to one process of a rank, and is gone with it. Everything here is called with the
turn of the group (MemberThread), but where it says otherwise.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.distributed.carrier.messages import ForkConfirmed, ForkHeld, ForkReleased
from mpgrad.distributed.futures import Future
from mpgrad.distributed.states.incarnations import REPLACED, first_number, number_of
from mpgrad.distributed.states.remote_values import (
    ConfirmFork,
    DropValue,
    ForkAdded,
    HolderGone,
    Identity,
    RemoteValueEvent,
    RemoteValues,
)
from mpgrad.errors import HostLost

#: Called with the rank and the message.
Deliver = Callable[[int, ForkHeld | ForkReleased | ForkConfirmed], None]


class Home:
    """The process that owns a value: its rank, and its number among the processes of that.

    Attributes:
        is_released: nobody here needs the value any more.
    """

    __slots__ = ("is_released", "number", "rank")

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number, self.is_released = rank, number, False


class PassedOn(NamedTuple):
    """A reference that a message takes along, and what holds the value until it is known."""

    fork: Identity
    home: Home
    reference: Any


class References:
    """One process's part.

    Args:
        rank: of this process.
        numbers: by rank, the number of its present process; the group's.
        lost: the ranks that have none, the service's.
        deliver: sends to a rank, this one included.
    """

    def __init__(
        self, rank: int, numbers: list[int], lost: dict[int, str], deliver: Deliver
    ) -> None:
        self._rank, self._present, self._lost, self._deliver = rank, numbers, lost, deliver
        self._numbers = itertools.count(first_number(numbers[rank]))
        #: Of the book and the values: a call on its own thread may ask for one as it is dropped.
        self._lock = threading.RLock()
        self._book = RemoteValues()
        #: A future each, as they may not be there yet; those whose calls have not come.
        self._values: dict[Identity, Future] = {}
        self._awaited: set[Identity] = set()
        #: Kept until the owner knows of the new references: whom they went to, and what they are.
        self._passed_on: dict[Identity, tuple[int, PassedOn]] = {}
        #: References that have died; any thread appends.
        self._dead: deque[tuple[Home, Identity, Identity]] = deque()
        #: For processes that this one has not heard of yet.
        self._early: dict[int, list[tuple[int, ForkHeld | ForkReleased]]] = {}

    # ------------------------------------------------------------------ on any thread

    def new_identity(self) -> Identity:
        """A name for a value or a reference that nobody else has."""
        return self._rank, next(self._numbers)

    def keep(self, value: Identity, result: Future) -> None:
        """This process owns ``result`` under that name; ``note`` tells who holds it."""
        self._values[value] = result

    def value(self, value: Identity) -> Future:
        """What this process owns under that name, as long as somebody holds it.

        The call that makes it may not have come yet.
        """
        with self._lock:
            is_awaited = value not in self._values and self._book.lost_with(value) is None
            if is_awaited and self._book.is_held(value):
                self._values[value] = Future()
                self._awaited.add(value)
                self._give_up_awaited()
            if value in self._values:
                return self._values[value]
            dead = self._book.lost_with(value)
        nobody = Future()
        if dead is not None:
            cause = "it had passed on the reference, and nobody else had one"
            nobody.set_exception(HostLost(dead, cause, f"RRef {value}", of_calls=True))
        else:
            nobody.set_exception(RuntimeError(f"nobody holds the value of RRef {value} any more"))
        return nobody

    def held_value(self, value: Identity) -> Future:
        """The same, where the caller itself has a reference; the book may not know that yet."""
        with self._lock:
            return self._values.setdefault(value, Future())

    @property
    def values(self) -> int:
        """How many values this process owns."""
        return len(self._values)

    @property
    def on_their_way(self) -> int:
        """How many references were passed on, and their owners may not know."""
        return len(self._passed_on)

    def add_dead(self, home: Home, value: Identity, fork: Identity) -> None:
        """A reference has died: ``send_releases`` says so later."""
        self._dead.append((home, value, fork))

    # ------------------------------------------------------------------ with the turn

    def begin(self, value: Identity, fork: Identity, caller: int) -> Future:
        """A call has come whose result this process will own; a future for that."""
        with self._lock:
            self.note(ForkAdded(value, fork, caller, -1))
            self._awaited.discard(value)
            if self._book.is_held(value):
                return self._values.setdefault(value, Future())
        return Future()  # the reference was dropped before the call came

    def note(self, event: RemoteValueEvent) -> None:
        """Something has happened to a value of this process."""
        with self._lock:
            steps = self._book.handle_event(event)
            dropped = [step.value for step in steps if isinstance(step, DropValue)]
            gone = [self._values.pop(value, None) for value in dropped]
            self._awaited.difference_update(dropped)
        del gone  # which may call whatever the user's values do at their end
        for instruction in steps:
            if isinstance(instruction, ConfirmFork) and instruction.parent not in self._lost:
                self._deliver(instruction.parent, ForkConfirmed(instruction.fork))

    def hold(self, home: Home, value: Identity, fork: Identity, parent: int) -> None:
        """A reference has come to this process."""
        self._tell(home.rank, home.number, ForkHeld(value, fork, parent))

    def send_releases(self) -> None:
        """Tell the owners what has died here."""
        by_owner: dict[tuple[int, int], list[tuple[Identity, Identity]]] = {}
        while self._dead:
            home, value, fork = self._dead.popleft()
            home.is_released = True
            by_owner.setdefault((home.rank, home.number), []).append((value, fork))
        for (owner, number), forks in by_owner.items():
            self._tell(owner, number, ForkReleased(tuple(forks)))

    def pass_on(self, passed: Sequence[PassedOn], to: int) -> None:
        """A message with references leaves for rank ``to``."""
        for one in passed:
            if not self._is_gone(one.home):
                self._passed_on[one.fork] = to, one

    def confirm(self, fork: Identity) -> None:
        """The owner knows of a reference that was passed on."""
        self._passed_on.pop(fork, None)

    def gone(self, rank: int) -> None:
        """A rank's process has died: it holds nothing any more."""
        for fork, (to, one) in list(self._passed_on.items()):
            if to == rank or self._is_gone(one.home):
                del self._passed_on[fork]
        self.note(HolderGone(rank))
        with self._lock:
            self._give_up_awaited()

    def returned(self, rank: int) -> None:
        """A rank has a process again."""
        for one, message in self._early.pop(rank, ()):
            self._tell(rank, one, message)

    def _give_up_awaited(self) -> None:
        """Values whose calls never come: those who made these have died."""
        for value in sorted(self._awaited):
            rank, number = value[0], number_of(value[1])
            if self._is_gone(Home(rank, number)):
                self._awaited.discard(value)
                cause = self._lost.get(rank, REPLACED)
                self._values[value].set_exception(
                    HostLost(rank, cause, f"RRef {value}", of_calls=True)
                )

    def _is_gone(self, home: Home) -> bool:
        present = self._present[home.rank]
        return home.number < present or (home.number == present and home.rank in self._lost)

    def _tell(self, owner: int, number: int, message: ForkHeld | ForkReleased) -> None:
        """Tell that process, as soon as it is here; one that is no more needs nothing."""
        if number > self._present[owner]:
            self._early.setdefault(owner, []).append((number, message))
        elif number == self._present[owner] and owner not in self._lost:
            self._deliver(owner, message)
