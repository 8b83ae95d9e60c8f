"""Peers that say what they like at the sockets of an engine, over either transport."""

from __future__ import annotations

import os
import select
import socket
from typing import Protocol

import zmq

from mpgrad.wire import zeromq
from mpgrad.wire.endpoint import ZEROMQ, Endpoint
from mpgrad.wire.stream import READ_BYTES, StreamLine
from mpgrad.wire.unix_hub import NAME

PATIENCE_MS = 5000


class RawPeer(Protocol):
    def send(self, *frames: bytes) -> None:
        """The hub may have room for a part only, see ``push``."""
        ...

    def push(self) -> bool:
        """Send on what did not leave at once; whether all has left."""
        ...

    def is_answered(self) -> bool: ...

    def is_cut_off(self, timeout_ms: int) -> bool:
        """Whether the connection ends within ``timeout_ms``."""
        ...

    def close(self) -> None: ...


def raw_peer(endpoint: Endpoint, lane: str, identity: bytes | None) -> RawPeer:
    """A peer that presents ``identity`` (None: nothing at all) in ``lane``."""
    made = RawZmqPeer if endpoint.transport == ZEROMQ else RawUnixPeer
    return made(endpoint.directory, lane, identity)


class RawUnixPeer:
    def __init__(self, directory: str, lane: str, identity: bytes | None) -> None:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(os.path.join(directory, NAME))
        self._line = StreamLine(connected, bytearray(READ_BYTES))
        self.send(b"" if identity is None else lane.encode() + b" " + identity)

    def send(self, *frames: bytes) -> None:
        self._line.send(frames)

    def push(self) -> bool:
        self._line.push()
        return not self._line.has_unsent

    def is_answered(self) -> bool:
        return bool(self._line.receive())

    def is_cut_off(self, timeout_ms: int) -> bool:
        poll = select.poll()
        poll.register(self._line.socket, select.POLLIN)
        return bool(poll.poll(timeout_ms)) and not (self._line.receive() or self._line.is_open)

    def close(self) -> None:
        self._line.close()


class RawZmqPeer:
    def __init__(self, directory: str, lane: str, identity: bytes | None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = PATIENCE_MS
        # Nothing is queued for a peer that is not there: it waits until it is connected.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.sndtimeo = PATIENCE_MS
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        if identity is not None:
            self._socket.routing_id = identity
        self._socket.connect(zeromq.address(directory, lane))

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def push(self) -> bool:
        """ZeroMQ's own thread sends on."""
        return True

    def is_answered(self) -> bool:
        return self._socket.poll(0) != 0

    def is_cut_off(self, timeout_ms: int) -> bool:
        return self._monitor.poll(timeout_ms) == zmq.POLLIN

    def close(self) -> None:
        self._context.destroy(linger=PATIENCE_MS)
