"""SegmentExchange: shares segments of device memory among an engine's processes, and frees them.

A segment is published on the board; a process that gets a reference into it opens it. An exporter
that wants to free an idle segment sets a word beside its row. Each process that has it open closes
it at its next look and sets a word beside a row of its own; then the segment is freed.
"""

from __future__ import annotations

import itertools
import weakref

from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.cuda_export import Exporter, SegmentOffer
from mpgrad.arrays.cuda.cuda_import import Importer
from mpgrad.arrays.cuda.device_board import MEMORY, OPENED, DeviceBoard, Row
from mpgrad.arrays.cuda.device_roster import DeviceRoster
from mpgrad.arrays.cuda.segment_pool import SegmentPlace

#: The offset of a Block of device memory combines a segment's number with an offset in it.
SEGMENT_BITS = 40

#: Words of a MEMORY or OPENED row.
_RETIRING = _IS_OPEN = 0

#: The exchanges of this process: a program may have several engines with one memory.
_exchanges: weakref.WeakValueDictionary[str, SegmentExchange] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def packed(place: SegmentPlace) -> int:
    """A place as one number."""
    return place.segment << SEGMENT_BITS | place.offset


def unpacked(offset: int) -> SegmentPlace:
    """The inverse of :func:`packed`."""
    return SegmentPlace(offset >> SEGMENT_BITS, offset & ((1 << SEGMENT_BITS) - 1))


class SegmentExchange:
    """One process's part of the exchange.

    Args:
        driver: of this process.
        board: of the engine.
        roster: the processes that take part.
        exporters: this process's memory on each of its GPUs, by the number of its arena.
        reader: the name of this process as a reader.
        importer: the segments that it has open.
    """

    def __init__(
        self,
        driver: CudaDriver,
        board: DeviceBoard,
        roster: DeviceRoster,
        exporters: dict[int, Exporter],
        reader: int,
        importer: Importer,
    ) -> None:
        self._driver, self._board, self._roster = driver, board, roster
        self._exporters, self._reader, self._importer = exporters, reader, importer
        #: Segments of others that are open here.
        self._open: dict[tuple[int, int], Row] = {}
        #: Segments of this process that others must close.
        self._retiring: set[tuple[int, int]] = set()
        #: The name of all other processes together for this process's exporters.
        self.name = f"engine {next(_numbers)}"
        _exchanges[self.name] = self

    # ------------------------------------------------------------------ opening

    def show(self, arena: int, offer: SegmentOffer) -> None:
        """Publish a segment of this process."""
        row = Row(MEMORY, arena, offer.segment, offer.nbytes, offer.device, offer.handle)
        self._board.put(row)

    def open(self, arena: int, segment: int) -> Row | None:
        """Open a segment of another process; return its row, or None if it is not published."""
        known = self._open.get((arena, segment))
        if known is not None:
            return known
        row = self._board.find(MEMORY, arena, segment)
        if row is not None:
            self._importer.open(SegmentOffer(str(arena), *row[2:]))
            self.note_open(arena, segment)
            self._open[arena, segment] = row
        return row

    def note_open(self, arena: int, segment: int) -> None:
        """Publish that this process has it open."""
        number = packed(SegmentPlace(segment, arena))
        if self._board.find(OPENED, self._reader, number) is None:
            self._board.put(Row(OPENED, self._reader, number))
            self._board.words(OPENED, self._reader, number)[_IS_OPEN] = 1

    # ------------------------------------------------------------------ closing

    def look(self) -> None:
        """Close segments that are wanted back, and free those that others have closed."""
        for exporter, segment in self._importer.opened():
            arena = int(exporter)
            if arena not in self._roster.alive:
                self._importer.exporter_lost(exporter)
            elif self._board.words(MEMORY, arena, segment)[_RETIRING]:
                self._importer.retire(exporter, segment)
        for exporter, segment in self._importer.close_retired():
            self._open.pop((int(exporter), segment), None)
            number = packed(SegmentPlace(segment, int(exporter)))
            self._board.words(OPENED, self._reader, number)[_IS_OPEN] = 0
        if self._retiring:
            self._free_closed()

    def give_back(self) -> None:
        """Return idle segments to the GPUs: now, or after the processes that have them open have
        closed them."""
        for arena, exporter in self._exporters.items():
            with self._driver.device(exporter.device):
                for segment, engines in exporter.retire_idle():
                    for engine in engines:
                        _exchanges[engine].retire(arena, segment)
        self._free_closed()

    def retire(self, arena: int, segment: int) -> None:
        """Ask the others to close a segment of this process."""
        self._board.words(MEMORY, arena, segment)[_RETIRING] = 1
        self._retiring.add((arena, segment))

    def _free_closed(self) -> None:
        self._roster.refresh()  # processes that came in the meantime may have opened them
        for arena, segment in sorted(self._retiring):
            if not self._is_open_elsewhere(arena, segment):
                self._retiring.remove((arena, segment))
                exporter = self._exporters[arena]
                with self._driver.device(exporter.device):
                    exporter.closed(segment, self.name)

    def _is_open_elsewhere(self, arena: int, segment: int) -> bool:
        number = packed(SegmentPlace(segment, arena))
        return any(
            self._board.words(OPENED, reader, number)[_IS_OPEN]
            for reader in self._roster.readers - {self._reader}
            if self._board.find(OPENED, reader, number) is not None
        )

    def close(self) -> None:
        """Free everything, after all other processes have died.

        Raises:
            CudaError: a process died while its memory was read.
        """
        self._retiring.clear()
        for exporter in self._exporters.values():
            with self._driver.device(exporter.device):
                exporter.peer_lost(self.name)
        for lost in {name for name, _ in self._importer.opened()}:
            self._importer.exporter_lost(lost)
        self._importer.close_retired()
