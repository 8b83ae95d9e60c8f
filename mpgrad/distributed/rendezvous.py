"""meet(): how the ranks of a group find each other, at the address of rank 0."""

from __future__ import annotations

import math
import platform
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import mpgrad
from mpgrad.errors import HostLost, ProtocolError, RendezvousTimeout
from mpgrad.scheduler.hosts.host_membership import (
    Answer,
    HostGone,
    HostJoined,
    Participant,
    Rendezvous,
    RendezvousExpired,
    SendRoster,
)
from mpgrad.wire.host_carrier import HostArrival, HostCarrier, HostDisconnected
from mpgrad.wire.hosts import (
    HOSTS_PROTOCOL,
    HostMessage,
    Join,
    Refusal,
    Roster,
    decode_head,
    encode_head,
)

#: What everybody calls rank 0 until they know its incarnation.
MASTER = "master"

#: Seconds that others wait longer than rank 0, which knows who is missing.
PATIENCE_S = 2.0

#: Milliseconds that the last refusals of rank 0 have to leave.
REFUSAL_MS_MAX = 1_000

#: Makes a carrier: its name, the address to listen at, and the port (0: any).
MakeCarrier = Callable[[str, str, int], HostCarrier]


class Meeting(NamedTuple):
    """All ranks are here."""

    carrier: HostCarrier
    #: What the carrier calls each rank as a receiver, and as a sender.
    labels: tuple[str, ...]
    names: tuple[str, ...]
    #: What came for the group already, from ranks that were told earlier.
    early: tuple[HostArrival, ...]


def meet(
    make_carrier: MakeCarrier,
    rank: int,
    world_size: int,
    master: tuple[str, int],
    timeout_s: float,
    versions: tuple[tuple[str, str], ...] | None = None,
) -> Meeting:
    """Wait until all ranks are here.

    Args:
        make_carrier: makes this process's.
        rank: of this process.
        world_size: how many there are.
        master: where rank 0 listens; a name or a numeric address, and a port.
        timeout_s: how long to wait.
        versions: what has to be equal everywhere.

    Raises:
        RendezvousTimeout: not all came; it names those.
        RuntimeError: rank 0 has refused this process, and says why.
        OSError: rank 0 cannot listen there.
    """
    incarnation = secrets.token_hex(8)
    address = _resolved(*master)
    host, port = (address, master[1]) if rank == 0 else (_way_to(address, master[1]), 0)
    carrier = make_carrier(_name(rank, incarnation), host, port)
    join = Join(
        rank, world_size, incarnation, carrier.address, versions or versions_of_this_process()
    )
    deadline = time.monotonic() + timeout_s
    try:
        if rank == 0:
            return _Host(carrier, join).meet(deadline)
        return _Guest(carrier, join, address, master[1]).meet(deadline + PATIENCE_S)
    except BaseException:
        carrier.close(REFUSAL_MS_MAX if rank == 0 else 0)
        raise


def versions_of_this_process() -> tuple[tuple[str, str], ...]:
    """What has to be equal in all ranks."""
    return (
        ("Python", ".".join(platform.python_version_tuple()[:2])),
        ("mpgrad", mpgrad.__version__),
        ("protocol", str(HOSTS_PROTOCOL)),
    )


def _name(rank: int, incarnation: str) -> str:
    return f"{rank}.{incarnation}"


def _resolved(host: str, port: int) -> str:
    """The numeric address of ``host``."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"MASTER_ADDR {host!r} has no address: {error.strerror}") from None
    return str(found[0][4][0])


def _way_to(address: str, port: int) -> str:
    """This machine's address on the way to ``address``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # sends nothing
        return str(probe.getsockname()[0])


class _Host:
    """Rank 0, which the others come to."""

    def __init__(self, carrier: HostCarrier, join: Join) -> None:
        self._carrier = carrier
        self._rendezvous = Rendezvous(join.world_size, join.versions)
        self._known: set[str] = set()
        self._names: tuple[str, ...] | None = None
        self._own = join.incarnation
        self._perform(self._rendezvous.handle_event(_joined(join)))

    def meet(self, deadline: float) -> Meeting:
        early: list[HostArrival] = []
        while self._names is None:
            left = deadline - time.monotonic()
            if left <= 0:
                why = self._rendezvous.why_incomplete()
                self._perform(self._rendezvous.handle_event(RendezvousExpired()))
                raise RendezvousTimeout(why)
            for event in self._carrier.receive(math.ceil(left * 1000)):
                if not isinstance(event, HostArrival):
                    gone = HostGone(event.peer.partition(".")[2])
                    self._perform(self._rendezvous.handle_event(gone))
                elif isinstance(message := _read(event), Join):
                    self._join(event.sender, message)
                else:
                    early.append(event)
        return Meeting(self._carrier, self._names, self._names, tuple(early))

    def _join(self, sender: str, message: Join) -> None:
        if sender != _name(message.rank, message.incarnation):
            return
        if sender not in self._known:
            self._known.add(sender)
            self._carrier.connect(sender, message.address)
        self._perform(self._rendezvous.handle_event(_joined(message)))

    def _perform(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, SendRoster):
                members = tuple((m.incarnation, m.address) for m in answer.members)
                self._names = tuple(_name(m.rank, m.incarnation) for m in answer.members)
                self._tell(answer.to, Roster(members))
            else:
                self._tell(answer.to, Refusal(answer.reason, answer.is_timeout))

    def _tell(self, to: Participant, message: HostMessage) -> None:
        if to.incarnation != self._own:
            self._carrier.send(_name(to.rank, to.incarnation), [encode_head(message)])


class _Guest:
    """Any other rank."""

    def __init__(self, carrier: HostCarrier, join: Join, address: str, port: int) -> None:
        self._carrier, self._join = carrier, join
        at = f"[{address}]" if ":" in address else address
        self._master = f"tcp://{at}:{port}"
        carrier.connect(MASTER, self._master)
        carrier.send(MASTER, [encode_head(join)])

    def meet(self, deadline: float) -> Meeting:
        early: list[HostArrival] = []
        roster: Roster | None = None
        while roster is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RendezvousTimeout(
                    f"rank 0 did not answer at {self._master}: it did not come, or it has another "
                    "key or setting of encrypt"
                )
            for event in self._carrier.receive(math.ceil(left * 1000)):
                if isinstance(event, HostDisconnected):
                    raise HostLost(0, event.cause, "rendezvous")
                if not isinstance(event, HostArrival):
                    continue
                message = _read(event) if event.sender.startswith("0.") else None
                if isinstance(message, Refusal):
                    kind = RendezvousTimeout if message.is_timeout else RuntimeError
                    raise kind(f"rank 0 refused rank {self._join.rank}: {message.reason}")
                if isinstance(message, Roster):
                    roster = message
                else:
                    early.append(event)
        return self._connect(roster, early)

    def _connect(self, roster: Roster, early: list[HostArrival]) -> Meeting:
        names = tuple(_name(rank, inc) for rank, (inc, _) in enumerate(roster.members))
        for rank, (_, address) in enumerate(roster.members):
            if rank not in (0, self._join.rank):
                self._carrier.connect(names[rank], address)
        return Meeting(self._carrier, (MASTER, *names[1:]), names, tuple(early))


def _joined(join: Join) -> HostJoined:
    member = Participant(join.rank, join.incarnation, join.address)
    return HostJoined(member, join.world_size, join.versions)


def _read(event: HostArrival) -> HostMessage | None:
    try:
        return decode_head(event.frames[0])
    except (ProtocolError, IndexError):
        return None
