"""Generation: the ranks that have met once, until one of them is lost or all have left.

It knows neither threads nor a clock; the simulation runs it as it is.
"""

from __future__ import annotations

from mpgrad.distributed.group_member import Frames, GroupMember
from mpgrad.distributed.rendezvous import Meeting
from mpgrad.wire.host_carrier import CarrierEvent, HostArrival, HostDisconnected


class Generation:
    """Brings what comes from its ranks to this rank's GroupMember, and what that sends to them.

    What comes from anybody else is counted and not read. A rank that meets the others again is
    another incarnation with another name: so this holds for all that a former generation has sent.

    Args:
        rank: of this process.
        meeting: the ranks; its carrier belongs to the generation from now on.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._labels = meeting.labels
        self._rank_of_label = {label: k for k, label in enumerate(meeting.labels)}
        self._rank_of_name = {name: k for k, name in enumerate(meeting.names)}
        self._early = meeting.early
        self.carrier = meeting.carrier
        self.member = GroupMember(rank, len(self._labels), self.send)
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
            sender = self._rank_of_name.get(event.sender)
            if sender is None:
                self.ignored += 1
            else:
                self.member.handle(sender, event.frames)
        elif isinstance(event, HostDisconnected):
            self._lose(event.peer, event.cause)
        else:
            self._lose(event.peer, "it cannot be reached")

    def send(self, rank: int, frames: Frames) -> None:
        """Send to a rank; it never waits."""
        if not self.is_over:
            self.carrier.send(self._labels[rank], frames)

    def _lose(self, label: str, cause: str) -> None:
        rank = self._rank_of_label.get(label)
        if rank is not None:
            self.member.disconnected(rank, cause)
