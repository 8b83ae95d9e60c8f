"""FreeList: where blocks lie in an arena, and which idle ones should return their pages.

Pure bookkeeping on integers: it never touches memory, so the coordinator, the client and the
simulator run the same code.

Layout: blocks lie side by side from the arena's start, each a 64-byte header followed by its
payload. A block keeps its place and its size class for ever; it is only used again. This is the
segregated free list of Wilson et al., "Dynamic Storage Allocation: A Survey and Critical Review"
(1995), without coalescing: tensor sizes recur from one training step to the next, and an arena is
a sparse mapping, so address space costs nothing and idle pages can be given back.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import NamedTuple

from mpgrad.errors import InvariantViolated, SharedMemoryExhausted

#: Bytes before each payload that belong to its header; also the alignment of every payload.
HEADER_BYTES = 64

#: Idle blocks smaller than this keep their pages: returning them costs more than it saves.
SMALLEST_PUNCHED_BYTES = 64 * 1024


@functools.lru_cache(maxsize=4096)
def size_class(nbytes: int) -> int:
    """The payload bytes that a request of ``nbytes`` gets.

    Eight classes per octave, all multiples of 64: at most 1/8 is wasted above 512 bytes.
    """
    octave = (nbytes - 1).bit_length() - 1
    step = 1 << (octave - 3) if octave > 9 else HEADER_BYTES
    return -(-nbytes // step) * step or step


class FreeListStatistics(NamedTuple):
    """Bytes of size classes, without headers.

    ``idle_bytes`` are free blocks that still hold pages; ``peak_bytes`` is the most that
    ``used_bytes`` ever was.
    """

    used_bytes: int
    idle_bytes: int
    live_blocks: int
    peak_bytes: int
    limit_bytes: int


class FreeList:
    """The blocks of one arena.

    Not thread-safe: the owner serialises calls.

    Args:
        capacity: bytes of address space.
        limit: bytes of live blocks that are allowed at once.
        name: the arena's name in error messages.
        page_bytes: the granularity in which pages can be given back.

    Attributes:
        used_bytes: in live blocks.
        idle_bytes: in free blocks that still hold pages.
        limit_bytes: of live blocks that are allowed at once.
    """

    def __init__(
        self, capacity: int, limit: int, name: str = "arena", page_bytes: int = 4096
    ) -> None:
        self._capacity, self.limit_bytes, self._name = capacity, limit, name
        self._page_bytes = page_bytes
        # A block of two pages' size contains at least one whole page, wherever it starts.
        self._punch_from = max(SMALLEST_PUNCHED_BYTES, 2 * page_bytes)
        self._high_water = 0
        self._generation = 0
        self.used_bytes = self.idle_bytes = self._peak = 0
        self._live: dict[int, int] = {}
        # Per size class the free blocks, least recently freed first. Warm ones hold pages.
        self._warm: dict[int, deque[int]] = {}
        self._cold: dict[int, list[int]] = {}
        # Warm blocks that are large enough to be punched, of all classes, least recently freed
        # first.
        self._aging: dict[int, int] = {}

    @classmethod
    def within(cls, capacity: int, limit: int, name: str, page_bytes: int = 4096) -> FreeList:
        """A list with this limit, or a lower one if the process may not map that much."""
        if capacity < limit:
            limit, name = capacity, f"{name} (kept small by `ulimit -v` or `ulimit -f`)"
        return cls(capacity, limit, name, page_bytes)

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Take a block for ``nbytes``: the one of its class freed last, else fresh space.

        Returns:
            The payload's offset and the generation of this use (1, 2, ...; never the same twice).

        Raises:
            SharedMemoryExhausted: the limit would be passed, or the address space is used up.
        """
        if nbytes < 0:
            raise InvariantViolated(f"{self._name}: a block of {nbytes} bytes was asked for")
        size = size_class(nbytes)
        if self.used_bytes + size > self.limit_bytes:
            raise self._exhausted(nbytes)
        warm = self._warm.get(size)
        if warm:
            offset = warm.pop()
            self.idle_bytes -= size
            if size >= self._punch_from:
                del self._aging[offset]
        else:
            offset, size = self._take_without_pages(nbytes, size)
        self._live[offset] = size
        self.used_bytes += size
        if self.used_bytes > self._peak:
            self._peak = self.used_bytes
        self._generation += 1
        return offset, self._generation

    def free(self, offset: int) -> None:
        """Give the block at ``offset`` back.

        Raises:
            InvariantViolated: no live block starts there (a double free, or a stray offset).
        """
        size = self._live.pop(offset, None)
        if size is None:
            raise InvariantViolated(f"{self._name}: no live block to free at offset {offset}")
        self.used_bytes -= size
        free = self._warm.get(size)
        if free is None:
            free = self._warm[size] = deque()
        free.append(offset)
        self.idle_bytes += size
        if size >= self._punch_from:
            self._aging[offset] = size

    def size_of(self, offset: int) -> int:
        """The payload bytes of the live block at ``offset``.

        Raises:
            InvariantViolated: no live block starts there.
        """
        size = self._live.get(offset)
        if size is None:
            raise InvariantViolated(f"{self._name}: no live block at offset {offset}")
        return size

    def take_idle(self, idle_limit: int) -> list[tuple[int, int]]:
        """Choose idle blocks to be emptied until at most ``idle_limit`` idle bytes hold pages.

        The blocks idle for longest come first, and count as blocks without pages from now on: the
        caller returns the pages, and reserves them again before such a block is used.

        Returns:
            (offset, bytes) of whole pages inside one idle payload each; never a header's page.
        """
        ranges = []
        while self.idle_bytes > idle_limit and self._aging:
            offset, size = next(iter(self._aging.items()))
            del self._aging[offset]
            oldest = self._warm[size].popleft()
            if oldest != offset:
                raise InvariantViolated(f"{self._name}: idle blocks are out of order at {offset}")
            self.idle_bytes -= size
            self._cold.setdefault(size, []).append(offset)
            start = -(-offset // self._page_bytes) * self._page_bytes
            end = (offset + size) // self._page_bytes * self._page_bytes
            ranges.append((start, end - start))
        return ranges

    def statistics(self) -> FreeListStatistics:
        """The current figures."""
        return FreeListStatistics(
            self.used_bytes, self.idle_bytes, len(self._live), self._peak, self.limit_bytes
        )

    def check(self) -> None:
        """Recompute every figure from the blocks themselves.

        Raises:
            InvariantViolated: blocks overlap or leave a gap, or a figure is wrong.
        """
        warm = [(offset, size) for size, free in self._warm.items() for offset in free]
        cold = [(offset, size) for size, free in self._cold.items() for offset in free]
        end = 0
        for offset, size in sorted([*self._live.items(), *warm, *cold]):
            self._expect(offset == end + HEADER_BYTES, f"gap or overlap before offset {offset}")
            self._expect(offset % HEADER_BYTES == 0, f"offset {offset} is not aligned")
            self._expect(size == size_class(size), f"block at {offset} is of no size class")
            end = offset + size
        self._expect(end == self._high_water <= self._capacity, "the high-water mark is wrong")
        self._expect(sum(self._live.values()) == self.used_bytes, "used_bytes is wrong")
        self._expect(
            self.used_bytes <= min(self._peak, self.limit_bytes), "used_bytes passes its bounds"
        )
        self._expect(sum(size for _, size in warm) == self.idle_bytes, "idle_bytes is wrong")
        aging = {offset: size for offset, size in warm if size >= self._punch_from}
        self._expect(aging == self._aging, "the idle blocks' ages do not match the free lists")
        self._expect(len(self._live) <= self._generation, "generations were used twice")

    def _take_without_pages(self, nbytes: int, size: int) -> tuple[int, int]:
        cold = self._cold.get(size)
        if cold:
            return cold.pop(), size
        if self._high_water + HEADER_BYTES + size <= self._capacity:
            offset = self._high_water + HEADER_BYTES
            self._high_water = offset + size
            return offset, size
        return self._take_larger(nbytes, size)

    def _take_larger(self, nbytes: int, size: int) -> tuple[int, int]:
        # Only reached when the whole address space is used. It is the last choice, because a large
        # block that is lent to small requests is missing when its own class needs it.
        larger = [
            candidate
            for pool in (self._warm, self._cold)
            for candidate, free in pool.items()
            if free and candidate > size
        ]
        size = min(larger, default=0)
        if not size or self.used_bytes + size > self.limit_bytes:
            raise self._exhausted(nbytes)
        if self._warm.get(size):
            offset = self._warm[size].pop()
            self.idle_bytes -= size
            self._aging.pop(offset, None)
            return offset, size
        return self._cold[size].pop(), size

    def _exhausted(self, nbytes: int) -> SharedMemoryExhausted:
        return SharedMemoryExhausted(nbytes, self.used_bytes, self.limit_bytes, self._name)

    def _expect(self, condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolated(f"{self._name}: {message}")
