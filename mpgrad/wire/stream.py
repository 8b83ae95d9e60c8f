"""StreamLine: frames over one connected stream socket, each preceded by its length.

Neither end ever waits in here. What the socket does not take at once stays in the line, in order,
and leaves with the next ``send`` or ``push``.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from struct import Struct

from mpgrad.wire.schema import MESSAGE_BYTES_MAX

#: Bytes that one system call takes.
READ_BYTES = 64 * 1024

_LENGTH = Struct("<I")


class StreamLine:
    """One end of a connection.

    Args:
        connected: the socket; the line owns it from now on.
        buffer: what has come is read into it, READ_BYTES at a time; lines of one thread share it.
    """

    __slots__ = ("_buffer", "_needed", "_rest", "_unsent", "is_garbled", "is_open", "socket")

    def __init__(self, connected: socket.socket, buffer: bytearray) -> None:
        connected.setblocking(False)
        self.socket, self._buffer = connected, memoryview(buffer)
        #: False once the other end has gone, or talks nonsense; to be closed then.
        self.is_open = True
        #: It has announced a frame longer than any may be.
        self.is_garbled = False
        #: The beginning of a frame, and how long it has to become to be looked at again.
        self._rest, self._needed = bytearray(), 0
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send ``frames`` after what still waits; a line whose other end has gone takes nothing."""
        parts: list[bytes] = []
        for frame in frames:
            parts += (_LENGTH.pack(len(frame)), frame)
        self._unsent += b"".join(parts)
        self.push()

    def push(self) -> None:
        """Send what waits, as far as the socket takes it."""
        try:
            while self._unsent:
                # Without the flag a program that has set SIGPIPE to its default would die here.
                del self._unsent[: self.socket.send(self._unsent, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            # What the other end has sent before it left can still be read.
            self.is_open = False
            self._unsent.clear()

    def receive(self) -> list[bytes]:
        """All frames that have come; at the end of the stream ``is_open`` becomes False."""
        frames: list[bytes] = []
        try:
            while True:
                count = self.socket.recv_into(self._buffer)
                self.is_garbled = not self._cut(bytes(self._buffer[:count]), frames)
                if not count or self.is_garbled:
                    self.is_open = False
                if count < READ_BYTES or self.is_garbled:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        return frames

    def _cut(self, data: bytes, frames: list[bytes]) -> bool:
        """Add what ``data`` completes to ``frames``; False if a frame is too long."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return True
            data = bytes(self._rest)
            self._rest.clear()
        start, end = 0, len(data)
        self._needed = _LENGTH.size
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MESSAGE_BYTES_MAX:
                return False
            if end - start - _LENGTH.size < length:
                self._needed = _LENGTH.size + length
                break
            start += _LENGTH.size + length
            frames.append(data[start - length : start])
        if start < end:
            self._rest += data[start:]
        return True

    def close(self) -> None:
        self.is_open = False
        self._unsent.clear()
        self.socket.close()
