"""Backing: gives every live block physical pages, and returns those of idle blocks.

It joins a FreeList (which block) to a Segment (which pages). It does not load NumPy.
"""

from __future__ import annotations

import mmap

from mpgrad.errors import SharedMemoryExhausted
from mpgrad.shm.free_list import SMALLEST_PUNCHED_BYTES, FreeList, FreeListStatistics, size_class
from mpgrad.shm.segment import Segment

_MIB = 1 << 20

#: Fresh pages are made at least this many bytes at a time. Longer steps are not faster per byte,
#: and make single allocations slow.
STEP_BYTES = 1 * _MIB

KEPT_BYTES = 256 * _MIB

#: The number of allocations after which an earlier peak is forgotten (at most twice this).
PEAK_WINDOW = 4096


class Backing:
    """The pages under the blocks of one arena.

    Args:
        map_here: whether this process writes the blocks; then fresh pages are also mapped into it
            at once.
        kept_bytes: free pages that are always worth keeping.

    Attributes:
        free: ``FreeList.free``; the pages stay for the next use.
    """

    def __init__(
        self,
        segment: Segment,
        free_list: FreeList,
        *,
        map_here: bool = True,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._segment, self._free_list, self._kept = segment, free_list, kept_bytes
        self.free = free_list.free
        self._populate = segment.populate if map_here else segment.reserve
        self._reserved = 0
        self._punched: dict[int, int] = {}
        self._peak = self._previous_peak = 0
        self._allocations_left = PEAK_WINDOW

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """``FreeList.allocate``, of a block with pages.

        Raises:
            SharedMemoryExhausted: the limit is reached, or the kernel has no pages left.
        """
        free_list = self._free_list
        offset, generation = free_list.allocate(nbytes)
        if self._punched or offset + size_class(nbytes) > self._reserved:
            self._give_pages(offset, nbytes)
        if free_list.used_bytes > self._peak:
            self._peak = free_list.used_bytes
        self._allocations_left -= 1
        if not self._allocations_left:
            self._begin_window()
        return offset, generation

    def statistics(self) -> FreeListStatistics:
        return self._free_list.statistics()

    def trim(self, idle_limit: int | None = None) -> int:
        """Return idle pages until at most ``idle_limit`` bytes are idle; return the number of
        bytes.

        None keeps the recent peak and ``kept_bytes``, for a repetition of the recent past.
        """
        if idle_limit is None:
            held_limit = min(self._recent_peak() + self._kept, self._free_list.limit_bytes)
            idle_limit = max(0, held_limit - self._free_list.used_bytes)
        given_back = 0
        for start, nbytes in self._free_list.take_idle(idle_limit):
            # Recorded first: to refill a block that still has its pages is harmless.
            self._punched[start] = nbytes
            self._segment.punch(start, nbytes)
            given_back += nbytes
        return given_back

    def _give_pages(self, offset: int, nbytes: int) -> None:
        """Give the new block at ``offset`` the pages that it lacks, or free it."""
        free_list = self._free_list
        size = free_list.size_of(offset)
        try:
            if offset + size > self._reserved:
                self._grow(offset + size)
            if size >= SMALLEST_PUNCHED_BYTES:
                self._refill(offset)
        except BaseException as error:  # also Ctrl-C: a gigabyte takes half a second
            free_list.free(offset)
            if not isinstance(error, SharedMemoryExhausted):
                raise
            raise SharedMemoryExhausted(
                nbytes, free_list.used_bytes, free_list.limit_bytes, self._segment.name
            ) from error

    def _grow(self, end: int) -> None:
        self._trim_overgrown()
        target = -(-max(end, self._reserved + STEP_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        target = min(target, self._segment.nbytes)
        self._populate(self._reserved, target - self._reserved)
        self._reserved = target

    def _refill(self, offset: int) -> None:
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        nbytes = self._punched.get(start)
        if nbytes is None:
            return
        self._trim_overgrown()
        self._populate(start, nbytes)
        del self._punched[start]

    def _trim_overgrown(self) -> None:
        """Trim if there are too many idle pages, or if fresh ones would exceed the limit.

        A training step uses gigabytes and frees them all, so the next need is estimated by the
        recent peak, not by the bytes in use now. The margin of 1/4 makes trims rare.
        """
        held = self._free_list.used_bytes + self._free_list.idle_bytes
        wanted = self._recent_peak() * 5 // 4 + self._kept
        if held > min(wanted, self._free_list.limit_bytes):
            self.trim()

    def _begin_window(self) -> None:
        """Forget the peak before the last one."""
        self._previous_peak, self._peak = self._peak, self._free_list.used_bytes
        self._allocations_left = PEAK_WINDOW
        self._trim_overgrown()

    def _recent_peak(self) -> int:
        return max(self._peak, self._previous_peak)
