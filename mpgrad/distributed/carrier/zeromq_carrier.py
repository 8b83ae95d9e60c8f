"""ZmqHostCarrier: TCP between hosts, by ZeroMQ."""

from __future__ import annotations

import functools
import select
import struct
from collections.abc import Iterator, Sequence

import zmq

from mpgrad.distributed.carrier.contract import (
    CarrierEvent,
    HostArrival,
    HostDisconnected,
    HostUnreachable,
)
from mpgrad.distributed.carrier.messages import FRAME_BYTES_MAX
from mpgrad.wire.zeromq import IDENTITIES_MAX, READABLE, identity_of, socket_in, verified_peer

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
        socket = socket_in(self._context, zmq.ROUTER)
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
        while int(self._ear.getsockopt(zmq.EVENTS)) & READABLE:
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
    while int(monitor.getsockopt(zmq.EVENTS)) & READABLE:
        event, address = monitor.recv_multipart(zmq.NOBLOCK)
        yield _MONITOR_EVENT.unpack(event)[0], address
