"""Generation: the ranks that have met, until one of them is lost or all have left.

In a world that reopens, a rank that was lost may come back as another process. It knows neither
threads nor a clock; the simulation runs it as it is.
"""

from __future__ import annotations

from mpgrad.distributed.carrier.contract import CarrierEvent, HostArrival, HostDisconnected
from mpgrad.distributed.carrier.messages import Join, Refusal, Roster, encode_head
from mpgrad.distributed.group_member import Frames, GroupMember
from mpgrad.distributed.rendezvous import (
    MASTER,
    Meeting,
    joined,
    members_of,
    rank_name,
    read,
    roster_of,
)
from mpgrad.distributed.states.host_membership import HostGone, Participant, RefuseHost, SendRoster
from mpgrad.distributed.states.incarnations import (
    Incarnations,
    LoseMember,
    MemberEvent,
    MemberGone,
    RosterTold,
)


class Generation:
    """Brings what comes from its ranks to this rank's GroupMember, and what that sends to them.

    What comes from anybody else, or was for another process, is counted and not read. A rank that
    meets the others again is another incarnation with another name: so this holds for all that a
    former generation has sent. The last frame of each message names whom it is for: ZeroMQ connects
    again by itself, to whoever listens there then.

    Args:
        rank: of this process.
        meeting: the ranks; its carrier belongs to the generation from now on.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._rank, self._meeting, self._early = rank, meeting, meeting.early
        self._own = meeting.members[rank].incarnation.encode()
        self._incarnations = Incarnations(rank, meeting.members, reopens=meeting.reopens)
        self._labels = list(meeting.labels)
        self._receivers = [member.incarnation.encode() for member in meeting.members]
        self._rank_of_name = {rank_name(m.rank, m.incarnation): m.rank for m in meeting.members}
        #: What the carrier calls whoever answers for rank 0, while that is lost; how often it was
        #: connected to.
        self._asked, self._attempts = "", 0
        #: The ranks to which nothing can be sent; processes that were refused.
        self._silent: set[int] = set()
        self._refused: set[str] = set()
        self.carrier = meeting.carrier
        numbers = self._incarnations.numbers
        self.member = GroupMember(rank, len(self._labels), self.send, numbers)
        self.is_over = False
        #: Messages of processes that are no members.
        self.ignored = 0

    def begin(self) -> None:
        """Take what has come and happened already."""
        for event in self._early:
            self.take(event)

    def end(self) -> None:
        """Close the carrier; nothing is sent any more."""
        self.is_over = True
        self.carrier.close(0)

    def take(self, event: CarrierEvent) -> None:
        """What the carrier has received."""
        if isinstance(event, HostArrival):
            self._hear(event)
        elif isinstance(event, HostDisconnected):
            self._lose(event.peer, event.cause)
        elif event.peer != self._asked:
            self._lose(event.peer, "it cannot be reached")

    def send(self, rank: int, frames: Frames) -> None:
        """Send to a rank; it never waits."""
        if not self.is_over and rank not in self._silent:
            self.carrier.send(self._labels[rank], [*frames, self._receivers[rank]])

    def _hear(self, event: HostArrival) -> None:
        sender = self._rank_of_name.get(event.sender)
        if len(event.frames) == 1:
            self._hear_of_meeting(event)
        elif sender is None or event.frames.pop() != self._own:
            self.ignored += 1
        else:
            self.member.handle(sender, event.frames)

    def _lose(self, label: str, cause: str) -> None:
        if label == self._asked:
            self.carrier.disconnect(label)
            self._asked = ""
        elif label in self._refused:
            self.carrier.disconnect(label)
            self._refused.discard(label)
        elif label in self._labels:
            member = self._incarnations.members[self._labels.index(label)]
            self._note(MemberGone(member.incarnation, cause))

    # ------------------------------------------------------------------ who is there now

    def ask(self) -> None:
        """Ask whether there is a rank 0 again, if that was lost and has not left."""
        meeting = self._meeting
        if not self._incarnations.asks_for_rank_0 or self.member.membership.has_left(0):
            return
        if not self._asked:
            self._attempts += 1
            self._asked = f"{MASTER}.{self._attempts}"
            self.carrier.connect(self._asked, meeting.master)
        assert meeting.join is not None
        own = meeting.join
        join = Join(
            own.rank, own.world_size, own.incarnation, own.address, own.versions, own.arithmetic,
            self._incarnations.numbers, self._attempts,
        )  # fmt: skip
        self.carrier.send(self._asked, [encode_head(join)])

    def _hear_of_meeting(self, event: HostArrival) -> None:
        """A process asks for its rank, or rank 0 tells who all are."""
        message, (rank, _, incarnation) = read(event), event.sender.partition(".")
        rendezvous = self._meeting.rendezvous
        if isinstance(message, Roster) and rank == "0":
            is_answer = bool(self._asked) and message.attempt == self._attempts
            if event.sender not in self._rank_of_name and not is_answer:
                self.ignored += 1
                return
            self._note(RosterTold(incarnation, members_of(message)))
        elif (
            isinstance(message, Join)
            and rendezvous is not None
            and event.sender == rank_name(message.rank, message.incarnation)
            # Who has left looks for the next meeting, which this one's rank 0 is not in yet.
            and not self.member.membership.has_left(message.rank)
        ):
            for answer in rendezvous.handle_event(joined(message)):
                self._answer(answer, message.attempt)
        else:
            self.ignored += 1

    def _answer(self, answer: SendRoster | RefuseHost, attempt: int) -> None:
        """At rank 0."""
        to = rank_name(answer.to.rank, answer.to.incarnation)
        if isinstance(answer, SendRoster):
            self._note(RosterTold(self._own.decode(), answer.members))
            if answer.to.rank != self._rank:
                self.carrier.send(to, [encode_head(roster_of(answer.members, attempt))])
        elif to not in self._refused:
            self._refused.add(to)
            self.carrier.connect(to, answer.to.address)
            self.carrier.send(to, [encode_head(Refusal(answer.reason, answer.is_timeout))])

    def _note(self, event: MemberEvent) -> None:
        for step in self._incarnations.handle_event(event):
            if isinstance(step, LoseMember):
                self._part_from(step.member, step.cause)
            else:
                self._admit(step.member)

    def _part_from(self, member: Participant, cause: str) -> None:
        rank = member.rank
        if self._meeting.reopens:
            self._silent.add(rank)
            self.carrier.disconnect(self._labels[rank])
            del self._rank_of_name[rank_name(rank, member.incarnation)]
        if self._meeting.rendezvous is not None:
            self._meeting.rendezvous.handle_event(HostGone(member.incarnation))
        self.member.disconnected(rank, cause)

    def _admit(self, member: Participant) -> None:
        rank, name = member.rank, rank_name(member.rank, member.incarnation)
        if rank == 0 and self._asked:
            self._labels[0], self._asked = self._asked, ""
        else:
            self.carrier.connect(name, member.address)
            self._labels[rank] = name
        self._rank_of_name[name] = rank
        self._receivers[rank] = member.incarnation.encode()
        self._silent.discard(rank)
        self.member.returned(rank, member.number)
