"""DeviceBoard: shared host memory where processes that export device memory leave their handles.

A handle is written once, before the first message that needs it is sent, and is read by whoever
gets such a message: no message has to carry it, and the coordinator need not know of it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

from mpgrad.errors import MpgradError
from mpgrad.shm.cuda_driver import IPC_HANDLE_BYTES
from mpgrad.shm.segment import Segment

#: What a handle is of.
MEMORY, EVENT = 1, 2

_COUNT = struct.Struct("<Q")
_ROW = struct.Struct(f"<IIQQQ{IPC_HANDLE_BYTES}s")
_FIRST_ROW = 64
#: A worker takes one row per segment and one per event.
ROWS_MAX = 65_536


class BoardFull(MpgradError):
    """Too many segments and events are shared."""


class Row(NamedTuple):
    """One handle.

    Attributes:
        kind: MEMORY or EVENT.
        arena: who exports it, see ``handles``.
        number: of the segment or event there.
        nbytes: of the segment.
        device: which GPU.
        handle: CUDA's.
    """

    kind: int
    arena: int
    number: int
    nbytes: int
    device: int
    handle: bytes


class DeviceBoard:
    """One process's view of it."""

    def __init__(self, segment: Segment) -> None:
        self._segment, self._buffer = segment, segment.buffer
        self._known: dict[tuple[int, int, int], Row] = {}
        self._read = 0

    @classmethod
    def create(cls) -> DeviceBoard:
        return cls(Segment.create(_FIRST_ROW + ROWS_MAX * _ROW.size, "device-board"))

    @classmethod
    def attach(cls, descriptor: int) -> DeviceBoard:
        """``descriptor`` belongs to the result."""
        return cls(Segment.attach(descriptor, "device-board"))

    @property
    def fd(self) -> int:
        return self._segment.fd

    def put(self, row: Row) -> None:
        """Publish a handle, unless it stands there already.

        Raises:
            BoardFull: there is no room.
        """
        if self.find(row.kind, row.arena, row.number) is not None:
            return
        # An open file of our own: a lock on an inherited one would be shared with the parent.
        descriptor = os.open(f"/proc/self/fd/{self._segment.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (count,) = _COUNT.unpack_from(self._buffer)
            if count == ROWS_MAX:
                raise BoardFull(f"{ROWS_MAX} segments and events of GPUs are shared already")
            _ROW.pack_into(self._buffer, _FIRST_ROW + count * _ROW.size, *row)
            _COUNT.pack_into(self._buffer, 0, count + 1)
        finally:
            os.close(descriptor)

    def find(self, kind: int, arena: int, number: int) -> Row | None:
        """The handle of a segment or event; None if nobody has published it."""
        key = (kind, arena, number)
        if key not in self._known:
            self._catch_up()
        return self._known.get(key)

    def _catch_up(self) -> None:
        (count,) = _COUNT.unpack_from(self._buffer)
        for at in range(self._read, count):
            row = Row(*_ROW.unpack_from(self._buffer, _FIRST_ROW + at * _ROW.size))
            self._known[row.kind, row.arena, row.number] = row
        self._read = count

    def close(self) -> None:
        self._segment.close()
