"""DeviceRoster: the processes of an engine that use GPUs, and which of them are dead."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Callable
from typing import Any

from mpgrad.arrays.cuda.device_board import PROCESS, DeviceBoard, Row
from mpgrad.errors import MpgradError

#: PROCESS rows have the number of the worker's slot; the client's GPUs come after all slots.
_CLIENT_SLOTS = 1 << 32
#: The time to wait for an event between two checks whether its process is dead.
_LOOK_AGAIN_S = 50e-6
#: The time that another process's event may take after one of them has died.
_GRACE_S = 30.0


class ExporterLost(MpgradError):
    """The process whose memory is to be read is dead."""


class _Life:
    """The pidfd of a process, readable once it is dead. A waiting thread keeps the object."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """The descriptor for ``select``."""
        return self._fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            close(self._fd)


class DeviceRoster:
    """The PROCESS rows of a board.

    Args:
        board: of the engine.
    """

    def __init__(self, board: DeviceBoard) -> None:
        self._board = board
        #: By the number of its memory, each process that may be alive. (The client has one number
        #: per GPU.)
        self.alive: dict[int, Row] = {}
        self._lives: dict[int, _Life] = {}

    def row(self, arena: int, reader: int, device: int, slot: int | None) -> Row:
        """The row of this process.

        Args:
            arena: the number of its memory on that GPU.
            reader: its name as a reader: the lowest of those numbers.
            device: the number of the GPU.
            slot: of a worker; None for the client.
        """
        number = _CLIENT_SLOTS + device if slot is None else slot
        return Row(PROCESS, arena, number, reader, device, str(os.getpid()).encode())

    def refresh(self) -> None:
        """Find new processes. A slot gets a new one only after the death of the one before."""
        rows = self._board.rows(PROCESS)
        latest = {row.number: row.arena for row in rows}
        self.alive = {row.arena: row for row in rows if latest[row.number] == row.arena}
        self._lives = {arena: life for arena, life in self._lives.items() if arena in self.alive}

    @property
    def readers(self) -> set[int]:
        """The processes that may be alive, as readers."""
        return {row.nbytes for row in self.alive.values()}

    def process(self, arena: int) -> Row:
        """The row of that memory's process.

        Raises:
            ExporterLost: it is dead, and another one has its slot.
        """
        if arena not in self.alive:
            self.refresh()
        if arena not in self.alive:
            raise ExporterLost(f"the process of memory {arena} was replaced")
        return self.alive[arena]

    def seat(self, arena: int) -> int:
        """The number of its process's range of host memory.

        Raises:
            ExporterLost: as for ``process``.
        """
        number = self.process(arena).number
        return 0 if number >= _CLIENT_SLOTS else number + 1

    def is_dead(self, arena: int) -> bool:
        """Whether that process has ended."""
        try:
            return bool(select.select([self._life_of(arena)], [], [], 0)[0])
        except ExporterLost:
            return True

    def wait_here(self, arena: int, event: Any, limit_s: float = math.inf) -> None:
        """Block this thread until an event of another process is done.

        A stream that waits for an event of a process that dies may wait forever, or break its
        context. A worker can then be replaced; the client must avoid it.

        Raises:
            ExporterLost: that process is dead; or another one is, and this one makes no progress,
                because its GPU may wait for the dead one.
            TimeoutError: all are alive, and the event was not done within ``limit_s``.
        """
        now = time.monotonic()
        deadline, is_someone_dead = now + limit_s, False
        watched: list[_Life] = []
        while not event.done:
            watched = watched or [self._life_of(arena), *self._lives_of_others()]
            ended = select.select(watched, [], [], _LOOK_AGAIN_S)[0]
            if watched[0] in ended and not event.done:
                raise ExporterLost(f"the process of memory {arena} is dead")
            now = time.monotonic()
            if ended and not is_someone_dead:
                is_someone_dead, deadline = True, min(deadline, now + _GRACE_S)
                watched = watched[:1]
            if now > deadline and is_someone_dead:
                raise ExporterLost(f"a process died, and that of memory {arena} makes no progress")
            if now > deadline:
                raise TimeoutError(f"its event was not done within {limit_s} s")

    def close(self) -> None:
        """Release everything, after all other processes have died."""
        self._lives.clear()
        self.alive.clear()

    def _lives_of_others(self) -> list[_Life]:
        lives = []
        for arena in list(self.alive):
            with contextlib.suppress(ExporterLost):
                lives.append(self._life_of(arena))
        return lives

    def _life_of(self, arena: int) -> _Life:
        life = self._lives.get(arena)
        if life is None:
            pid = int(self.process(arena).handle.rstrip(b"\0"))
            try:
                life = self._lives[arena] = _Life(pid)
            except ProcessLookupError:
                raise ExporterLost(f"process {pid} is dead") from None
        return life
