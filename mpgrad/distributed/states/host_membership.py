"""Who belongs to a group: Rendezvous, until all ranks are there, and HostMembership, from then on.

A rank is one incarnation: a process that comes later under the same number is another one, and so
is one that meets the others again. So the incarnations of all ranks name one generation of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

#: The processes that have gone which rank 0 remembers.
FORMER_MAX = 10_000

# ---------------------------------------------------------------------------- rendezvous


class Participant(NamedTuple):
    """A process that wants to be a rank, and where it can be reached."""

    rank: int
    incarnation: str
    address: str
    #: How many processes have been this rank before.
    number: int = 0


class HostJoined(NamedTuple):
    """A process has asked for its rank."""

    member: Participant
    world_size: int
    #: What has to be equal everywhere: (what it is, its version), in one order.
    versions: tuple[tuple[str, str], ...]
    #: What decides how its numbers round, in the same form: it may differ.
    arithmetic: tuple[tuple[str, str], ...] = ()
    #: Of a process that lost rank 0 and waits for the next: by rank, the numbers of the processes
    #: that it knows. Nothing of one that is new.
    numbers: tuple[int, ...] = ()


class HostGone(NamedTuple):
    """A process that had joined has died, or cannot be reached."""

    incarnation: str


class RendezvousExpired(NamedTuple):
    """The time within which all ranks have to join is over."""


class SendRoster(NamedTuple):
    """All are there: tell ``to`` who they are."""

    to: Participant
    members: tuple[Participant, ...]


class RefuseHost(NamedTuple):
    """Tell ``to`` that it cannot take part, and why."""

    to: Participant
    reason: str
    #: Whether it was refused because others did not come.
    is_timeout: bool


Answer: TypeAlias = SendRoster | RefuseHost


class Rendezvous:
    """Kept by rank 0, which is the first to join.

    Args:
        world_size: how many ranks there are.
        versions: of rank 0; see ``HostJoined``.
        replaces: ranks are started again: of two processes of one rank the one that asked last
            counts. One that waits asks again and again, one that is dead does not.
        reopens: once all were there, a new process takes the place of one that has gone.
    """

    def __init__(
        self,
        world_size: int,
        versions: Sequence[tuple[str, str]],
        *,
        replaces: bool = False,
        reopens: bool = False,
    ) -> None:
        self._world_size = world_size
        self._versions = tuple(versions)
        self._replaces, self._reopens = replaces, reopens
        #: By rank, the highest number of a process that anybody knows; -1: of none.
        self._numbers = [-1] * world_size
        #: Once all were there: the ranks whose processes have gone.
        self._gone: set[int] = set()
        #: Processes that have gone, in the order in which they went: they do not come back.
        self._former: dict[str, None] = {}
        self._members: dict[int, Participant] = {}
        self._arithmetic: dict[int, tuple[tuple[str, str], ...]] = {}
        self._refused: dict[int, str] = {}
        self.is_open = True

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return [rank for rank in range(self._world_size) if rank not in self._members]

    def handle_event(self, event: HostJoined | HostGone | RendezvousExpired) -> list[Answer]:
        """Whom to tell what."""
        if isinstance(event, HostJoined):
            return self._join(event)
        if isinstance(event, HostGone):
            self._part_from(event.incarnation)
            return []
        return self._expire()

    def _part_from(self, incarnation: str) -> None:
        for rank, member in list(self._members.items()):
            if member.incarnation != incarnation:
                continue
            if self.is_open:
                del self._members[rank]
            else:
                self._gone.add(rank)
                self._former[incarnation] = None
                if len(self._former) > FORMER_MAX:
                    del self._former[next(iter(self._former))]

    def _join(self, event: HostJoined) -> list[Answer]:
        member = event.member
        present = self._members.get(member.rank)
        if member.incarnation in self._former:
            return []
        if present is not None and present.incarnation == member.incarnation:
            # A message that came twice.
            return [] if self.is_open else [SendRoster(present, self._roster())]
        is_vacant = self._reopens and member.rank in self._gone
        if self._replaces and not self.is_open and not is_vacant:
            return []  # it waits until this generation or process is over, and asks again
        reason = self._objection(event, None if is_vacant else present)
        if reason:
            if present is None:
                self._refused[member.rank] = reason
            return [RefuseHost(member, reason, is_timeout=False)]
        if len(event.numbers) == self._world_size:
            self._numbers = [max(pair) for pair in zip(self._numbers, event.numbers, strict=True)]
            member = member._replace(number=event.numbers[member.rank])
        else:
            member = member._replace(number=-1)
        self._members[member.rank] = member
        self._arithmetic[member.rank] = event.arithmetic
        self._gone.discard(member.rank)
        if self.missing:
            return []
        self.is_open = False
        for rank, one in self._members.items():
            if one.number < 0:
                self._numbers[rank] += 1
                self._members[rank] = one._replace(number=self._numbers[rank])
        roster = self._roster()
        return [SendRoster(to, roster) for to in roster if to.rank not in self._gone]

    def _objection(self, event: HostJoined, present: Participant | None) -> str:
        rank = event.member.rank
        if event.world_size != self._world_size:
            return (
                f"rank {rank} has world size {event.world_size}, but rank 0 has {self._world_size}"
            )
        if not 0 <= rank < self._world_size:
            return f"rank {rank} is not below the world size, {self._world_size}"
        differs = version_that_differs(event.versions, self._versions)
        if differs:
            return f"rank {rank} has {differs[0]}, but rank 0 has {differs[1]}"
        if present is not None and not self._replaces:
            return f"rank {rank} is taken by another process, at {present.address}"
        if self.is_open or rank in self._gone:
            return ""
        return f"the group is complete, and has no place for rank {rank}"

    def _roster(self) -> tuple[Participant, ...]:
        return tuple(self._members[rank] for rank in range(self._world_size))

    def _expire(self) -> list[Answer]:
        if not self.is_open:
            return []
        self.is_open = False
        reason = self.why_incomplete()
        return [
            RefuseHost(self._members[rank], reason, is_timeout=True)
            for rank in range(self._world_size)
            if rank in self._members
        ]

    def differences(self) -> str:
        """What may give ranks other bits than rank 0, in words; nothing if all is equal."""
        ranks: dict[tuple[str, str, str], list[int]] = {}
        for rank, arithmetic in sorted(self._arithmetic.items()):
            for (what, here), (_, there) in zip(self._arithmetic[0], arithmetic, strict=False):
                if here != there:
                    ranks.setdefault((what, there, here), []).append(rank)
        return "; ".join(
            f"{what} of rank {', '.join(map(str, others))} is {there}, but that of rank 0 {here}"
            for (what, there, here), others in ranks.items()
        )

    def why_incomplete(self) -> str:
        """The ranks that did not come, in words, and why those that were refused were."""
        ranks = ", ".join(map(str, self.missing))
        text = f"of {self._world_size} ranks these did not come: {ranks}"
        reasons = [self._refused[rank] for rank in self.missing if rank in self._refused]
        return f"{text} ({'; '.join(reasons)})" if reasons else text


def version_that_differs(
    theirs: Sequence[tuple[str, str]], ours: Sequence[tuple[str, str]]
) -> tuple[str, str] | None:
    """The first version that is not equal, in words, of both; None if all are."""
    for (what, there), (_, here) in zip(theirs, ours, strict=False):
        if there != here:
            return f"{what} {there}", f"{what} {here}"
    return None


def newest(commits: Sequence[int]) -> int:
    """The rank that all others follow after a death: the lowest of those that went on farthest.

    Args:
        commits: how often each rank has committed its state; less than 0 for one that has none.
    """
    return max(range(len(commits)), key=lambda rank: (commits[rank], -rank))


# ---------------------------------------------------------------------------- from then on


class PeerDisconnected(NamedTuple):
    """The connection to a rank has ended, without a farewell or after one."""

    rank: int
    cause: str


class PeerReturned(NamedTuple):
    """A new process has taken the place of a rank that had gone."""

    rank: int


class PeerLeft(NamedTuple):
    """A rank has said farewell: it has sent all that it owes."""

    rank: int


class FarewellSeen(NamedTuple):
    """A rank has read this rank's farewell, and so all that was sent before."""

    rank: int


class LossTold(NamedTuple):
    """Another rank says that one is lost."""

    rank: int
    cause: str


class PeerAwaited(NamedTuple):
    """A collective waits for a message of this rank."""

    rank: int


class LeaveRequested(NamedTuple):
    """This rank wants to go."""


class EndReached(NamedTuple):
    """The number of an end that all ranks have come to, as this one or ``rank`` knows."""

    ends: int
    rank: int = -1


class EndDoubted(NamedTuple):
    """This rank has come to an end, and has lost a rank since: do others know that all came?"""


class EndInquired(NamedTuple):
    """A rank asks which ends this one knows of."""

    rank: int


class TellLoss(NamedTuple):
    """Tell all ranks: this one is lost."""

    rank: int
    cause: str


class FailCollectives(NamedTuple):
    """All collectives under way, and all later ones, have failed."""

    rank: int
    cause: str


class SayFarewell(NamedTuple):
    """Tell ``rank`` that this one goes."""

    rank: int


class AcknowledgeFarewell(NamedTuple):
    """Tell ``rank`` that its farewell was read."""

    rank: int


class AskForEnd(NamedTuple):
    """Ask ``rank`` which ends it knows of."""

    rank: int


class AnswerForEnd(NamedTuple):
    """Tell ``rank`` which ends this one knows of."""

    rank: int


MembershipEvent: TypeAlias = (
    PeerDisconnected
    | PeerReturned
    | PeerLeft
    | FarewellSeen
    | LossTold
    | PeerAwaited
    | LeaveRequested
    | EndReached
    | EndDoubted
    | EndInquired
)
MembershipInstruction: TypeAlias = (
    TellLoss | FailCollectives | SayFarewell | AcknowledgeFarewell | AskForEnd | AnswerForEnd
)

#: Why a collective fails that awaits a rank which has left.
HAS_LEFT = "it has left the group, and others still wait for it"


class HostMembership:
    """What one rank knows of the others: there, left, or gone; the first loss ends the group.

    A rank that leaves waits until all others have read its farewell. So nobody takes the end of its
    connections for a death, and its last messages arrive.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._others = tuple(other for other in range(ranks) if other != rank)
        self._left: set[int] = set()
        self._disconnected: set[int] = set()
        #: The ranks that may not have read this one's farewell; None until it wants to go.
        self._unread: set[int] | None = None
        #: The first rank that was lost, and why.
        self.loss: FailCollectives | None = None
        #: The highest number of an end that all ranks are known to have come to.
        self.ends = 0
        #: The ranks that have not said which ends they know of.
        self.unanswered: set[int] = set()

    @property
    def may_go(self) -> bool:
        """Whether this rank wanted to go, and everybody knows."""
        return self._unread is not None and not self._unread

    def handle_event(self, event: MembershipEvent) -> list[MembershipInstruction]:
        """What follows."""
        present = [rank for rank in self._others if rank not in self._disconnected]
        if isinstance(event, LeaveRequested):
            self._unread = set(present)
            return [SayFarewell(rank) for rank in present]
        if isinstance(event, EndReached):
            self.ends = max(self.ends, event.ends)
            self.unanswered.discard(event.rank)
            return []
        if isinstance(event, EndDoubted):
            # One that has left has said it in its farewell.
            self.unanswered = set(present) - self._left
            return [AskForEnd(rank) for rank in present if rank in self.unanswered]
        if isinstance(event, EndInquired):
            return [AnswerForEnd(event.rank)]
        if isinstance(event, LossTold):  # this rank itself may be meant
            return self._lose(event.rank, event.cause)
        rank = event.rank
        if rank not in self._others:
            return []
        if isinstance(event, PeerReturned):
            return self._take_back(rank)
        if isinstance(event, PeerLeft):
            self._left.add(rank)
            self.unanswered.discard(rank)
            return [AcknowledgeFarewell(rank)]
        if isinstance(event, PeerAwaited):
            return self._lose(rank, HAS_LEFT, tells=True) if rank in self._left else []
        if self._unread is not None:
            self._unread.discard(rank)
        if isinstance(event, FarewellSeen):
            return []
        self._disconnected.add(rank)
        self.unanswered.discard(rank)
        return [] if rank in self._left else self._lose(rank, event.cause, tells=True)

    def _take_back(self, rank: int) -> list[MembershipInstruction]:
        """A loss that has ended the group is not undone by it."""
        self._disconnected.discard(rank)
        self._left.discard(rank)
        if self._unread is None:
            return []
        self._unread.add(rank)
        return [SayFarewell(rank)]

    def has_left(self, rank: int) -> bool:
        """Whether a rank has said farewell, and nobody has come in its place."""
        return rank in self._left

    def _lose(self, rank: int, cause: str, *, tells: bool = False) -> list[MembershipInstruction]:
        if self.loss is not None:
            return []
        self.loss = FailCollectives(rank, cause)
        return [TellLoss(rank, cause), self.loss] if tells else [self.loss]
