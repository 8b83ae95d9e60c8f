"""SegmentPool: decides where arrays lie in the segments of a device, on integers alone.

Memory of a GPU is expensive and is allocated in large segments, each of which other processes open
once. Blocks are cut from the smallest free range that is large enough, and merged again when they
are freed. The sizes are those of PyTorch's CUDACachingAllocator. Blocks of different streams never
share a segment: the same stream may use a freed block again without waiting.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from mpgrad.errors import InvariantViolated

_MIB = 1 << 20

#: CUDA's own alignment of an allocation, and the granularity of blocks.
ALIGNMENT_BYTES = 512

#: CUDA may serve smaller requests from memory that also contains other allocations; opening such
#: memory would reveal those to another process.
SEGMENT_GRANULARITY_BYTES = 2 * _MIB

#: Requests up to this size share segments of the smallest size ...
SMALL_BYTES = 1 * _MIB
#: ... those up to this size share segments of the next size; larger ones have their own.
MEDIUM_BYTES = 10 * _MIB
MEDIUM_SEGMENT_BYTES = 20 * _MIB


class SegmentPlace(NamedTuple):
    """The place of a block: the number of a segment, and bytes from its start."""

    segment: int
    offset: int


def rounded(nbytes: int, step: int) -> int:
    """``nbytes`` up to the next multiple of ``step``, at least one."""
    return max(1, -(-nbytes // step)) * step


def segment_bytes(nbytes: int) -> int:
    """The size of a new segment for a block of ``nbytes`` without a place."""
    if nbytes <= SMALL_BYTES:
        return SEGMENT_GRANULARITY_BYTES
    if nbytes <= MEDIUM_BYTES:
        return MEDIUM_SEGMENT_BYTES
    return rounded(nbytes, SEGMENT_GRANULARITY_BYTES)


class _Block:
    """One range of a segment, and its neighbours."""

    __slots__ = ("after", "before", "is_free", "nbytes", "place")

    def __init__(self, place: SegmentPlace, nbytes: int) -> None:
        self.place, self.nbytes, self.is_free = place, nbytes, True
        self.before: _Block | None = None
        self.after: _Block | None = None


class _Segment(NamedTuple):
    nbytes: int
    #: The stream, and whether it is for small blocks: free ranges are grouped by these.
    kind: tuple[int, bool]


class SegmentPool:
    """The blocks in the segments of one device."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        #: Every range, used or free, by place.
        self._blocks: dict[SegmentPlace, _Block] = {}
        #: Free ranges as (bytes, place), sorted.
        self._free: dict[tuple[int, bool], list[tuple[int, SegmentPlace]]] = {}
        self.used_bytes = 0

    def add_segment(self, segment: int, nbytes: int, stream: int, for_bytes: int) -> None:
        """A new segment of ``nbytes`` for blocks like one of ``for_bytes`` on ``stream``."""
        if segment in self._segments:
            raise InvariantViolated(f"segment {segment} was added twice")
        self._segments[segment] = _Segment(nbytes, (stream, for_bytes <= SMALL_BYTES))
        self._put(_Block(SegmentPlace(segment, 0), nbytes))

    def allocate(self, nbytes: int, stream: int) -> SegmentPlace | None:
        """The smallest sufficient free range of that stream; None if a new segment is needed."""
        wanted = rounded(nbytes, ALIGNMENT_BYTES)
        is_small = nbytes <= SMALL_BYTES
        free = self._free.get((stream, is_small), [])
        at = bisect.bisect_left(free, (wanted, SegmentPlace(-1, -1)))
        if at == len(free):
            return None
        _, place = free.pop(at)
        block = self._blocks[place]
        rest = block.nbytes - wanted
        if rest >= (ALIGNMENT_BYTES if is_small else SMALL_BYTES):
            self._cut(block, wanted)
        block.is_free = False
        self.used_bytes += block.nbytes
        return place

    def free(self, place: SegmentPlace) -> None:
        """Free a block; it is merged with free neighbours.

        Raises:
            InvariantViolated: no used block starts there.
        """
        block = self._blocks.get(place)
        if block is None or block.is_free:
            raise InvariantViolated(f"no used block to free at {place}")
        self.used_bytes -= block.nbytes
        before, after = block.before, block.after
        if after is not None and after.is_free:
            self._merge(block, after)
        if before is not None and before.is_free:
            self._merge(before, block)
            block = before
        self._put(block)

    def idle_segments(self) -> list[int]:
        """The segments without a used block."""
        return [
            segment
            for segment, (nbytes, _) in self._segments.items()
            if (block := self._blocks[SegmentPlace(segment, 0)]).is_free and block.nbytes == nbytes
        ]

    def remove_segment(self, segment: int) -> None:
        """Remove an idle segment.

        Raises:
            InvariantViolated: one of its blocks is in use.
        """
        if segment not in self.idle_segments():
            raise InvariantViolated(f"segment {segment} is in use and cannot be removed")
        block = self._blocks.pop(SegmentPlace(segment, 0))
        self._take(block)
        del self._segments[segment]

    @property
    def held_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.nbytes for segment in self._segments.values())

    def check(self) -> None:
        """Recompute the tables from the blocks.

        Raises:
            InvariantViolated: blocks overlap, leave a gap, or are listed wrongly.
        """
        used = 0
        free: dict[tuple[int, bool], list[tuple[int, SegmentPlace]]] = {}
        for segment, (nbytes, kind) in self._segments.items():
            end = 0
            for block in self._chain(segment):
                if block.place.offset != end:
                    raise InvariantViolated(f"gap or overlap before {block.place}")
                end += block.nbytes
                if block.is_free:
                    free.setdefault(kind, []).append((block.nbytes, block.place))
                    if block.after is not None and block.after.is_free:
                        raise InvariantViolated(f"two free neighbours at {block.place}")
                else:
                    used += block.nbytes
            if end != nbytes:
                raise InvariantViolated(f"the blocks of segment {segment} fill {end} of {nbytes}")
        listed = {kind: entries for kind, entries in self._free.items() if entries}
        if {kind: sorted(entries) for kind, entries in free.items()} != listed:
            raise InvariantViolated("the free lists do not match the free ranges")
        if used != self.used_bytes:
            raise InvariantViolated("used_bytes is wrong")

    def _chain(self, segment: int) -> Iterator[_Block]:
        block: _Block | None = self._blocks[SegmentPlace(segment, 0)]
        while block is not None:
            yield block
            block = block.after

    def _cut(self, block: _Block, nbytes: int) -> None:
        """Keep the first ``nbytes`` of ``block``; the rest becomes a free range after it."""
        place = SegmentPlace(block.place.segment, block.place.offset + nbytes)
        rest = _Block(place, block.nbytes - nbytes)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.nbytes = rest, nbytes
        self._put(rest)

    def _merge(self, before: _Block, after: _Block) -> None:
        """Extend ``before`` over its neighbour; free ones of the two are off the lists."""
        for block in (before, after):
            if block.is_free:
                self._take(block)
        before.is_free = False
        before.nbytes += after.nbytes
        before.after = after.after
        if after.after is not None:
            after.after.before = before
        del self._blocks[after.place]

    def _put(self, block: _Block) -> None:
        block.is_free = True
        self._blocks[block.place] = block
        kind = self._segments[block.place.segment].kind
        bisect.insort(self._free.setdefault(kind, []), (block.nbytes, block.place))

    def _take(self, block: _Block) -> None:
        free = self._free[self._segments[block.place.segment].kind]
        del free[bisect.bisect_left(free, (block.nbytes, block.place))]
