"""Incarnations: which process each rank is now, as one rank knows it, and who is no more.

A process that dies may be started again: then another one, with the next number, has its rank.
Rank 0 admits it (``Rendezvous``) and tells all others. Who has lost rank 0 itself asks at its
address until another process answers there, which learns the numbers from those that ask. Numbers
only grow, so what comes late or twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mpgrad.distributed.states.host_membership import Participant

#: The processes that one rank may have had, so that a number of 48 bits can begin with theirs.
INCARNATIONS_MAX = 1 << 16
#: The bits of such a number that each of them has for itself.
OWN_BITS = 32


class MemberGone(NamedTuple):
    """The connection to a process has ended, or it cannot be reached."""

    incarnation: str
    cause: str


class RosterTold(NamedTuple):
    """A process says who all ranks are now; it is the first of them."""

    sender: str
    members: Sequence[Participant]


class LoseMember(NamedTuple):
    """The process of a rank is no more; nothing is sent to it, and nothing of it is read."""

    member: Participant
    cause: str


class AdmitMember(NamedTuple):
    """This process is a rank from now on."""

    member: Participant


MemberEvent: TypeAlias = MemberGone | RosterTold
MemberInstruction: TypeAlias = LoseMember | AdmitMember

#: Why a process is lost whose successor is here.
REPLACED = "another process was started in its place"


class Incarnations:
    """What one rank knows.

    Args:
        rank: of this process.
        members: all ranks, as they have met.
        reopens: those that die are replaced; else the first that all are told of is the last.
    """

    def __init__(self, rank: int, members: Sequence[Participant], *, reopens: bool) -> None:
        self._rank, self._reopens = rank, reopens
        self.members = list(members)
        #: The ranks whose processes have gone, and why.
        self.gone: dict[int, str] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """By rank, the number of its last process."""
        return tuple(member.number for member in self.members)

    @property
    def asks_for_rank_0(self) -> bool:
        """Whether this process should ask who rank 0 is."""
        return self._reopens and 0 in self.gone

    def rank_of(self, incarnation: str) -> int | None:
        """The rank of a process that belongs to the world, also of one that has gone."""
        for member in self.members:
            if member.incarnation == incarnation:
                return member.rank
        return None

    def handle_event(self, event: MemberEvent) -> list[MemberInstruction]:
        """What follows."""
        if isinstance(event, MemberGone):
            rank = self.rank_of(event.incarnation)
            return [] if rank is None else self._lose(rank, event.cause)
        return self._take_roster(event) if self._is_valid(event) else []

    def _lose(self, rank: int, cause: str) -> list[MemberInstruction]:
        if rank in self.gone:
            return []
        self.gone[rank] = cause
        return [LoseMember(self.members[rank], cause)]

    def _is_valid(self, event: RosterTold) -> bool:
        """Whether rank 0 tells it, in this world: its address may have been another process's."""
        members = event.members
        return (
            self._reopens
            and len(members) == len(self.members)
            and members[0].incarnation == event.sender
            and members[0].number >= self.members[0].number
            and members[self._rank].incarnation == self.members[self._rank].incarnation
        )

    def _take_roster(self, event: RosterTold) -> list[MemberInstruction]:
        steps: list[MemberInstruction] = []
        for rank, member in enumerate(event.members):
            if member.number <= self.members[rank].number:
                continue
            steps += [*self._lose(rank, REPLACED), AdmitMember(member)]
            self.members[rank] = member
            del self.gone[rank]
        return steps


def first_number(number: int) -> int:
    """Where a process begins to count what nobody else of its rank may count.

    Raises:
        OverflowError: its rank has had too many processes.
    """
    if number >= INCARNATIONS_MAX:
        raise OverflowError(f"a rank has been started more than {INCARNATIONS_MAX:,} times")
    return number << OWN_BITS


def number_of(count: int) -> int:
    """The number of the process that has counted so far."""
    return count >> OWN_BITS
