"""DeviceLink: the connection of one process of an engine to the others that use GPUs.

It knows whether each pair's self-test succeeded, and so whether the pair shares memory by CUDA IPC
or through pinned host memory; and how far the others have read. All of this is on the DeviceBoard:
no process asks, every process looks. ``device_roster`` has the processes, ``segment_exchange`` the
segments.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from mpgrad.arrays.cuda import pair_test
from mpgrad.arrays.cuda.cuda_driver import IPC_HANDLE_BYTES, CudaDriver
from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable, SegmentOffer
from mpgrad.arrays.cuda.cuda_import import Importer
from mpgrad.arrays.cuda.device_board import MEMORY, PROCESS, QUESTION, VERDICT, DeviceBoard, Row
from mpgrad.arrays.cuda.device_roster import DeviceRoster
from mpgrad.arrays.cuda.pinned_arena import PinnedArena
from mpgrad.arrays.cuda.read_marks import OthersMarks, ReadMarks
from mpgrad.arrays.cuda.segment_exchange import SegmentExchange, packed, unpacked

#: The word of a PROCESS row that counts bytes copied through the host.
_HOST_WORD = 1

#: A self-test moves 256 KiB; another process may be starting on the same GPU.
_TEST_LIMIT_S = 10.0


class DeviceLink:
    """One process's connection to the other processes of one engine that use GPUs.

    Args:
        driver: of this process.
        board: of the engine.
        exporters: this process's memory on each of its GPUs, by the number of its arena.
        slot: the slot of this worker; None in the client.
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
        #: The name of this process as a reader.
        self._reader = min(exporters, default=0)
        self.importer = Importer(driver, list(exporters.values()), is_bound=is_bound)
        self.roster = roster = DeviceRoster(board)
        self.segments = SegmentExchange(
            driver, board, roster, exporters, self._reader, self.importer
        )
        self._marks: dict[int, ReadMarks] = {}
        self._others = OthersMarks(driver, board)
        self._pinned: dict[int, PinnedArena] = {}
        #: Objects that others may still be reading, oldest first.
        self._left: deque[tuple[dict[int, int], Iterable[Any]]] = deque()
        #: The questions of this process, and the processes that it has answered.
        self._tests: list[pair_test.PairTest] = []
        self._answered: set[int] = set()
        self._shared: dict[int, bool] = {}
        self._seen_rows = self._seen_shortages = -1
        for arena, exporter in exporters.items():
            self._introduce(arena, exporter, slot)
            exporter.relief += [self._wait_for_readers, self._ask_for_memory]
        self.look()

    def look(self) -> None:
        """Answer new processes, and close segments that are wanted back; cheap without news."""
        if self.board.row_count != self._seen_rows:
            self.roster.refresh()
            for arena in [arena for arena in self.roster.alive if arena not in self._exporters]:
                self._answer(arena)
            self._seen_rows = self.board.row_count
            self._shared.clear()
        self.segments.look()
        if self._seen_shortages != self.board.shortages:
            self.give_back()

    # ------------------------------------------------------------------ self-tests

    def _introduce(self, arena: int, exporter: Exporter, slot: int | None) -> None:
        """Publish a question, which others answer when they look."""
        row = self.roster.row(arena, self._reader, exporter.device, slot)
        try:
            with self._driver.device(exporter.device):
                test = pair_test.PairTest(self._driver, exporter, self.segments.name, seed=arena)
        except NotExportable as error:
            self._put_verdict(arena, str(error))
            self.board.put(row)
            return
        self._tests.append(test)
        question = test.question
        self.segments.show(arena, question.offer)
        where, seed = packed(question.place), question.seed
        self.board.put(Row(QUESTION, arena, 0, where, seed, question.event), row)

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
                lambda event: self.roster.wait_here(arena, event, _TEST_LIMIT_S),
            )
        if (str(arena), place.segment) in self.importer.opened():
            self.segments.note_open(arena, place.segment)
        if found.works:
            self._reach(memory.device)
        elif self.roster.is_dead(arena):
            return  # the verdict has the reason
        self._put_verdict(arena, found.reason)

    def _reach(self, device: int) -> None:
        """Let this process's GPUs read that device's memory directly, if they can."""
        for exporter in self._exporters.values():
            if exporter.device != device and self._driver.can_access_peer(exporter.device, device):
                with self._driver.device(exporter.device):
                    self._driver.enable_peer_access(device)

    def _put_verdict(self, arena: int, reason: str) -> None:
        text = reason.encode()[:IPC_HANDLE_BYTES]
        self.board.put(Row(VERDICT, self._reader, arena, not reason, 0, text))

    def is_shared(self, arena: int) -> bool:
        """Whether others can open that memory, and its process's events.

        This requires one successful test and no failed one: a process that has not looked yet is
        assumed to be like the others.
        """
        if self.board.row_count != self._seen_rows:
            self.look()
        if arena not in self._shared:
            verdicts = [
                verdict.nbytes
                for reader in self.roster.readers
                if (verdict := self.board.find(VERDICT, reader, arena)) is not None
            ]
            self._shared[arena] = bool(verdicts) and all(verdicts)
        return self._shared[arena]

    def failures(self) -> list[str]:
        """The pairs that cannot share memory, with reasons."""
        return [
            f"memory {row.number} cannot be read by the process of memory {row.arena}: "
            + row.handle.rstrip(b"\0").decode(errors="replace")
            for row in self.board.rows(VERDICT)
            if not row.nbytes
        ]

    # ------------------------------------------------------------------ reads

    def mark_reads(self, arena: int) -> None:
        """Record that all reads of others' memory are in the current stream, on the GPU of
        ``arena``; if others cannot wait for that, wait here."""
        if not self.is_shared(arena):
            self._driver.current_stream().synchronize()
            return
        if arena not in self._marks:
            row = self.roster.process(arena)
            self._marks[arena] = ReadMarks(self._driver, self.board, row)
        self._marks[arena].record()

    def leave(self, things: Iterable[Any], *, is_read: bool = False) -> None:
        """Keep ``things`` until the others' GPUs have done their work so far.

        Then call their method ``free``, if they have one.

        Args:
            things: arrays, and copies on the host.
            is_read: the current stream waits for all reads of them.
        """
        if is_read:
            _free(things)
            return
        self.roster.refresh()
        alive = self.roster.alive
        others = [row for arena, row in alive.items() if arena not in self._exporters]
        self._left.append((self._others.now(others), things))

    def reclaim(self, *, is_urgent: bool = False) -> None:
        """Release what the others have read; if it ``is_urgent``, wait for them."""
        while self._left:
            marks, things = self._left[0]
            if is_urgent:
                self._others.wait(marks, self.roster)
            elif not self._others.are_passed(marks, self.roster):
                return
            self._left.popleft()
            _free(things)

    # ------------------------------------------------------------------ shortage of memory

    def give_back(self) -> None:
        """Return idle segments to the GPUs; segments that others have open follow when these close
        them, at their next look."""
        self._seen_shortages = self.board.shortages
        self.reclaim()
        self.segments.give_back()

    def _wait_for_readers(self) -> None:
        self.reclaim(is_urgent=True)

    def _ask_for_memory(self) -> None:
        """Some memory comes back now, some after others have seen the request."""
        self.board.note_shortage()
        self.give_back()

    # ------------------------------------------------------------------ through the host

    def pinned(self, arena: int) -> PinnedArena:
        """The range of host memory for copies of that memory.

        Raises:
            ExporterLost: its process died, and another one has its range.
        """
        seat = self.roster.seat(arena)
        if seat not in self._pinned:
            is_owner = arena in self._exporters
            self._pinned[seat] = PinnedArena(
                self._driver, self.board.segment, *self.board.stretch(seat), is_owner=is_owner
            )
        return self._pinned[seat]

    def count_host_bytes(self, arena: int, nbytes: int) -> None:
        """Count bytes of this process's memory that were copied through the host."""
        row = self.roster.process(arena)
        self.board.words(PROCESS, arena, row.number)[_HOST_WORD] += nbytes

    def host_bytes(self) -> int:
        """The count of all processes that have existed."""
        return sum(
            int(self.board.words(PROCESS, row.arena, row.number)[_HOST_WORD])
            for row in self.board.rows(PROCESS)
        )

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Release everything, after all other processes have died."""
        self._left.clear()
        for test in self._tests:
            test.close()
        for pinned in self._pinned.values():
            pinned.close()
        self._pinned.clear()
        self.roster.close()
        for exporter in self._exporters.values():
            for relief in (self._wait_for_readers, self._ask_for_memory):
                exporter.relief.remove(relief)
        # If one of them was killed while its memory was read, that error is raised here.
        with contextlib.suppress(*self._driver.errors):
            self.segments.close()


def _free(things: Iterable[Any]) -> None:
    for thing in things:
        if hasattr(thing, "free"):
            thing.free()
