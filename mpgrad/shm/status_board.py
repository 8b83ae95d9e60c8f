"""StatusBoard: a shared page where each worker shows which task it is executing.

The coordinator reads the row of a dead worker, and so knows which of its tasks in flight is
suspect. Each row has one writer. A torn row can only come from a worker that was killed while
writing; it then names a task that is not in flight. This module does not load NumPy.
"""

from __future__ import annotations

import struct

from mpgrad.shm.segment import Segment

_ROW = struct.Struct("<QQQ")
ROW_BYTES = 64
SLOTS_MAX = 1024


class StatusBoard:
    """Rows of (graph, task, attempt), one per worker slot."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffer = segment.buffer

    @classmethod
    def create(cls) -> StatusBoard:
        return cls(Segment.create(ROW_BYTES * SLOTS_MAX, "board"))

    @classmethod
    def attach(cls, descriptor: int) -> StatusBoard:
        return cls(Segment.attach(descriptor))

    @property
    def fd(self) -> int:
        return self._segment.fd

    def begin(self, slot: int, graph: int, task: int, attempt: int) -> None:
        """The worker in ``slot`` starts a task (attempts are numbered from 1)."""
        _ROW.pack_into(self._buffer, slot * ROW_BYTES, graph, task, attempt)

    def clear(self, slot: int) -> None:
        """The worker in ``slot`` runs nothing (attempt 0)."""
        _ROW.pack_into(self._buffer, slot * ROW_BYTES, 0, 0, 0)

    def read(self, slot: int) -> tuple[int, int, int] | None:
        """What the worker in ``slot`` runs, or None."""
        graph, task, attempt = _ROW.unpack_from(self._buffer, slot * ROW_BYTES)
        return (graph, task, attempt) if attempt else None

    def close(self) -> None:
        self._segment.close()
