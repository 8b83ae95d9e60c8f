"""SegmentExchange: segments of device memory between the processes of an engine, and the way back.

A segment is shown on the board, and opened by whoever gets a reference into it. An exporter that
wants an idle one back says so beside its row; who has it open closes it when he next looks, and
says that beside a row of his own; then it is freed.
"""

from __future__ import annotations

import itertools
import weakref

from mpgrad.devices.cuda_driver import CudaDriver
from mpgrad.devices.cuda_export import Exporter, SegmentOffer
from mpgrad.devices.cuda_import import Importer
from mpgrad.devices.device_board import MEMORY, OPENED, DeviceBoard, Row
from mpgrad.devices.device_roster import DeviceRoster
from mpgrad.devices.segment_pool import SegmentPlace

#: An offset in a Block of device memory is a segment's number and what follows in it.
SEGMENT_BITS = 40

#: Of a MEMORY or OPENED row's words.
_RETIRING = _IS_OPEN = 0

#: Those of this process: a program may have several engines, and one memory for all of them.
_exchanges: weakref.WeakValueDictionary[str, SegmentExchange] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def packed(place: SegmentPlace) -> int:
    """A place as one number."""
    return place.segment << SEGMENT_BITS | place.offset


def unpacked(offset: int) -> SegmentPlace:
    """The other way round."""
    return SegmentPlace(offset >> SEGMENT_BITS, offset & ((1 << SEGMENT_BITS) - 1))


class SegmentExchange:
    """One process's side of it.

    Args:
        driver: of this process.
        board: of the engine.
        roster: who takes part.
        exporters: this process's memory on each of its GPUs, by the number of its arena.
        reader: what this process is called as a reader.
        importer: what it has open.
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
        #: Segments of this process that others are to close.
        self._retiring: set[tuple[int, int]] = set()
        #: What the others are together, to this process's memory.
        self.name = f"engine {next(_numbers)}"
        _exchanges[self.name] = self

    # ------------------------------------------------------------------ there

    def show(self, arena: int, offer: SegmentOffer) -> None:
        """Let the others find a segment of this process."""
        row = Row(MEMORY, arena, offer.segment, offer.nbytes, offer.device, offer.handle)
        self._board.put(row)

    def open(self, arena: int, segment: int) -> Row | None:
        """Open a segment of another process; its row, None if nobody has shown it."""
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
        """Say that this process has it open."""
        number = packed(SegmentPlace(segment, arena))
        if self._board.find(OPENED, self._reader, number) is None:
            self._board.put(Row(OPENED, self._reader, number))
            self._board.words(OPENED, self._reader, number)[_IS_OPEN] = 1

    # ------------------------------------------------------------------ and back

    def look(self) -> None:
        """Close what is wanted back, and take back what others have closed."""
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
        """Give idle segments back to the GPUs: now, or when those that have them open have
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
        self._roster.refresh()  # who has come meanwhile may have opened them
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
        """All others are dead: what they had open is ours, and theirs is gone.

        Raises:
            CudaError: one of them died while its memory was read.
        """
        self._retiring.clear()
        for exporter in self._exporters.values():
            with self._driver.device(exporter.device):
                exporter.peer_lost(self.name)
        for lost in {name for name, _ in self._importer.opened()}:
            self._importer.exporter_lost(lost)
        self._importer.close_retired()
