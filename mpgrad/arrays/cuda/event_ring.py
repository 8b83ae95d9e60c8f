"""A fixed number of interprocess events, by which streams wait for other processes' streams.

Making or opening an event costs a system call and a mapping, and PyTorch found a limit near 22,000.
So each process makes its events once, the others open them once, and they are recorded again and
again. An event is never recorded while a process may still wait for it: that process would wait for
later work, which may itself depend on the waiter.
"""

from __future__ import annotations

from typing import Any

from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.device_board import EVENT, DeviceBoard
from mpgrad.errors import InvariantViolated, ProtocolError

#: PyTorch limits its own to 1000 and synchronises beyond; a worker may have this many in use.
EVENTS = 256


class EventRing:
    """The events of the exporter.

    Args:
        driver: of this process; the events belong to its current device.
        size: the number of events.
    """

    def __init__(self, driver: CudaDriver, size: int = EVENTS) -> None:
        self._driver = driver
        self._events = [driver.event(interprocess=True) for _ in range(size)]
        self._free = list(range(size - 1, -1, -1))
        #: Event -> number of processes that may still wait for it.
        self._waiters: dict[int, int] = {}

    def handles(self) -> list[bytes]:
        """The handles for the importers, in order."""
        return [self._driver.ipc_event_handle(event) for event in self._events]

    def reserve(self) -> int | None:
        """Reserve an event for one waiter. Record it before you tell the waiter its number.

        None if there is no free event: then wait for the stream on the host.
        """
        if not self._free:
            return None
        number = self._free.pop()
        self._waiters[number] = 1
        return number

    def share(self, number: int) -> None:
        """Count one more waiter."""
        self._check(number)
        self._waiters[number] += 1

    def record(self, number: int, stream: Any) -> None:
        """Record the event after the current work of ``stream``."""
        self._check(number)
        self._events[number].record(stream)

    def waited(self, number: int) -> None:
        """Count one waiter less: it has waited, or is dead."""
        self._check(number)
        self._waiters[number] -= 1
        if self._waiters[number] == 0:
            del self._waiters[number]
            self._free.append(number)

    def _check(self, number: int) -> None:
        """Raise InvariantViolated if the event has no waiter."""
        if number not in self._waiters:
            raise InvariantViolated(f"event {number} is free: it has no waiter")

    @property
    def free_count(self) -> int:
        """The number of events that can be recorded now."""
        return len(self._free)


class OpenedEvents:
    """Other processes' events, each opened once.

    Args:
        driver: of this process.
        board: the board with their handles.
    """

    def __init__(self, driver: CudaDriver, board: DeviceBoard) -> None:
        self._driver, self._board = driver, board
        self._opened: dict[tuple[int, int], Any] = {}

    def find(self, arena: int, number: int) -> Any:
        """Event ``number`` of the process whose memory is ``arena``.

        Raises:
            ProtocolError: no process has published it.
        """
        key = (arena, number)
        if key not in self._opened:
            row = self._board.find(EVENT, *key)
            if row is None:
                raise ProtocolError(f"nobody has shown event {number} of memory {arena}")
            with self._driver.device(row.device):
                self._opened[key] = self._driver.open_ipc_event(row.handle)
        return self._opened[key]
