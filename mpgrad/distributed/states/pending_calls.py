"""PendingCalls: the calls of one host that wait for an answer, whoever of the callees dies.

A call is for one process of a rank. If that dies first, the call has failed, unless it may be made
again: then it waits for the next process of that rank.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class CallMade(NamedTuple):
    """This host calls the process of rank ``to`` that has this number among the rank's processes.

    It may be one that this host has not heard of yet.
    """

    call: int
    to: int
    number: int
    deadline: float
    #: Any later process of the rank will do, too.
    repeats: bool


class CallAnswered(NamedTuple):
    """The present process of a rank has answered."""

    call: int


class CalleeGone(NamedTuple):
    """A rank's process has died or left."""

    rank: int


class CalleeReturned(NamedTuple):
    """A rank has a process again, the one of this number."""

    rank: int
    number: int


class TimePassed(NamedTuple):
    """It is this late."""

    now: float


class SendCall(NamedTuple):
    """Send it to the present process of its rank."""

    call: int


class TakeAnswer(NamedTuple):
    """The call is over: what has come is its result, or its error."""

    call: int


class FailCall(NamedTuple):
    """The call is over, without an answer.

    Attributes:
        is_lost: its callee has died; else the time is over.
    """

    call: int
    is_lost: bool


CallEvent: TypeAlias = CallMade | CallAnswered | CalleeGone | CalleeReturned | TimePassed
CallInstruction: TypeAlias = SendCall | TakeAnswer | FailCall


class PendingCalls:
    """One host's.

    Args:
        numbers: by rank, the number of its present process.
    """

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = list(numbers)
        self._gone: set[int] = set()
        self._calls: dict[int, CallMade] = {}
        #: Those that wait for a process, not for an answer.
        self._parked: set[int] = set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._calls)

    @property
    def next_deadline(self) -> float:
        """When the time of the next one is over; infinity for never."""
        return min((made.deadline for made in self._calls.values()), default=float("inf"))

    def handle_event(self, event: CallEvent) -> list[CallInstruction]:
        """What follows."""
        if isinstance(event, CallMade):
            self._calls[event.call] = event
            return self._try(event)
        if isinstance(event, CallAnswered):
            if event.call not in self._calls or event.call in self._parked:
                return []  # it has timed out, or another process answers
            self._forget(event.call)
            return [TakeAnswer(event.call)]
        if isinstance(event, TimePassed):
            late = [made.call for made in self._calls.values() if made.deadline <= event.now]
            return [self._fail(call, is_lost=call in self._parked) for call in late]
        if isinstance(event, CalleeGone):
            self._gone.add(event.rank)
        else:
            self._gone.discard(event.rank)
            self._numbers[event.rank] = event.number
        own = [made for made in self._calls.values() if made.to == event.rank]
        return [step for made in own for step in self._try(made)]

    def _try(self, made: CallMade) -> list[CallInstruction]:
        """Send it, let it wait, or give it up."""
        present, is_gone = self._numbers[made.to], made.to in self._gone
        if made.number > present or (made.repeats and is_gone):
            self._parked.add(made.call)
            return []
        if is_gone or (made.number < present and not made.repeats):
            return [self._fail(made.call, is_lost=True)]
        self._parked.discard(made.call)
        return [SendCall(made.call)]

    def _fail(self, call: int, *, is_lost: bool) -> FailCall:
        self._forget(call)
        return FailCall(call, is_lost)

    def _forget(self, call: int) -> None:
        del self._calls[call]
        self._parked.discard(call)
