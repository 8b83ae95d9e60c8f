"""StatusBoard: a shared page where each worker shows which task it is executing.

The coordinator reads the row of a dead worker, and so knows which of its tasks in flight is
suspect. Each row has one writer. A torn row can only come from a worker that was killed while
writing; it then names a task that is not in flight. This module does not load NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpgrad.shm.segment import Segment, copy_of

_ROW = struct.Struct("<QQQ")
#: Behind that, in the same row, what the coordinator writes: a WorkerFigures.
_WORKER, _WORKER_AT = struct.Struct("<QqQ"), 32
#: And what the worker has recorded and somebody may differentiate: branches, and their bytes.
_COUNT, _COUNT_AT, _BYTES_AT = struct.Struct("<Q"), 24, 56
ROW_BYTES = 64
SLOTS_MAX = 1024
#: Behind the rows: the coordinator's figures, and its queues with their number before them.
_FIGURES, _FIGURES_AT = struct.Struct("<QQQQQQQQ"), ROW_BYTES * SLOTS_MAX
_QUEUE, _QUEUES_AT = struct.Struct("<qQQ"), _FIGURES_AT + _FIGURES.size
QUEUES_MAX = 64
_BYTES = _QUEUES_AT + _QUEUE.size * QUEUES_MAX
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


class QueueFigures(NamedTuple):
    """The tasks that wait for a worker of one device: those of nested backwards (lane *urgent*),
    and all others (lane *task*)."""

    device: int
    urgent: int
    task: int


class WorkerFigures(NamedTuple):
    """A worker as the coordinator sees it: its process (0: none), its GPU or -1, and the tasks that
    it holds, running or not."""

    pid: int
    device: int
    held: int


class StatusBoard:
    """Rows of (graph, task, attempt), one per worker slot."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffer = segment.buffer

    @classmethod
    def create(cls) -> StatusBoard:
        return cls(Segment.create(_BYTES, _NAME))

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

    def note_branches(self, slot: int, count: int, nbytes: int) -> None:
        """The worker in ``slot`` holds so many branches of so many bytes."""
        _COUNT.pack_into(self._buffer, slot * ROW_BYTES + _COUNT_AT, count)
        _COUNT.pack_into(self._buffer, slot * ROW_BYTES + _BYTES_AT, nbytes)

    def branches(self, slot: int) -> tuple[int, int]:
        """The number and the bytes of the branches of the worker in ``slot``."""
        return _branches_in(self._buffer, slot * ROW_BYTES)

    def report(
        self,
        figures: BoardFigures,
        queues: Sequence[QueueFigures],
        workers: Sequence[WorkerFigures],
    ) -> None:
        """The coordinator says what there is to do, and who does it, by slot."""
        queues = queues[:QUEUES_MAX]
        _FIGURES.pack_into(self._buffer, _FIGURES_AT, *figures, len(queues))
        for at, queue in enumerate(queues):
            _QUEUE.pack_into(self._buffer, _QUEUES_AT + at * _QUEUE.size, *queue)
        for slot, worker in enumerate(workers):
            _WORKER.pack_into(self._buffer, slot * ROW_BYTES + _WORKER_AT, *worker)

    def close(self) -> None:
        self._segment.close()


def board_of(coordinator: int) -> bytes:
    """A copy of the board of the engine with this coordinator, a process of the same user.

    Raises:
        OSError: there is no such process, or it belongs to somebody else.
        LookupError: it has no board yet.
    """
    return copy_of(coordinator, _NAME)


def figures_in(board: bytes) -> BoardFigures:
    """The coordinator's figures on a copy of a board; they may be torn.

    Raises:
        LookupError: it is the board of another version of mpgrad.
    """
    return BoardFigures._make(_figures(board)[:-1])


def queues_in(board: bytes) -> list[QueueFigures]:
    """On a copy of a board: the queue of each device that has had tasks."""
    count = min(_figures(board)[-1], QUEUES_MAX)
    places = range(_QUEUES_AT, _QUEUES_AT + count * _QUEUE.size, _QUEUE.size)
    return [QueueFigures._make(_QUEUE.unpack_from(board, at)) for at in places]


def _branches_in(board: Any, at: int) -> tuple[int, int]:
    (count,), (nbytes,) = (
        _COUNT.unpack_from(board, at + where) for where in (_COUNT_AT, _BYTES_AT)
    )
    return count, nbytes


def _figures(board: bytes) -> tuple[int, ...]:
    if len(board) < _BYTES:
        raise LookupError("a board of another version of mpgrad")
    return _FIGURES.unpack_from(board, _FIGURES_AT)


def workers_in(
    board: bytes,
) -> list[tuple[WorkerFigures, tuple[int, int, int] | None, tuple[int, int]]]:
    """On a copy of a board: the workers, what each one runs (graph, task, attempt), and its
    branches: their number and their bytes."""
    found = []
    for at in range(0, _FIGURES_AT, ROW_BYTES):
        worker = WorkerFigures._make(_WORKER.unpack_from(board, at + _WORKER_AT))
        if worker.pid:
            row = _ROW.unpack_from(board, at)
            found.append((worker, row if row[2] else None, _branches_in(board, at)))
    return found
