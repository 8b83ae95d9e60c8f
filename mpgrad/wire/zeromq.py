"""The ZeroMQ transport: ROUTER at the coordinator, DEALER elsewhere; the only file that knows zmq.

Settings: LINGER=0, because closing would wait for dead peers; ROUTER_MANDATORY=1, because messages
to dead peers would vanish silently; no high-water mark, because credits bound the frames in flight;
one identity per incarnation, because a ROUTER refuses a new connection under the name of one that
it is still closing.

The identity of a peer is its name and its proof. Frames without a valid proof are counted and
dropped unread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import zmq

from mpgrad.wire.identity import identity_of, verified_peer
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import ROUTER_LANES, Arrival, Received

if TYPE_CHECKING:
    from mpgrad.wire.endpoint import Endpoint

#: zmq.POLLIN as a plain number: each message needs it a few times.
_READABLE = int(zmq.POLLIN)

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
            socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
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
            identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
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
                self._sockets[lane].send_multipart([identity, *frames], zmq.NOBLOCK)
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

    def wait(self, timeout_ms: int | None) -> list[int]:
        return [item for item, _ in self._poller.poll(timeout_ms) if isinstance(item, int)]

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        for socket in self._sockets.values():
            while int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
                frames.extend(socket.recv_multipart(zmq.NOBLOCK))
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        self._sockets[lane or self._reply_lane].send_multipart(frames)

    def close(self) -> None:
        if not self._sockets:
            return
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()
        _contexts.give_back(self._context)


class _Contexts:
    """The context that the dealers of this process share; it ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._borrowed = 0
        #: Contexts of the parent process, which a forked child must not touch.
        self._of_parents: list[zmq.Context[zmq.Socket[bytes]]] = []

    def borrow(self) -> zmq.Context[zmq.Socket[bytes]]:
        with self._lock:
            if self._context is None:
                self._context = zmq.Context()
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
        self._lock, self._context, self._borrowed = threading.Lock(), None, 0


_contexts = _Contexts()
os.register_at_fork(after_in_child=_contexts.start_anew_in_child)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    socket.maxmsgsize = MESSAGE_BYTES_MAX
    return socket
