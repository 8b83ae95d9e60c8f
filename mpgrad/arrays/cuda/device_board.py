"""DeviceBoard: shared host memory in which the processes that use GPUs publish their handles.

A row is written once, before the first message that needs it is sent, and the receiver of the
message reads it: so no message carries it, and the coordinator need not know it. Beside each row
are a few words that its owner alone changes. After the rows every process has a range of bytes, for
data that must go through the host (``pinned_arena``).
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import IPC_HANDLE_BYTES
from mpgrad.errors import MpgradError
from mpgrad.shm.segment import Segment

#: The kinds of rows: handles of memory and of events, participants (``device_link``), the question
#: and the answer of a pair's self-test, and open segments.
MEMORY, EVENT, PROCESS, QUESTION, VERDICT, OPENED = 1, 2, 3, 4, 5, 6

#: The header: rows, bytes of a process's range, and the number of memory shortages.
_HEADER = struct.Struct("<QQQ")
#: After it, written by the client alone: the precision of products of float32 matrices.
_PRECISION_WORD = 3
_ROW = struct.Struct(f"<IIQQQ{IPC_HANDLE_BYTES}s")
_FIRST_ROW = 64
#: A worker takes one row per segment and one per event.
ROWS_MAX = 1 << 18
#: The number of words beside each row.
WORDS = 2
_FIRST_WORD = _FIRST_ROW + ROWS_MAX * _ROW.size
_STRETCHES = -(-(_FIRST_WORD + ROWS_MAX * WORDS * 8) // 4096) * 4096


class BoardFull(MpgradError):
    """Too many segments and events are shared."""


class Row(NamedTuple):
    """A row that one process has written, once.

    Attributes:
        kind: MEMORY, EVENT, ...
        arena: its writer: the number of the memory that it exports, see ``handles``.
        number: of the segment, of the event, ...
        nbytes: of a segment; another number in other rows.
        device: the number of the GPU.
        handle: CUDA's handle; in a VERDICT the reason, padded with zeros.
    """

    kind: int
    arena: int
    number: int
    nbytes: int = 0
    device: int = 0
    handle: bytes = b""


class DeviceBoard:
    """One process's view of the board."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self._buffer = segment, segment.buffer
        self._known: dict[tuple[int, int, int], tuple[int, Row]] = {}
        self._by_kind: dict[int, list[Row]] = {}
        self._words: Any = np.frombuffer(
            segment.buffer, np.uint64, ROWS_MAX * WORDS, _FIRST_WORD
        ).reshape(ROWS_MAX, WORDS)
        self._header: Any = np.frombuffer(segment.buffer, np.uint64, _FIRST_ROW // 8)
        self._read = 0

    @classmethod
    def create(cls, stretches: int = 0, stretch_bytes: int = 0) -> DeviceBoard:
        """A board without rows; its pages do not exist before they are touched."""
        segment = Segment.create(_STRETCHES + stretches * stretch_bytes, "device-board")
        _HEADER.pack_into(segment.buffer, 0, 0, stretch_bytes, 0)
        return cls(segment)

    @classmethod
    def attach(cls, descriptor: int) -> DeviceBoard:
        """Attach to a board; ``descriptor`` belongs to the result."""
        return cls(Segment.attach(descriptor, "device-board"))

    @property
    def fd(self) -> int:
        return self.segment.fd

    @property
    def row_count(self) -> int:
        """The number of rows, which never falls."""
        return int(_HEADER.unpack_from(self._buffer)[0])

    def put(self, *rows: Row) -> None:
        """Publish rows, except those that are on the board already.

        Raises:
            BoardFull: there is no room.
        """
        with self._locked():
            self._catch_up()
            fresh = [row for row in rows if _key(row) not in self._known]
            count, *rest = _HEADER.unpack_from(self._buffer)
            if count + len(fresh) > ROWS_MAX:
                raise BoardFull(f"{ROWS_MAX} segments and events of GPUs are shared already")
            for at, row in enumerate(fresh, count):
                _ROW.pack_into(self._buffer, _FIRST_ROW + at * _ROW.size, *row)
            _HEADER.pack_into(self._buffer, 0, count + len(fresh), *rest)

    def find(self, kind: int, arena: int, number: int) -> Row | None:
        """The row with that name; None if no process has published it."""
        key = (kind, arena, number)
        if key not in self._known:
            self._catch_up()
        found = self._known.get(key)
        return None if found is None else found[1]

    def rows(self, kind: int) -> list[Row]:
        """All rows of a kind in the order in which they were written; do not change the list."""
        self._catch_up()
        return self._by_kind.get(kind, [])

    def words(self, kind: int, arena: int, number: int) -> Any:
        """The words beside a row, all zero at first: uint64, to be changed by its owner only.

        Raises:
            KeyError: there is no such row.
        """
        if (kind, arena, number) not in self._known:
            self._catch_up()
        return self._words[self._known[kind, arena, number][0]]

    def stretch(self, seat: int) -> tuple[int, int]:
        """The start of that process's range of bytes in the segment, and its length."""
        nbytes = int(_HEADER.unpack_from(self._buffer)[1])
        return _STRETCHES + seat * nbytes, nbytes

    @property
    def shortages(self) -> int:
        """The number of times that a process has reported a shortage of GPU memory."""
        return int(_HEADER.unpack_from(self._buffer)[2])

    def note_shortage(self) -> None:
        """Report that GPU memory is short: processes with idle segments return them."""
        with self._locked():
            count, stretch_bytes, shortages = _HEADER.unpack_from(self._buffer)
            _HEADER.pack_into(self._buffer, 0, count, stretch_bytes, shortages + 1)

    @property
    def precision(self) -> int:
        """The client's setting for all processes: the number of a precision of matrix products."""
        return int(self._header[_PRECISION_WORD])

    @precision.setter
    def precision(self, number: int) -> None:
        self._header[_PRECISION_WORD] = number

    def _locked(self) -> _Locked:
        return _Locked(self.segment.fd)

    def _catch_up(self) -> None:
        count = self.row_count
        for at in range(self._read, count):
            row = Row(*_ROW.unpack_from(self._buffer, _FIRST_ROW + at * _ROW.size))
            self._known[_key(row)] = at, row
            self._by_kind.setdefault(row.kind, []).append(row)
        self._read = count

    def close(self) -> None:
        self.segment.close()


class _Locked:
    """Prevents other processes from changing the header."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        # A new open file: a lock on an inherited one would be shared with the parent.
        self._own = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._own, fcntl.LOCK_EX)

    def __exit__(self, *exception: object) -> None:
        os.close(self._own)


def _key(row: Row) -> tuple[int, int, int]:
    return row.kind, row.arena, row.number
