"""The AF_UNIX transport, the coordinator's end; ``unix_spoke`` has the others'.

One stream socket per peer and lane, used by the thread that speaks. ZeroMQ hands each message to a
thread of its own at either end, and where all cores compute, each hand-over waits for a core. Here
a message is one system call at either end (ARCHITECTURE.md has the measurement).

A connection begins with a frame that names its lane and its peer, and proves that whoever speaks
knows the engine's token. What strangers send is counted and thrown away unread.
"""

from __future__ import annotations

import os
import select
import socket
from struct import Struct

from mpgrad.wire.identity import verified_peer
from mpgrad.wire.stream import READ_BYTES, StreamLine
from mpgrad.wire.transport import HUB_LANES, Arrival, Received

#: The socket's name in the engine's private (0700) directory.
NAME = "lanes"
#: Connections that wait until the coordinator accepts them; more wait in ``connect``.
BACKLOG = 1024
#: Connections that are accepted in one go, and those that may stay without having proved
#: themselves: when there are more, the oldest is closed.
ACCEPTED_MAX, STRANGERS_MAX = 128, 1024

#: Process, user and group of the other end, as the kernel knows them.
_CREDENTIALS = Struct("3i")
_RANKS = {lane: rank for rank, lane in enumerate(HUB_LANES)}


def listen(directory: str) -> socket.socket:
    """The socket at which a hub will be found: peers may connect before there is a hub.

    Raises:
        OSError: it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = os.path.join(directory, NAME)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class _Connection:
    """One lane of one peer; a stranger's until that has proved itself."""

    __slots__ = ("has_spoken", "lane", "line", "peer")

    def __init__(self, line: StreamLine) -> None:
        self.line = line
        self.has_spoken = False
        self.lane = self.peer = ""


class UnixHub:
    """The coordinator's end.

    Args:
        listener: where peers connect; the hub owns it from now on.
        token: what a peer has to know.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener, self._token = listener, token
        self.ignored = 0
        self._buffer = bytearray(READ_BYTES)
        self._poll = select.epoll()
        self._watched: set[int] = set()
        self._connections: dict[int, _Connection] = {}
        #: Those of them that have not proved themselves, oldest first.
        self._strangers: dict[int, _Connection] = {}
        self._by_name: dict[tuple[str, str], _Connection] = {}
        self._outbox: dict[tuple[str, str], list[bytes]] = {}
        self._is_listening = False
        self._listen()

    def watch(self, descriptor: int) -> None:
        self._watched.add(descriptor)
        self._poll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._watched.remove(descriptor)
        self._poll.unregister(descriptor)

    # ------------------------------------------------------------------ receiving

    def receive(self, timeout_ms: int | None) -> Received:
        arrivals: list[Arrival] = []
        readable: list[int] = []
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        for descriptor, events in self._poll.poll(timeout_s):
            connection = self._connections.get(descriptor)
            if connection is not None:
                if events & select.EPOLLOUT:
                    connection.line.push()
                    self._ask_for_room(connection)
                arrivals += self._drain(descriptor, connection)
            elif descriptor in self._watched:
                readable.append(descriptor)
            else:
                arrivals += self._accept()
        if len(arrivals) > 1:
            arrivals.sort(key=_rank)
        return Received(arrivals, readable)

    def _drain(self, descriptor: int, connection: _Connection) -> list[Arrival]:
        line = connection.line
        frames = line.receive()
        if frames and not connection.has_spoken:
            connection.has_spoken = True
            if self._is_let_in(connection, frames.pop(0)):
                del self._strangers[descriptor]
        if not line.is_open:
            self._forget(descriptor, connection)
            self.ignored += line.is_garbled
        if not connection.peer:
            self.ignored += len(frames)
            return []
        return [Arrival(connection.lane, connection.peer, frame) for frame in frames]

    def _is_let_in(self, connection: _Connection, greeting: bytes) -> bool:
        lane_name, _, identity = greeting.partition(b" ")
        lane = lane_name.decode("latin-1")
        peer = verified_peer(self._token, lane, identity)
        if peer is None or lane not in HUB_LANES or (lane, peer) in self._by_name:
            return False
        connection.lane, connection.peer = lane, peer
        self._by_name[lane, peer] = connection
        return True

    def _accept(self) -> list[Arrival]:
        """Let newcomers in; most have said something already."""
        arrivals: list[Arrival] = []
        try:
            for _ in range(ACCEPTED_MAX):
                arrivals += self._admit(self._listener.accept()[0])
        except BlockingIOError:
            pass
        except OSError:
            # No descriptor is free: they wait until somebody leaves, for the listener stays
            # readable and would not let this process sleep.
            self._poll.unregister(self._listener)
            self._is_listening = False
        return arrivals

    def _admit(self, accepted: socket.socket) -> list[Arrival]:
        # Second line behind the private directory: peers of another user are not heard.
        if _user_of(accepted) != os.getuid():
            self.ignored += 1
            accepted.close()
            return []
        if len(self._strangers) >= STRANGERS_MAX:
            self._forget(*next(iter(self._strangers.items())))
        descriptor, connection = accepted.fileno(), _Connection(StreamLine(accepted, self._buffer))
        self._connections[descriptor] = self._strangers[descriptor] = connection
        self._poll.register(descriptor, select.EPOLLIN)
        return self._drain(descriptor, connection)

    def _listen(self) -> None:
        if not self._is_listening:
            self._poll.register(self._listener, select.EPOLLIN)
            self._is_listening = True

    def _forget(self, descriptor: int, connection: _Connection) -> None:
        """Close a connection; nothing is told: who has died is seen elsewhere."""
        self._poll.unregister(descriptor)
        del self._connections[descriptor]
        self._strangers.pop(descriptor, None)
        if self._by_name.get((connection.lane, connection.peer)) is connection:
            del self._by_name[connection.lane, connection.peer]
        connection.line.close()
        self._listen()

    # ------------------------------------------------------------------ sending

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._outbox.setdefault((lane, peer), []).append(frame)

    def flush(self) -> list[str]:
        gone = []
        for name, frames in self._outbox.items():
            connection = self._by_name.get(name)
            if connection is not None:
                connection.line.send(frames)
                if connection.line.has_unsent:
                    self._ask_for_room(connection)
            if connection is None or not connection.line.is_open:
                gone.append(name[1])
        self._outbox.clear()
        return gone

    def _ask_for_room(self, connection: _Connection) -> None:
        """Let ``receive`` send what is left, when there is room for it."""
        events = select.EPOLLIN | (select.EPOLLOUT if connection.line.has_unsent else 0)
        self._poll.modify(connection.line.socket, events)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.line.close()
        self._connections.clear()
        self._poll.close()
        self._listener.close()


def _rank(arrival: Arrival) -> int:
    return _RANKS[arrival.lane]


def _user_of(connected: socket.socket) -> int:
    """The user at the other end."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
