"""The ZeroMQ transports, inside a host and between hosts; the only file that knows zmq.

Inside a host: ROUTER at the coordinator, DEALER elsewhere. Between hosts: see ZmqHostCarrier.

Settings: LINGER=0, because closing would wait for dead peers; ROUTER_MANDATORY=1, because messages
to dead peers would vanish silently; no high-water mark, because credits bound the frames in flight;
one identity per incarnation, because a ROUTER refuses a new connection under the name of one that
it is still closing.

The identity of a peer in a lane is its name, and the proof that it knows the engine's token. So no
other process can speak as a peer, take its name before it has connected, or take it over after its
death. Frames without a valid proof are counted and dropped unread.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import select
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import zmq

from mpgrad.wire.host_carrier import (
    CarrierEvent,
    HostArrival,
    HostDisconnected,
    HostUnreachable,
)
from mpgrad.wire.hosts import FRAME_BYTES_MAX
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import ROUTER_LANES, Arrival, Received

if TYPE_CHECKING:
    from mpgrad.wire.endpoint import Endpoint

#: As plain numbers: each message needs them a few times, and an operation on the flags of pyzmq
#: takes as long as a part of a message.
_READABLE = int(zmq.POLLIN)
_AT_ONCE, _MORE_FOLLOWS = int(zmq.NOBLOCK), int(zmq.SNDMORE)

#: Milliseconds between attempts to connect.
RECONNECT_MS = 5

#: The number of cached identities; one takes two microseconds to compute.
IDENTITIES_MAX = 4096


def address(name: str, lane: str) -> str:
    """The address of ``lane`` in the abstract namespace of Unix sockets."""
    return f"ipc://@{name}/{lane}"


class ZmqRouter:
    """The coordinator's end: one ROUTER per lane."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._context = zmq.Context()
        self._identity_of = functools.lru_cache(IDENTITIES_MAX)(
            functools.partial(identity_of, endpoint.token)
        )
        self._verified_peer = functools.lru_cache(IDENTITIES_MAX)(
            functools.partial(verified_peer, endpoint.token)
        )
        self.ignored = 0
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._outbox: dict[tuple[str, str], list[bytes]] = {}
        for lane in ROUTER_LANES:
            socket = _socket(self._context, zmq.ROUTER)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # The kernel names the user of each connection: processes of other users are refused.
            socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
            socket.bind(address(endpoint.name, lane))
            # Without POLLIN the poller waits for POLLOUT too, and spins.
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[lane] = socket

    def watch(self, descriptor: int) -> None:
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def receive(self, timeout_ms: int | None) -> Received:
        ready = dict(self._poller.poll(timeout_ms))
        arrivals = [
            arrival
            for lane, socket in self._sockets.items()
            if socket in ready
            for arrival in self._drain(lane, socket)
        ]
        return Received(arrivals, [item for item in ready if isinstance(item, int)])

    def _drain(self, lane: str, socket: zmq.Socket[bytes]) -> list[Arrival]:
        arrivals: list[Arrival] = []
        # Reading the state costs less than an exception at the end.
        while int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
            identity, *frames = _received(socket)
            peer = self._verified_peer(lane, identity)
            if peer is None:
                self.ignored += len(frames)
            else:
                arrivals.extend(Arrival(lane, peer, frame) for frame in frames)
        return arrivals

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._outbox.setdefault((lane, peer), []).append(frame)

    def flush(self) -> list[str]:
        gone = []
        for (lane, peer), frames in self._outbox.items():
            try:
                identity = self._identity_of(lane, peer)
                socket = self._sockets[lane]
                socket.send(identity, _MORE_FOLLOWS | _AT_ONCE)
                _send(socket, frames, _AT_ONCE)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                gone.append(peer)
        self._outbox.clear()
        return gone

    def close(self) -> None:
        self._context.destroy(linger=0)


class ZmqDealer:
    """A worker's end (three lanes) or a session's (the client lane)."""

    def __init__(self, endpoint: Endpoint, peer: str, lanes: Sequence[str]) -> None:
        self._context = _contexts.borrow()
        self._poller = zmq.Poller()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for lane in lanes:
            socket = _socket(self._context, zmq.DEALER)
            socket.routing_id = identity_of(endpoint.token, lane, peer)
            # A worker that starts before the coordinator has bound its sockets soon tries again.
            socket.reconnect_ivl = RECONNECT_MS
            socket.connect(address(endpoint.name, lane))
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[lane] = socket
        self._reply_lane = lanes[-1]

    def watch(self, descriptor: int) -> None:
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def wait(self, timeout_ms: int | None) -> list[int]:
        return [item for item, _ in self._poller.poll(timeout_ms) if isinstance(item, int)]

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        for socket in self._sockets.values():
            while int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
                frames += _received(socket)
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        _send(self._sockets[lane or self._reply_lane], frames)

    def close(self) -> None:
        if not self._sockets:
            return
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()
        _contexts.give_back(self._context)


def _send(socket: zmq.Socket[bytes], frames: Sequence[bytes], flags: int = 0) -> None:
    """``send_multipart`` in a third of the time."""
    for frame in frames[:-1]:
        socket.send(frame, flags | _MORE_FOLLOWS)
    socket.send(frames[-1], flags)


def _received(socket: zmq.Socket[bytes]) -> list[bytes]:
    """``recv_multipart`` of a message that is there, in half of the time."""
    frames = [socket.recv(_AT_ONCE)]
    while socket.get(zmq.RCVMORE):
        frames.append(socket.recv(_AT_ONCE))
    return frames


class _Contexts:
    """The context that the dealers of this process share; it ends with the last of them."""

    def __init__(self) -> None:
        # Re-entrant: a handler of a signal may start processes while its thread is inside.
        self._lock = threading.RLock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._borrowed = 0
        #: Contexts of the parent process, which a forked child must not touch.
        self._of_parents: list[zmq.Context[zmq.Socket[bytes]]] = []

    def borrow(self) -> zmq.Context[zmq.Socket[bytes]]:
        with self._lock:
            if self._context is None:
                made = zmq.Context()
                self._context = self._context or made
            self._borrowed += 1
            return self._context

    def give_back(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        with self._lock:
            if context is not self._context:
                return  # the parent's
            self._borrowed -= 1
            if self._borrowed == 0:
                self._context = None
                context.term()

    def start_anew_in_child(self) -> None:
        if self._context is not None:
            self._of_parents.append(self._context)
        self._lock, self._context, self._borrowed = threading.RLock(), None, 0


_contexts = _Contexts()
os.register_at_fork(after_in_child=_contexts.start_anew_in_child)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    socket.maxmsgsize = MESSAGE_BYTES_MAX
    return socket


# ---------------------------------------------------------------------------- identities of peers

PROOF_BYTES = 16


def identity_of(token: bytes, lane: str, peer: str) -> bytes:
    """The name of ``peer`` in ``lane``, and the proof that its user knows ``token``."""
    name = peer.encode("latin-1")
    message = lane.encode() + b" " + name
    return name + hashlib.blake2b(message, key=token, digest_size=PROOF_BYTES).digest()


def verified_peer(token: bytes, lane: str, identity: bytes) -> str | None:
    """The peer that ``identity`` names in ``lane``, or None if the proof is wrong."""
    peer = identity[:-PROOF_BYTES].decode("latin-1")
    return peer if hmac.compare_digest(identity, identity_of(token, lane, peer)) else None


# ---------------------------------------------------------------------------- between hosts

#: The lane between hosts, in the proof of a name.
HOSTS = "hosts"

#: Milliseconds between heartbeats, and without any answer until a host counts as lost. ZeroMQ's own
#: threads keep them up, whatever Python does; a process that is stopped, or cut off, does not.
HEARTBEAT_MS = 1_000
SILENCE_MS_MAX = 5_000

#: The longest wait that epoll_wait(2) can express, in whole seconds.
POLL_MS_MAX = 2_147_483_000

#: What CURVE adds to a frame, at most.
CURVE_BYTES_MAX = 64

#: Milliseconds between attempts to connect to a host.
RECONNECT_HOST_MS = 50

_PROVED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_ENDED = zmq.EVENT_DISCONNECTED
_RETRIED = zmq.EVENT_CONNECT_RETRIED
_UNPROVED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_MONITOR_EVENT = struct.Struct("=Hi")


class ZmqHostCarrier:
    """TCP between hosts: one ROUTER hears them all, another one speaks to each.

    With ``encrypt`` all connections use CURVE. The group's key gives the pair of keys that every
    member has: who does not know it can neither be heard nor listen.

    Args:
        key: 32 bytes that all members know, and nobody else.
        name: who this is, for those that it sends to.
        host: the numeric address to listen at.
        port: 0 for any that is free.

    Raises:
        OSError: the address is not one of this machine's, or the port is taken.
    """

    def __init__(self, key: bytes, name: str, host: str, port: int, *, encrypt: bool) -> None:
        self.strangers = 0
        self._key, self._ipv6 = key, ":" in host
        self._verified_peer = functools.lru_cache(IDENTITIES_MAX)(
            functools.partial(verified_peer, key, HOSTS)
        )
        self._context = zmq.Context()
        self._peers: dict[bytes, str] = {}
        #: The peers that have shown that they belong to the group.
        self._proved: set[str] = set()
        self._arrivals = select.epoll()
        try:
            self._ear = self._socket(encrypt, is_server=True)
            # A peer that connects again may be faster than the end of its last connection.
            self._ear.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._mouth = self._socket(encrypt, is_server=False)
            self._mouth.routing_id = identity_of(key, HOSTS, name)
            self._mouth.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._mouth.reconnect_ivl = RECONNECT_HOST_MS
            self._of_ear = self._ear.get_monitor_socket(_UNPROVED)
            self._of_mouth = self._mouth.get_monitor_socket(_PROVED | _ENDED | _RETRIED)
            self._readable_at: dict[int, zmq.Socket[bytes]] = {}
            for listener in (self._ear, self._of_ear, self._of_mouth):
                self._readable_at[int(listener.FD)] = listener
                self._arrivals.register(listener.FD, select.EPOLLIN)
                # A socket whose state was never read tells of nothing. Whoever reads it later takes
                # away the news of a message that is there already, so nothing may come before.
                listener.getsockopt(zmq.EVENTS)
            at = f"[{host}]" if self._ipv6 else host
            try:
                self._ear.bind(f"tcp://{at}:{port or '*'}")
            except zmq.ZMQError as error:
                text = f"cannot listen at {at}:{port}: {error.strerror}"
                raise OSError(error.errno, text) from None
            endpoint = self._ear.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(endpoint, bytes)
            self.address = endpoint.rstrip(b"\0").decode()
        except BaseException:
            self.close(0)
            raise

    def _socket(self, encrypt: bool, *, is_server: bool) -> zmq.Socket[bytes]:
        socket = _socket(self._context, zmq.ROUTER)
        socket.maxmsgsize = FRAME_BYTES_MAX + CURVE_BYTES_MAX
        socket.ipv6 = self._ipv6
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS_MAX)
        socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE_MS_MAX)
        if encrypt:
            from zmq.utils import z85

            secret = z85.encode(self._key)
            public = zmq.curve_public(secret)
            socket.curve_secretkey, socket.curve_publickey = secret, public
            if is_server:
                socket.curve_server = True
            else:
                socket.curve_serverkey = public
        return socket

    def connect(self, peer: str, address: str) -> None:
        self._peers[address.encode()] = peer
        self._mouth.setsockopt(zmq.CONNECT_ROUTING_ID, peer.encode())
        self._mouth.connect(address)

    def disconnect(self, peer: str) -> None:
        [address] = [address for address, known in self._peers.items() if known == peer]
        del self._peers[address]
        self._proved.discard(peer)
        self._mouth.disconnect(address.decode())

    def send(self, peer: str, frames: Sequence[bytes | memoryview]) -> None:
        try:
            # ZeroMQ's thread looking after a frame costs more than a copy of a small one.
            is_small = max(map(len, frames)) <= zmq.COPY_THRESHOLD
            self._mouth.send_multipart([peer.encode(), *frames], zmq.NOBLOCK, copy=is_small)
        except zmq.ZMQError as error:
            # It has gone: that is told by an event of its own.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def receive(self, timeout_ms: int | None) -> list[CarrierEvent]:
        timeout_s = None if timeout_ms is None else min(timeout_ms, POLL_MS_MAX) / 1000
        # The descriptor of a socket is readable from something new until its state is read.
        ready = {self._readable_at[number] for number, _ in self._arrivals.poll(timeout_s)}
        # First what was sent, then that the connection has ended.
        events: list[CarrierEvent] = [*self._heard()] if self._ear in ready else []
        if self._of_ear in ready:
            self.strangers += sum(1 for _ in _monitored(self._of_ear))
        if self._of_mouth in ready:
            for kind, address in _monitored(self._of_mouth):
                peer = self._peers.get(address)
                if peer is None:
                    continue
                if kind == _PROVED:
                    self._proved.add(peer)
                    # Earlier attempts have failed; whoever reads that now would take it for news.
                    events = [event for event in events if event != HostUnreachable(peer)]
                elif kind == _ENDED and peer in self._proved:
                    events.append(HostDisconnected(peer, "the connection to it has ended"))
                else:
                    events.append(HostUnreachable(peer))
        return events

    def _heard(self) -> Iterator[HostArrival]:
        while int(self._ear.getsockopt(zmq.EVENTS)) & _READABLE:
            identity = self._ear.recv(zmq.NOBLOCK)
            frames = []
            is_last = False
            while not is_last:
                frame = self._ear.recv(zmq.NOBLOCK, copy=False)
                frames.append(frame.buffer)
                is_last = not frame.more
            sender = self._verified_peer(identity)
            if sender is None:
                self.strangers += 1
            else:
                yield HostArrival(sender, frames)

    def fileno(self) -> int:
        return self._arrivals.fileno()

    def close(self, patience_ms: int) -> None:
        self._arrivals.close()
        self._context.destroy(linger=patience_ms)


def _monitored(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, bytes]]:
    """The events of a monitored socket: what happened, and the address."""
    while int(monitor.getsockopt(zmq.EVENTS)) & _READABLE:
        event, address = monitor.recv_multipart(zmq.NOBLOCK)
        yield _MONITOR_EVENT.unpack(event)[0], address
