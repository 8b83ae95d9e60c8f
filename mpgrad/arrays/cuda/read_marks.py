"""ReadMarks: how a process learns, without waiting, that another one's GPU has read its memory.

A reader's reply is sent before its kernels have run, and with the reply the owner of the memory
gets its blocks back. So each reader records an event after its reads, and publishes the number of
these marks. When a block comes back, the owner notes everybody's number, and uses the block again
once those marks have been passed. (PyTorch does the same with ``record_stream``.)
"""

from __future__ import annotations

import contextlib
from typing import Any

from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.device_board import EVENT, PROCESS, DeviceBoard, Row
from mpgrad.arrays.cuda.device_roster import DeviceRoster, ExporterLost
from mpgrad.arrays.cuda.event_ring import EVENTS, OpenedEvents

#: The number of mark events of each process; their rows follow those of its EventRing.
MARKS = 64
_FIRST_MARK = EVENTS

#: The word of a PROCESS row that counts the marks.
MARKS_WORD = 0


class ReadMarks:
    """The marks of this process on one GPU, which is current.

    Args:
        driver: of this process.
        board: the board on which others find them.
        row: the PROCESS row of that memory.
    """

    def __init__(self, driver: CudaDriver, board: DeviceBoard, row: Row) -> None:
        self._driver, self._board, self._row = driver, board, row
        self._words = board.words(PROCESS, row.arena, row.number)
        self._events: list[Any] = []
        self._count = 0

    def record(self) -> None:
        """All work that reads others' memory is in the current stream."""
        if not self._events:
            self._make_events()
        event = self._events[self._count % MARKS]
        if self._count >= MARKS and not event.done:
            event.synchronize()  # for others, the next number means that this mark is passed
        event.record(self._driver.current_stream())
        self._count += 1
        self._words[MARKS_WORD] = self._count

    def _make_events(self) -> None:
        self._events = [self._driver.event(interprocess=True) for _ in range(MARKS)]
        self._board.put(
            *(
                Row(EVENT, self._row.arena, _FIRST_MARK + number, 0, self._row.device, handle)
                for number, handle in enumerate(map(self._driver.ipc_event_handle, self._events))
            )
        )


class OthersMarks:
    """The marks of the other processes of an engine.

    Args:
        driver: of this process.
        board: the board with the marks.
    """

    def __init__(self, driver: CudaDriver, board: DeviceBoard) -> None:
        self._driver, self._board = driver, board
        self._events = OpenedEvents(driver, board)
        #: By memory: all marks up to this one are passed.
        self._passed: dict[int, int] = {}

    def now(self, rows: list[Row]) -> dict[int, int]:
        """The number of marks of each of these processes, by the number of its memory."""
        counts = {row.arena: self._count(row) for row in rows}
        return {arena: count for arena, count in counts.items() if count}

    def are_passed(self, marks: dict[int, int], roster: DeviceRoster) -> bool:
        """Whether the GPUs have passed all of ``marks``; dead processes have passed theirs."""
        return all(
            count <= self._passed.get(arena, 0) or self._is_passed(roster.alive[arena], count)
            for arena, count in marks.items()
            if arena in roster.alive
        )

    def wait(self, marks: dict[int, int], roster: DeviceRoster) -> None:
        """Block until the GPUs have passed all of ``marks``."""
        for arena, count in marks.items():
            with contextlib.suppress(ExporterLost, *self._driver.errors):
                if not self._is_passed(roster.process(arena), count):
                    roster.wait_here(arena, self._event(arena, count))

    def _is_passed(self, row: Row, count: int) -> bool:
        # A mark is recorded again only after it was passed; if that happens right now, `done` is
        # that of the later one, and the next check shows it.
        is_passed = self._count(row) >= count + MARKS or self._is_done(row.arena, count)
        if is_passed:
            self._passed[row.arena] = max(count, self._passed.get(row.arena, 0))
        return is_passed

    def _is_done(self, arena: int, count: int) -> bool:
        try:
            return bool(self._event(arena, count).done)
        except self._driver.errors:
            return True  # that process has just died, and its kernels with it

    def _event(self, arena: int, count: int) -> Any:
        return self._events.find(arena, _FIRST_MARK + (count - 1) % MARKS)

    def _count(self, row: Row) -> int:
        return int(self._board.words(PROCESS, row.arena, row.number)[MARKS_WORD])
