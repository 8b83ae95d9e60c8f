"""ByteSource: reads a file that may lie about lengths. Budget: what the file may ask for.

A length that the file states allots no memory: only bytes that are there do.
"""

from __future__ import annotations

import pickle
from typing import IO

#: The bytes of one read.
PIECE_BYTES = 1 << 24
#: The longest line of a number, a name or an index, in bytes.
SHORT_LINE_BYTES = 10_000
#: Bytes to copy, or to go through, for each byte of the file that was read. An array of several
#: Tensors is in the file once, and each of them gets a copy.
TIMES_MAX = 100
#: What every file may ask for.
BYTES_MIN = 1 << 20


class ByteSource:
    """The bytes of a file, from its position on. It reads no byte before that is asked for.

    Attributes:
        taken: how many bytes were read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._read, self._readline = file.read, file.readline
        self.taken = 0

    def opcode(self) -> bytes:
        """The next byte.

        Raises:
            EOFError: there is none.
        """
        self.taken += 1
        return self._read(1) or self.take(1)

    def number(self, size: int) -> int:
        """An unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little")

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes.

        Raises:
            EOFError: the file ends before.
        """
        self.taken += length
        data = self._read(min(length, PIECE_BYTES))
        return data if len(data) == length else bytes(self._rest(data, length))

    def take_writable(self, length: int) -> bytearray:
        """The next ``length`` bytes, in memory that may be written."""
        self.taken += length
        return self._rest(b"", length)

    def _rest(self, begin: bytes, length: int) -> bytearray:
        data = bytearray(begin)
        while len(data) < length:
            piece = self._read(min(length - len(data), PIECE_BYTES))
            if not piece:
                raise EOFError(f"{length} bytes should follow, and {len(data)} do")
            data += piece
        return data

    def short_line(self) -> bytes:
        """A line of a number or a name, without its end.

        Raises:
            pickle.UnpicklingError: it is longer than such a line can be.
        """
        return self._whole(self._readline(SHORT_LINE_BYTES))

    def line(self) -> bytes:
        """A line of any length, without its end."""
        return self._whole(self._readline())

    def _whole(self, line: bytes) -> bytes:
        if not line.endswith(b"\n"):
            raise pickle.UnpicklingError("a line does not end")
        self.taken += len(line)
        return line[:-1]


class Budget:
    """The work and memory that one file may still ask for, by the bytes that it has.

    Args:
        source: where the file is read.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._spent = 0

    def spend(self, nbytes: int) -> None:
        """Count bytes that are copied or gone through.

        Raises:
            pickle.UnpicklingError: they are too many.
        """
        self._spent += nbytes
        self.check(self._spent)

    def check(self, nbytes: int) -> None:
        """See that one object does not ask for more than the file may.

        Raises:
            pickle.UnpicklingError: it does.
        """
        if nbytes > BYTES_MIN + TIMES_MAX * self._source.taken:
            raise pickle.UnpicklingError(
                f"Weights only load failed: the file asks for over {TIMES_MAX} times the memory or "
                "work of its own length. If you trust the file, use "
                "mg.load(..., weights_only=False)."
            )
