"""StatusBoard: a shared page where each worker shows which task it is executing.

The coordinator reads the row of a dead worker, and so knows which of its tasks in flight is
suspect. Each row has one writer. A torn row can only come from a worker that was killed while
writing; it then names a task that is not in flight. This module does not load NumPy.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpgrad.shm.segment import Segment

_ROW = struct.Struct("<QQQ")
#: Behind that, in the same row: the worker's process, which the coordinator writes.
_PID, _PID_AT = struct.Struct("<Q"), 32
ROW_BYTES = 64
SLOTS_MAX = 1024
#: Behind the rows: the coordinator's figures.
_FIGURES, _FIGURES_AT = struct.Struct("<QQQQQQQ"), ROW_BYTES * SLOTS_MAX
#: What a segment of a board is called.
_NAME = "board"


class BoardFigures(NamedTuple):
    """What the coordinator has to do, and the engine's arena in bytes."""

    sessions: int
    graphs: int
    #: Tasks that wait for a worker; that a process has; and all that are not done, with those that
    #: wait for others.
    ready: int
    dispatched: int
    remaining: int
    arena_used: int
    arena_limit: int


class StatusBoard:
    """Rows of (graph, task, attempt), one per worker slot."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffer = segment.buffer

    @classmethod
    def create(cls) -> StatusBoard:
        return cls(Segment.create(_FIGURES_AT + ROW_BYTES, _NAME))

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

    def report(self, figures: BoardFigures, pids: Sequence[int]) -> None:
        """The coordinator says what there is to do, and by slot which process works (0: none)."""
        _FIGURES.pack_into(self._buffer, _FIGURES_AT, *figures)
        for slot, pid in enumerate(pids):
            _PID.pack_into(self._buffer, slot * ROW_BYTES + _PID_AT, pid)

    def close(self) -> None:
        self._segment.close()


def board_of(coordinator: int) -> bytes:
    """A copy of the board of the engine with this coordinator, a process of the same user.

    Raises:
        OSError: there is no such process, or it belongs to somebody else.
        LookupError: it has no board yet.
    """
    for link in Path(f"/proc/{coordinator}/fd").iterdir():
        with contextlib.suppress(OSError):
            if f"memfd:mpgrad-{_NAME} " not in f"{os.readlink(link)} ":
                continue
            descriptor = os.open(link, os.O_RDONLY)
            try:
                with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
                    return mapped[:]
            finally:
                os.close(descriptor)
    raise LookupError(f"process {coordinator} has no board")


def figures_in(board: bytes) -> BoardFigures:
    """The coordinator's figures on a copy of a board; they may be torn.

    Raises:
        LookupError: it is the board of another version of mpgrad.
    """
    if len(board) < _FIGURES_AT + _FIGURES.size:
        raise LookupError("a board of another version of mpgrad")
    return BoardFigures._make(_FIGURES.unpack_from(board, _FIGURES_AT))


def workers_in(board: bytes) -> dict[int, tuple[int, int, int] | None]:
    """On a copy of a board: by process what each worker runs: graph, task, attempt."""
    found: dict[int, tuple[int, int, int] | None] = {}
    for at in range(0, _FIGURES_AT, ROW_BYTES):
        (pid,) = _PID.unpack_from(board, at + _PID_AT)
        if pid:
            row = _ROW.unpack_from(board, at)
            found[pid] = row if row[2] else None
    return found
