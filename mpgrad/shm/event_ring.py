"""A fixed number of interprocess events, by which one process's streams wait for another's.

Making or opening an event costs a system call and a mapping, and PyTorch found a limit near 22,000;
so each process makes its events once, the others open them once, and each is recorded again and
again. Never while somebody may still come to wait for it: that one would wait for later work,
which may itself wait for him.
"""

from __future__ import annotations

from typing import Any

from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.shm.cuda_driver import CudaDriver
from mpgrad.shm.device_board import EVENT, DeviceBoard

#: PyTorch caps its own at 1000 and synchronises beyond; this many can be under way per worker.
EVENTS = 256


class EventRing:
    """The exporter's end.

    Args:
        driver: of this process; the events belong to its current device.
        size: how many.
    """

    def __init__(self, driver: CudaDriver, size: int = EVENTS) -> None:
        self._driver = driver
        self._events = [driver.event(interprocess=True) for _ in range(size)]
        self._free = list(range(size - 1, -1, -1))
        #: Event -> those who have not waited for it yet.
        self._waiters: dict[int, int] = {}
        self.synchronized = 0

    def handles(self) -> list[bytes]:
        """For the importers, in order."""
        return [self._driver.ipc_event_handle(event) for event in self._events]

    def record(self, stream: Any, waiters: int) -> int | None:
        """Mark what is in ``stream`` now, for ``waiters`` processes.

        Returns:
            The number that they wait for; None if there is nothing to wait for. The latter also
            where no event is free: then this thread has waited itself.
        """
        if waiters < 1:
            return None
        if not self._free:
            stream.synchronize()
            self.synchronized += 1
            return None
        number = self._free.pop()
        self._events[number].record(stream)
        self._waiters[number] = waiters
        return number

    def record_again(self, number: int, stream: Any) -> None:
        """Mark what is in ``stream`` now under a number that ``record`` has given and nobody has
        been told yet."""
        if number not in self._waiters:
            raise InvariantViolated(f"event {number} is free and cannot be recorded again")
        self._events[number].record(stream)

    def waited(self, number: int) -> None:
        """One process has put its wait into its stream, or is dead.

        Raises:
            InvariantViolated: nobody was to wait for that one.
        """
        left = self._waiters.get(number, 0) - 1
        if left < 0:
            raise InvariantViolated(f"nobody is to wait for event {number}")
        self._waiters[number] = left
        if left == 0:
            del self._waiters[number]
            self._free.append(number)

    @property
    def free_count(self) -> int:
        """Events that can be recorded now."""
        return len(self._free)


class OpenedEvents:
    """Other processes' events, each opened once.

    Args:
        driver: of this process.
        board: where their handles stand.
    """

    def __init__(self, driver: CudaDriver, board: DeviceBoard) -> None:
        self._driver, self._board = driver, board
        self._opened: dict[tuple[int, int], Any] = {}

    def find(self, arena: int, number: int) -> Any:
        """Event ``number`` of the process whose memory is ``arena``.

        Raises:
            ProtocolError: nobody has shown it.
        """
        key = (arena, number)
        if key not in self._opened:
            row = self._board.find(EVENT, *key)
            if row is None:
                raise ProtocolError(f"nobody has shown event {number} of memory {arena}")
            with self._driver.device(row.device):
                self._opened[key] = self._driver.open_ipc_event(row.handle)
        return self._opened[key]
