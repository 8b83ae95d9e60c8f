"""The ZeroMQ transport inside a host: ROUTER at the coordinator, DEALER elsewhere.

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
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import zmq

from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import ROUTER_LANES, Arrival, Received

if TYPE_CHECKING:
    from mpgrad.wire.endpoint import Endpoint

#: As plain numbers: each message needs them a few times, and an operation on the flags of pyzmq
#: takes as long as a part of a message.
READABLE = int(zmq.POLLIN)
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
            socket = socket_in(self._context, zmq.ROUTER)
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
        while int(socket.getsockopt(zmq.EVENTS)) & READABLE:
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
            socket = socket_in(self._context, zmq.DEALER)
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
            while int(socket.getsockopt(zmq.EVENTS)) & READABLE:
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


def socket_in(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A new socket with the settings of this file."""
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
