"""A fixed number of interprocess events, by which one process's streams wait for another's.

Making or opening an event costs a system call and a mapping, and PyTorch found a limit near 22,000;
so each process makes its events once, the others open them once, and each is recorded again and
again. Never while somebody may still come to wait for it: that one would wait for later work,
which may itself wait for him.
"""

from __future__ import annotations

from typing import Any

from mpgrad.devices.cuda_driver import CudaDriver
from mpgrad.devices.device_board import EVENT, DeviceBoard
from mpgrad.errors import InvariantViolated, ProtocolError

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
        #: Event -> how many may still come to wait for it.
        self._waiters: dict[int, int] = {}

    def handles(self) -> list[bytes]:
        """For the importers, in order."""
        return [self._driver.ipc_event_handle(event) for event in self._events]

    def reserve(self) -> int | None:
        """A free event for one who will wait for it, to be recorded before he hears of it.

        None where none is free: then whoever asks waits for his stream himself.
        """
        if not self._free:
            return None
        number = self._free.pop()
        self._waiters[number] = 1
        return number

    def share(self, number: int) -> None:
        """One more will wait for it."""
        self._check(number)
        self._waiters[number] += 1

    def record(self, number: int, stream: Any) -> None:
        """Mark what is in ``stream`` now."""
        self._check(number)
        self._events[number].record(stream)

    def waited(self, number: int) -> None:
        """One of them will not come to wait any more: he has, or is dead."""
        self._check(number)
        self._waiters[number] -= 1
        if self._waiters[number] == 0:
            del self._waiters[number]
            self._free.append(number)

    def _check(self, number: int) -> None:
        """Raise InvariantViolated where nobody is to wait for it."""
        if number not in self._waiters:
            raise InvariantViolated(f"event {number} is free: nobody is to wait for it")

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
