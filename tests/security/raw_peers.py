"""A peer that says what it likes at the sockets of an engine."""

from __future__ import annotations

import zmq

from mpgrad.wire import zeromq
from mpgrad.wire.endpoint import Endpoint

PATIENCE_MS, LINGER_MS = 120_000, 5000


class RawPeer:
    """Presents ``identity`` (None: nothing at all) in ``lane``."""

    def __init__(self, endpoint: Endpoint, lane: str, identity: bytes | None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        # Nothing is queued for a peer that is not there: it waits until it is connected.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.sndtimeo = PATIENCE_MS
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        if identity is not None:
            self._socket.routing_id = identity
        self._socket.connect(zeromq.address(endpoint.name, lane))

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def is_answered(self) -> bool:
        return self._socket.poll(0) != 0

    def is_cut_off(self, timeout_ms: int) -> bool:
        """Whether the connection ends within ``timeout_ms``."""
        return self._monitor.poll(timeout_ms) == zmq.POLLIN

    def close(self) -> None:
        self._context.destroy(linger=LINGER_MS)
