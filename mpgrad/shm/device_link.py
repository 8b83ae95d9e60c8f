"""DeviceLink: what one process of an engine knows of the others that use GPUs, and tells them.

Who there is; whether each pair's self-test went well, and so what may be shared by CUDA IPC and
what must go through pinned host memory; how far the others have read; and which segments are
wanted back. All of it stands on the DeviceBoard; nobody is asked, everybody looks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from mpgrad.errors import MpgradError
from mpgrad.shm import pair_test
from mpgrad.shm.cuda_driver import IPC_HANDLE_BYTES, CudaDriver
from mpgrad.shm.cuda_export import Exporter, NotExportable, SegmentOffer
from mpgrad.shm.cuda_import import Importer
from mpgrad.shm.device_board import (
    MEMORY,
    OPENED,
    PROCESS,
    QUESTION,
    VERDICT,
    DeviceBoard,
    Row,
)
from mpgrad.shm.pinned_arena import PinnedArena
from mpgrad.shm.read_marks import OthersMarks, ReadMarks
from mpgrad.shm.segment_pool import Place

#: An offset in a Block of device memory is a segment's number and what follows in it.
SEGMENT_BITS = 40

#: PROCESS rows have the number of the worker's slot; the client's GPUs come behind all slots.
_CLIENT_SLOTS = 1 << 32
#: Of a PROCESS row's words the one that counts bytes that went through the host.
_HOST_WORD = 1
#: Of a MEMORY or OPENED row's words.
_RETIRING = _IS_OPEN = 0

#: How long to wait for an event before looking whether its process is dead.
_LOOK_AGAIN_S = 50e-6

#: A self-test moves 256 KiB; another process may be starting on the same GPU.
_TEST_LIMIT_S = 10.0

#: Those of this process: a program may have several engines, and one memory for all of them.
_links: weakref.WeakValueDictionary[str, DeviceLink] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def packed(place: Place) -> int:
    """A place as one number."""
    return place.segment << SEGMENT_BITS | place.offset


def unpacked(offset: int) -> Place:
    """The other way round."""
    return Place(offset >> SEGMENT_BITS, offset & ((1 << SEGMENT_BITS) - 1))


class ExporterLost(MpgradError):
    """The process whose memory is to be read is dead."""


class DeviceLink:
    """One process's ties to the other processes of one engine that use GPUs.

    Args:
        driver: of this process.
        board: of the engine.
        exporters: this process's memory on each of its GPUs, by the number of its arena.
        slot: of this worker; None in the client.
        is_bound: whether one thread alone uses it.
    """

    def __init__(
        self,
        driver: CudaDriver,
        board: DeviceBoard,
        exporters: dict[int, Exporter],
        slot: int | None = None,
        *,
        is_bound: bool = True,
    ) -> None:
        self._driver, self.board, self._exporters = driver, board, exporters
        #: What this process is called as a reader.
        self._reader = min(exporters, default=0)
        self.importer = Importer(driver, list(exporters.values()), is_bound=is_bound)
        self._marks: dict[int, ReadMarks] = {}
        self._others = OthersMarks(driver, board)
        self._pinned: dict[int, PinnedArena] = {}
        #: What others may still be reading, oldest first.
        self._left: deque[tuple[dict[int, int], Any]] = deque()
        self._tests: list[Any] = []
        self._lives: dict[int, int] = {}
        self._answered: set[int] = set()
        self._seen_rows = self._seen_shortages = -1
        self._alive: dict[int, Row] = {}
        self._shared: dict[int, bool] = {}
        #: Segments of this process that others are to close.
        self._retiring: set[tuple[int, int]] = set()
        #: What the others are together, to this process's memory.
        self.name = f"engine {next(_numbers)}"
        _links[self.name] = self
        for arena, exporter in exporters.items():
            self._introduce(arena, exporter, slot)
            exporter.relief += [self._wait_for_readers, self._ask_for_memory]
        self.look()

    # ------------------------------------------------------------------ who there is

    def _introduce(self, arena: int, exporter: Exporter, slot: int | None) -> None:
        """Leave a question that others answer when they look."""
        number = _CLIENT_SLOTS + exporter.device if slot is None else slot
        pid = str(os.getpid()).encode()
        row = Row(PROCESS, arena, number, self._reader, exporter.device, pid)
        try:
            with self._driver.device(exporter.device):
                test = pair_test.PairTest(self._driver, exporter, self.name, seed=arena)
            question = test.question
            self._tests.append(test)
            self.show(arena, question.offer)
            where, seed = packed(question.place), question.seed
            self.board.put(Row(QUESTION, arena, 0, where, seed, question.event), row)
        except NotExportable as error:
            self._put_verdict(arena, str(error))
            self.board.put(row)

    def look(self) -> None:
        """Answer those that have come, and close what is wanted back; cheap if nothing is new."""
        if self.board.row_count != self._seen_rows:
            self._seen_rows = self.board.row_count
            self._find_others()
            for arena in [arena for arena in self._alive if arena not in self._exporters]:
                self._answer(arena)
            self._seen_rows = self.board.row_count
            self._shared.clear()
        self._close_retired()
        if self._seen_shortages != self.board.shortages:
            self.give_back()
        elif self._retiring:
            self._free_closed()

    def _find_others(self) -> None:
        rows = self.board.rows(PROCESS)
        # A slot gets a new process only when the one before is dead.
        latest = {row.number: row.arena for row in rows}
        self._alive = {row.arena: row for row in rows if latest[row.number] == row.arena}
        for arena in [arena for arena in self._lives if arena not in self._alive]:
            os.close(self._lives.pop(arena))

    def _process(self, arena: int) -> Row:
        if arena not in self._alive:
            self._find_others()
        if arena not in self._alive:
            raise ExporterLost(f"the process of memory {arena} was replaced")
        return self._alive[arena]

    def _answer(self, arena: int) -> None:
        question = self.board.find(QUESTION, arena, 0)
        if arena in self._answered or question is None:
            return
        self._answered.add(arena)
        place = unpacked(question.nbytes)
        memory = self.board.find(MEMORY, arena, place.segment)
        if memory is None:
            return
        offer = SegmentOffer(str(arena), *memory[2:])
        asked = pair_test.Question(offer, place, question.handle, question.device)
        with self._driver.device(memory.device):
            found = pair_test.answer(
                self._driver,
                self.importer,
                str(self._reader),
                asked,
                lambda event: self.wait_here(arena, event, _TEST_LIMIT_S),
            )
        if (str(arena), place.segment) in self.importer.opened():
            self._note_open(arena, place.segment)
        if found.works:
            self._reach(memory.device)
        elif self._is_dead(arena):
            return  # which is why
        self._put_verdict(arena, found.reason)

    def _reach(self, device: int) -> None:
        """Let this process's GPUs read that one's memory directly, where they can."""
        for exporter in self._exporters.values():
            if exporter.device != device and self._driver.can_access_peer(exporter.device, device):
                with self._driver.device(exporter.device):
                    self._driver.enable_peer_access(device)

    def _is_dead(self, arena: int) -> bool:
        try:
            return bool(select.select([self._life_of(arena)], [], [], 0)[0])
        except ExporterLost:
            return True

    def _put_verdict(self, arena: int, reason: str) -> None:
        text = reason.encode()[:IPC_HANDLE_BYTES]
        self.board.put(Row(VERDICT, self._reader, arena, not reason, 0, text))

    def is_shared(self, arena: int) -> bool:
        """Whether others can open that memory, and its process's events.

        One test at least has gone well, and none badly: who has not looked yet is a process like
        those that have.
        """
        if self.board.row_count != self._seen_rows:
            self.look()
        if arena not in self._shared:
            verdicts = [
                verdict.nbytes
                for reader in {row.nbytes for row in self._alive.values()}
                if (verdict := self.board.find(VERDICT, reader, arena)) is not None
            ]
            self._shared[arena] = bool(verdicts) and all(verdicts)
        return self._shared[arena]

    def failures(self) -> list[str]:
        """Which pairs cannot share memory, and why."""
        return [
            f"memory {row.number} cannot be read by the process of memory {row.arena}: "
            + row.handle.rstrip(b"\0").decode(errors="replace")
            for row in self.board.rows(VERDICT)
            if not row.nbytes
        ]

    # ------------------------------------------------------------------ segments

    def show(self, arena: int, offer: SegmentOffer) -> None:
        """Let the others find a segment of this process."""
        row = Row(MEMORY, arena, offer.segment, offer.nbytes, offer.device, offer.handle)
        self.board.put(row)

    def open(self, arena: int, segment: int) -> Row | None:
        """Open a segment of another process; its row, None if nobody has shown it."""
        row = self.board.find(MEMORY, arena, segment)
        if row is not None:
            self.importer.open(SegmentOffer(str(arena), *row[2:]))
            self._note_open(arena, segment)
        return row

    def _note_open(self, arena: int, segment: int) -> None:
        number = packed(Place(segment, arena))
        if self.board.find(OPENED, self._reader, number) is None:
            self.board.put(Row(OPENED, self._reader, number))
            self.board.words(OPENED, self._reader, number)[_IS_OPEN] = 1

    def _close_retired(self) -> None:
        for exporter, segment in self.importer.opened():
            arena = int(exporter)
            if arena not in self._alive:
                self.importer.exporter_lost(exporter)
            elif self.board.words(MEMORY, arena, segment)[_RETIRING]:
                self.importer.retire(exporter, segment)
        for exporter, segment in self.importer.close_retired():
            number = packed(Place(segment, int(exporter)))
            self.board.words(OPENED, self._reader, number)[_IS_OPEN] = 0

    def give_back(self) -> None:
        """Give idle segments back to the GPUs, those that others have open when they have closed
        them: when they next look."""
        self._seen_shortages = self.board.shortages
        self.reclaim()
        for arena, exporter in self._exporters.items():
            with self._driver.device(exporter.device):
                for segment, engines in exporter.retire_idle():
                    for engine in engines:
                        _links[engine].retire(arena, segment)
        self._free_closed()

    def _wait_for_readers(self) -> None:
        self.reclaim(is_urgent=True)

    def _ask_for_memory(self) -> None:
        """Some comes back now, some when others have heard of it."""
        self.board.note_shortage()
        self.give_back()

    def retire(self, arena: int, segment: int) -> None:
        """Ask the others to close a segment of this process."""
        self.board.words(MEMORY, arena, segment)[_RETIRING] = 1
        self._retiring.add((arena, segment))

    def _free_closed(self) -> None:
        self._find_others()  # who has come meanwhile may have opened them
        for arena, segment in sorted(self._retiring):
            if not self._is_open_elsewhere(arena, segment):
                self._retiring.remove((arena, segment))
                exporter = self._exporters[arena]
                with self._driver.device(exporter.device):
                    exporter.closed(segment, self.name)

    def _is_open_elsewhere(self, arena: int, segment: int) -> bool:
        number = packed(Place(segment, arena))
        readers = {row.nbytes for row in self._alive.values()} - {self._reader}
        return any(
            self.board.words(OPENED, reader, number)[_IS_OPEN]
            for reader in readers
            if self.board.find(OPENED, reader, number) is not None
        )

    # ------------------------------------------------------------------ who has read what

    def mark_reads(self, arena: int) -> None:
        """What was read of others' memory is in the current stream, which lies on the GPU of
        ``arena``; where others cannot wait for that, wait here."""
        if not self.is_shared(arena):
            self._driver.current_stream().synchronize()
            return
        if arena not in self._marks:
            self._marks[arena] = ReadMarks(self._driver, self.board, self._alive[arena])
        self._marks[arena].record()

    def leave(self, things: Iterable[Any], *, is_read: bool = False) -> None:
        """Keep ``things`` until the others' GPUs have done what they have been asked for by now.

        What has a method ``free`` gets a call of it then.

        Args:
            things: arrays, and copies on the host.
            is_read: the current stream waits for all that was read of them.
        """
        if is_read:
            _free(things)
            return
        others = [row for arena, row in self._alive.items() if arena not in self._exporters]
        self._left.append((self._others.now(others), things))

    def reclaim(self, *, is_urgent: bool = False) -> None:
        """Let go of what the others have read; if it ``is_urgent``, wait for them."""
        while self._left:
            marks, things = self._left[0]
            if not self._others.are_passed(marks, self._alive):
                if not is_urgent:
                    return
                self._others.wait(marks, self._alive)
            self._left.popleft()
            _free(things)

    def wait_here(self, arena: int, event: Any, limit_s: float = math.inf) -> None:
        """Block this thread until an event of another process is done.

        A stream that waits for an event of a process that dies may wait for ever, or break its
        context for good. A worker can be replaced then; the client must not come into that.

        Raises:
            ExporterLost: that process is dead.
            TimeoutError: it lives, and has not got there within ``limit_s``.
        """
        deadline = time.monotonic() + limit_s
        while not event.done:
            if time.monotonic() > deadline:
                raise TimeoutError(f"its event was not done within {limit_s} s")
            ended, _, _ = select.select([self._life_of(arena)], [], [], _LOOK_AGAIN_S)
            if ended:
                raise ExporterLost(f"the process of memory {arena} is dead")

    def _life_of(self, arena: int) -> int:
        """A pidfd, readable once the process is dead."""
        if arena not in self._lives:
            pid = int(self._process(arena).handle.rstrip(b"\0"))
            try:
                self._lives[arena] = os.pidfd_open(pid)
            except ProcessLookupError:
                raise ExporterLost(f"process {pid} is dead") from None
        return self._lives[arena]

    # ------------------------------------------------------------------ through the host

    def pinned(self, arena: int) -> PinnedArena:
        """The stretch of host memory through which that memory's contents go.

        Raises:
            ExporterLost: its process is dead, and another one has its stretch.
        """
        number = self._process(arena).number
        seat = 0 if number >= _CLIENT_SLOTS else number + 1
        if seat not in self._pinned:
            is_owner = arena in self._exporters
            self._pinned[seat] = PinnedArena(
                self._driver, self.board.segment, *self.board.stretch(seat), is_owner=is_owner
            )
        return self._pinned[seat]

    def count_host_bytes(self, arena: int, nbytes: int) -> None:
        """So many bytes of this process's memory went through the host."""
        row = self._alive[arena]
        self.board.words(PROCESS, arena, row.number)[_HOST_WORD] += nbytes

    def host_bytes(self) -> int:
        """Of all processes that there have been."""
        return sum(
            int(self.board.words(PROCESS, row.arena, row.number)[_HOST_WORD])
            for row in self.board.rows(PROCESS)
        )

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """All others are dead."""
        self._left.clear()
        for pinned in self._pinned.values():
            pinned.close()
        self._pinned.clear()
        for descriptor in self._lives.values():
            os.close(descriptor)
        self._lives.clear()
        self._alive.clear()
        self._retiring.clear()
        for exporter in self._exporters.values():
            for relief in (self._wait_for_readers, self._ask_for_memory):
                exporter.relief.remove(relief)
            with self._driver.device(exporter.device):
                exporter.peer_lost(self.name)
        for exporter_name in {name for name, _ in self.importer.opened()}:
            self.importer.exporter_lost(exporter_name)
        # If one of them was killed while its memory was read, that error comes back here.
        with contextlib.suppress(*self._driver.errors):
            self.importer.close_retired()


def _free(things: Iterable[Any]) -> None:
    for thing in things:
        if hasattr(thing, "free"):
            thing.free()
