"""The AF_UNIX transport, a worker's or a session's end; ``unix_hub`` has the coordinator's."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from mpgrad.wire.identity import identity_of
from mpgrad.wire.stream import READ_BYTES, StreamLine
from mpgrad.wire.unix_hub import NAME


class UnixSpoke:
    """A worker's end (three lanes) or a session's (the client lane).

    Args:
        directory: where the hub's socket is.
        peer: this end's name.
        token: proves that it may use the name.
        lanes: the most urgent first; the last one is the default of ``send``.
        is_patient: ``send`` returns when all has left. Else the rest leaves in ``wait``, which a
            Ctrl-C can break: the hub may have been stopped.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(
        self,
        directory: str,
        peer: str,
        token: bytes,
        lanes: Sequence[str],
        *,
        is_patient: bool = True,
    ) -> None:
        self._is_patient = is_patient
        #: Something waits for room in a line.
        self._has_unsent = False
        self._buffer = bytearray(READ_BYTES)
        self._poll = select.poll()
        self._watched: set[int] = set()
        self._lines: dict[str, StreamLine] = {}
        #: Those that are open, the most urgent first.
        self._by_descriptor: dict[int, StreamLine] = {}
        try:
            for lane in lanes:
                self._open(directory, lane, identity_of(token, lane, peer))
        except BaseException:
            self.close()
            raise
        self._reply_lane = lanes[-1]

    def _open(self, directory: str, lane: str, identity: bytes) -> None:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line = self._lines[lane] = StreamLine(connecting, self._buffer)
        connecting.setblocking(True)
        connecting.connect(os.path.join(directory, NAME))
        connecting.setblocking(False)
        line.send([lane.encode() + b" " + identity])
        self._by_descriptor[connecting.fileno()] = line
        self._poll.register(connecting, select.POLLIN)

    def watch(self, descriptor: int) -> None:
        self._watched.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_ms: int | None) -> list[int]:
        if self._has_unsent:
            self._push()
        found = self._poll.poll(timeout_ms)
        return [descriptor for descriptor, _ in found if descriptor in self._watched]

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        ready = dict(self._poll.poll(0))
        for descriptor, line in [*self._by_descriptor.items()] if ready else ():
            if descriptor in ready:
                frames += line.receive()
                if not line.is_open:
                    del self._by_descriptor[descriptor]
                    self._poll.unregister(descriptor)
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        line = self._lines[lane or self._reply_lane]
        line.send(frames)
        while line.has_unsent and self._is_patient:
            room = select.poll()
            room.register(line.socket, select.POLLOUT)
            room.poll()
            line.push()
        self._has_unsent |= line.has_unsent

    def _push(self) -> None:
        """Send what is left, and let ``wait`` end when there is room for more."""
        self._has_unsent = False
        for descriptor, line in self._by_descriptor.items():
            line.push()
            self._has_unsent |= line.has_unsent
            self._poll.modify(descriptor, select.POLLIN | select.POLLOUT * line.has_unsent)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
