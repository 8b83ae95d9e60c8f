"""meet(): how the ranks of a group find each other, at the address of rank 0."""

from __future__ import annotations

import errno
import math
import platform
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mpgrad
from mpgrad.distributed.carrier.contract import (
    CarrierEvent,
    HostArrival,
    HostCarrier,
    HostDisconnected,
)
from mpgrad.distributed.carrier.messages import (
    HOSTS_PROTOCOL,
    HostMessage,
    Join,
    JoinHeard,
    Refusal,
    Roster,
    decode_head,
    encode_head,
)
from mpgrad.distributed.states.host_membership import (
    Answer,
    HostGone,
    HostJoined,
    Participant,
    Rendezvous,
    RendezvousExpired,
    SendRoster,
)
from mpgrad.errors import HostLost, ProtocolError, RendezvousTimeout

#: What everybody calls rank 0 until they know its incarnation.
MASTER = "master"

#: Seconds that others wait longer than rank 0, which knows who is missing.
PATIENCE_S = 2.0

#: Seconds between the questions of one that has no answer, and between its attempts to listen or to
#: come to another rank 0.
AGAIN_S = 1.0
LISTEN_AGAIN_S = 0.05

#: Milliseconds that the last refusals of rank 0 have to leave.
REFUSAL_MS_MAX = 1_000

#: Makes a carrier: its name, the address to listen at, and the port (0: any).
MakeCarrier = Callable[[str, str, int], HostCarrier]


class Meeting(NamedTuple):
    """All ranks are here."""

    carrier: HostCarrier
    #: All ranks, and what the carrier calls each of them as a receiver.
    members: tuple[Participant, ...]
    labels: tuple[str, ...]
    #: What came for the group already, from ranks that were told earlier, and who has gone since.
    early: Sequence[CarrierEvent]
    #: Why bits may differ between ranks, in words; rank 0 knows it.
    differences: str = ""
    #: Where ranks that are started again take their places: what this process asks the next rank 0
    #: with, where that listens, and, at rank 0, who decides.
    reopens: bool = False
    join: Join | None = None
    master: str = ""
    rendezvous: Rendezvous | None = None


def meet(
    make_carrier: MakeCarrier,
    rank: int,
    world_size: int,
    master: tuple[str, int],
    timeout_s: float,
    versions: tuple[tuple[str, str], ...] | None = None,
    *,
    arithmetic: tuple[tuple[str, str], ...] = (),
    restarts: bool = False,
    reopens: bool = False,
) -> Meeting:
    """Wait until all ranks are here.

    Args:
        make_carrier: makes this process's.
        rank: of this process.
        world_size: how many there are.
        master: where rank 0 listens; a name or a numeric address, and a port.
        timeout_s: how long to wait.
        versions: what has to be equal everywhere.
        arithmetic: what has to be equal for equal bits.
        restarts: ranks that die are started again: so who waits goes on, whoever dies meanwhile.
        reopens: those take their places among the ranks that live on; else all meet again.

    Raises:
        RendezvousTimeout: not all came; it names those.
        RuntimeError: rank 0 has refused this process, and says why.
        HostLost: rank 0 has heard this process and died, and is not started again.
        OSError: rank 0 cannot listen there.
    """
    address = resolved(*master)
    host, port = (address, master[1]) if rank == 0 else (way_to(address, master[1]), 0)
    versions = versions or versions_of_this_process()
    deadline = time.monotonic() + timeout_s + (PATIENCE_S if rank else 0.0)
    while True:
        incarnation = secrets.token_hex(8)
        name = rank_name(rank, incarnation)
        carrier = _listening(make_carrier, name, host, port, deadline if restarts else 0.0)
        join = Join(rank, world_size, incarnation, carrier.address, versions, arithmetic)
        try:
            side: RendezvousHost | RendezvousGuest
            if rank == 0:
                side = RendezvousHost(carrier, join, replaces=restarts, reopens=reopens)
            else:
                side = RendezvousGuest(carrier, join, (address, master[1]), reopens=reopens)
            return _wait(side, deadline)
        except BaseException as error:
            carrier.close(REFUSAL_MS_MAX if rank == 0 else 0)
            if not isinstance(error, HostLost) or (side.is_heard and not restarts):
                raise
        time.sleep(LISTEN_AGAIN_S)


def _listening(
    make_carrier: MakeCarrier, name: str, host: str, port: int, deadline: float
) -> HostCarrier:
    """A carrier that listens there; until ``deadline`` what the last process has left may end."""
    while True:
        try:
            return make_carrier(name, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(LISTEN_AGAIN_S)


def _wait(side: RendezvousHost | RendezvousGuest, deadline: float) -> Meeting:
    """Until all are here."""
    asks_at = 0.0
    while side.meeting is None:
        now = time.monotonic()
        if now >= deadline:
            side.expire()
        if now >= asks_at:
            side.ask()
            asks_at = now + AGAIN_S
        for event in side.carrier.receive(math.ceil((min(asks_at, deadline) - now) * 1000)):
            side.take(event)
    return side.meeting


def versions_of_this_process() -> tuple[tuple[str, str], ...]:
    """What has to be equal in all ranks."""
    return (
        ("Python", ".".join(platform.python_version_tuple()[:2])),
        ("mpgrad", mpgrad.__version__),
        ("protocol", str(HOSTS_PROTOCOL)),
    )


def rank_name(rank: int, incarnation: str) -> str:
    """What a carrier calls a rank."""
    return f"{rank}.{incarnation}"


def resolved(host: str, port: int) -> str:
    """The numeric address of ``host``."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host!r} has no address: {error.strerror}") from None
    return str(found[0][4][0])


def way_to(address: str, port: int) -> str:
    """This machine's address on the way to ``address``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing
        return str(probe.getsockname()[0])


def tcp_address(host: str, port: int) -> str:
    """What a carrier connects to; ``host`` is numeric."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class RendezvousHost:
    """Rank 0, which the others come to; it waits for no answer.

    Args:
        carrier: of this process.
        join: what it says of itself.
        replaces: see ``Rendezvous``.
        reopens: see ``Rendezvous``.
    """

    is_heard = True

    def __init__(
        self, carrier: HostCarrier, join: Join, *, replaces: bool, reopens: bool = False
    ) -> None:
        self.carrier, self._join_of_rank_0, self._reopens = carrier, join, reopens
        #: Set once all ranks are here.
        self.meeting: Meeting | None = None
        self._rendezvous = Rendezvous(
            join.world_size, join.versions, replaces=replaces, reopens=reopens
        )
        #: Who has asked, and in which attempt.
        self._known: dict[str, int] = {}
        self._early: list[CarrierEvent] = []
        self._own = join.incarnation
        self._perform(self._rendezvous.handle_event(joined(join)))

    def ask(self) -> None:
        """It asks nobody."""

    def take(self, event: CarrierEvent) -> None:
        """What has come."""
        if self.meeting is not None:
            self._early.append(event)
        elif isinstance(event, HostArrival):
            if isinstance(message := read(event), Join):
                self._join(event.sender, message)
            else:
                self._early.append(event)
        else:
            gone = HostGone(event.peer.partition(".")[2])
            self._perform(self._rendezvous.handle_event(gone))

    def expire(self) -> None:
        """The time is over: tell everybody who is here.

        Raises:
            RendezvousTimeout: names those who are not.
        """
        why = self._rendezvous.why_incomplete()
        self._perform(self._rendezvous.handle_event(RendezvousExpired()))
        raise RendezvousTimeout(why)

    def _join(self, sender: str, message: Join) -> None:
        if sender != rank_name(message.rank, message.incarnation):
            return
        is_new = sender not in self._known
        self._known[sender] = message.attempt
        if is_new:
            self.carrier.connect(sender, message.address)
            self.carrier.send(sender, [encode_head(JoinHeard())])
        self._perform(self._rendezvous.handle_event(joined(message)))

    def _perform(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, SendRoster):
                self.meeting = self.meeting or self._meeting(answer.members)
                attempt = self._known.get(rank_name(answer.to.rank, answer.to.incarnation), 0)
                self._tell(answer.to, roster_of(answer.members, attempt))
            else:
                self._tell(answer.to, Refusal(answer.reason, answer.is_timeout))

    def _meeting(self, members: tuple[Participant, ...]) -> Meeting:
        names = tuple(rank_name(m.rank, m.incarnation) for m in members)
        for replaced in self._known.keys() - set(names):
            self.carrier.disconnect(replaced)
        return Meeting(
            self.carrier, members, names, self._early, self._rendezvous.differences(),
            self._reopens, self._join_of_rank_0, self.carrier.address,
            self._rendezvous if self._reopens else None,
        )  # fmt: skip

    def _tell(self, to: Participant, message: HostMessage) -> None:
        if to.incarnation != self._own:
            self.carrier.send(rank_name(to.rank, to.incarnation), [encode_head(message)])


class RendezvousGuest:
    """Any other rank.

    Args:
        carrier: of this process.
        join: what it says of itself.
        master: the numeric address of rank 0, and its port.
        reopens: see ``Rendezvous``.
    """

    def __init__(
        self, carrier: HostCarrier, join: Join, master: tuple[str, int], *, reopens: bool = False
    ) -> None:
        self.carrier, self._join, self._reopens = carrier, join, reopens
        #: Set once all ranks are here.
        self.meeting: Meeting | None = None
        self._early: list[CarrierEvent] = []
        #: Whether rank 0 has heard this process. Until then a former one may be about to end there.
        self.is_heard = False
        self._master = tcp_address(*master)
        carrier.connect(MASTER, self._master)

    def ask(self) -> None:
        """Ask rank 0; it may have forgotten who could not be reached, or who was replaced."""
        self.carrier.send(MASTER, [encode_head(self._join)])

    def take(self, event: CarrierEvent) -> None:
        """What has come.

        Raises:
            HostLost: rank 0 has died, or has left the generation that it was in.
            RendezvousTimeout: others did not come.
            RuntimeError: rank 0 has refused this process.
        """
        if self.meeting is not None:
            self._early.append(event)
        elif isinstance(event, HostDisconnected):
            raise HostLost(0, event.cause, "rendezvous")
        elif isinstance(event, HostArrival):
            self._hear(event)

    def _hear(self, event: HostArrival) -> None:
        message = read(event) if event.sender.startswith("0.") else None
        if isinstance(message, Refusal):
            kind = RendezvousTimeout if message.is_timeout else RuntimeError
            raise kind(f"rank 0 refused rank {self._join.rank}: {message.reason}")
        if isinstance(message, JoinHeard):
            self.is_heard = True
        elif not isinstance(message, Roster):
            self._early.append(event)
        # The address may have been another process's, for which this one is.
        elif message.members[self._join.rank][0] == self._join.incarnation:
            self._connect(message)

    def expire(self) -> None:
        """The time is over.

        Raises:
            RendezvousTimeout: rank 0 is not there.
        """
        raise RendezvousTimeout(
            f"rank 0 did not answer at {self._master}: it did not come, or it has another key or "
            "setting of encrypt"
        )

    def _connect(self, roster: Roster) -> None:
        members = members_of(roster)
        labels = [MASTER, *(rank_name(m.rank, m.incarnation) for m in members[1:])]
        for rank, member in enumerate(members):
            if rank not in (0, self._join.rank):
                self.carrier.connect(labels[rank], member.address)
        self.meeting = Meeting(
            self.carrier, members, tuple(labels), self._early,
            reopens=self._reopens, join=self._join, master=self._master,
        )  # fmt: skip


def joined(join: Join) -> HostJoined:
    """What has happened when a process has asked for its rank."""
    member = Participant(join.rank, join.incarnation, join.address)
    return HostJoined(member, join.world_size, join.versions, join.arithmetic, join.numbers)


def roster_of(members: Sequence[Participant], attempt: int) -> Roster:
    """How rank 0 tells who they are."""
    return Roster(tuple((m.incarnation, m.address, m.number) for m in members), attempt)


def members_of(roster: Roster) -> tuple[Participant, ...]:
    """Whom it names."""
    return tuple(Participant(rank, *member) for rank, member in enumerate(roster.members))


def read(event: HostArrival) -> HostMessage | None:
    """The message that has come; None if it is damaged."""
    try:
        return decode_head(event.frames[0])
    except (ProtocolError, IndexError):
        return None
