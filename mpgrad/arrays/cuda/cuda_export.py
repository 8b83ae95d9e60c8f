"""Exporter: this process's memory on a device, in segments that other processes may open.

Another process gets a GPU's memory as the handle of a whole segment, sent once; after that a tensor
is (segment, offset). CUDA says that freeing memory that others have open is undefined, and does not
check it. So this file checks it: a segment is freed after every process that it was offered to has
closed it or has died. Its name is (exporter's incarnation, number). Handles are never compared,
because one segment may have several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mpgrad.arrays.cuda.cuda_driver import CudaDriver, CudaError
from mpgrad.arrays.cuda.segment_pool import (
    ALIGNMENT_BYTES,
    SegmentPlace,
    SegmentPool,
    rounded,
    segment_bytes,
)
from mpgrad.errors import InvariantViolated, MpgradError


class NotExportable(MpgradError):
    """Memory that another process cannot open; copy it into an Exporter's memory first."""


class SegmentOffer(NamedTuple):
    """The data with which another process opens a segment.

    Attributes:
        exporter: name of the exporting process's incarnation.
        segment: its number in that process; never used again.
        nbytes: its length.
        device: the number of its GPU.
        handle: CUDA's handle.
    """

    exporter: str
    segment: int
    nbytes: int
    device: int
    handle: bytes


class DeviceLease:
    """The owner of a block for the arrays over it; the block is freed with it."""

    __slots__ = ("_release", "place")

    def __init__(self, place: SegmentPlace, release: Callable[[SegmentPlace], None]) -> None:
        self.place, self._release = place, release

    def __del__(self) -> None:
        # Runs in any thread, inside the garbage collector, and during interpreter shutdown: it must
        # not lock or look up a global. An append is atomic.
        self._release(self.place)


class _ExportedSegment(NamedTuple):
    pointer: int
    nbytes: int


class Exporter:
    """This process's memory on one device, in segments that others can open.

    Use it from one thread at a time, with ``device`` current.

    Args:
        driver: of this process.
        peer: the name of this process's incarnation.
        device: the number of the GPU.
    """

    def __init__(self, driver: CudaDriver, peer: str, device: int) -> None:
        self._driver, self.peer, self.device = driver, peer, device
        self._pool = SegmentPool()
        self._segments: dict[int, _ExportedSegment] = {}
        self._handles: dict[int, bytes] = {}
        #: Functions to call, in this order, if the GPU has no more memory.
        self.relief: list[Callable[[], None]] = []
        #: For each segment the processes that it was offered to and that have not closed it.
        self._offered: dict[int, set[str]] = {}
        self._retiring: set[int] = set()
        self._next_segment = 0
        self._set_aside: dict[SegmentPlace, int] = {}
        #: Blocks without arrays.
        self._released: deque[SegmentPlace] = deque()

    # ------------------------------------------------------------------------- blocks

    def allocate(self, nbytes: int) -> tuple[int, DeviceLease]:
        """Memory for an array on the current stream: its address, and its owner.

        Raises:
            CudaError: the device has no more memory.
        """
        self._take_back()
        stream = self._driver.current_stream().ptr
        place = self._pool.allocate(nbytes, stream) or self._place_in_more(nbytes, stream)
        lease = DeviceLease(place, self._released.append)
        return self._segments[place.segment].pointer + place.offset, lease

    def set_aside(self, lease: DeviceLease, nbytes: int) -> None:
        """Do not count a block of ``nbytes`` as the user's."""
        self._set_aside[lease.place] = rounded(nbytes, ALIGNMENT_BYTES)

    @property
    def used_bytes(self) -> int:
        """Bytes in blocks with arrays, without those that were ``set_aside``."""
        self._take_back()
        return self._pool.used_bytes - sum(self._set_aside.values())

    @property
    def held_bytes(self) -> int:
        """Bytes taken from the device."""
        return sum(segment.nbytes for segment in self._segments.values())

    def _take_back(self) -> None:
        while self._released:
            place = self._released.popleft()
            self._pool.free(place)
            self._set_aside.pop(place, None)

    def _place_in_more(self, nbytes: int, stream: int) -> SegmentPlace:
        """A place for a block, after more memory was taken from the device."""
        try:
            self._grow(nbytes, stream)
        except CudaError as error:
            if "MemoryAllocation" not in error.status:
                raise
            for relieve in self.relief:
                relieve()
                self._take_back()
                place = self._pool.allocate(nbytes, stream)
                if place is not None:
                    return place
            self._free_unoffered()
            self._grow(nbytes, stream)
        place = self._pool.allocate(nbytes, stream)
        if place is None:
            raise InvariantViolated("a new segment has no room for what it was made for")
        return place

    def _grow(self, nbytes: int, stream: int) -> None:
        size = segment_bytes(nbytes)
        pointer = self._driver.malloc(size)
        number = self._next_segment
        self._next_segment += 1
        self._segments[number] = _ExportedSegment(pointer, size)
        self._pool.add_segment(number, size, stream, nbytes)

    # ------------------------------------------------------------------------- export

    def locate(self, pointer: int, nbytes: int) -> SegmentPlace | None:
        """The place of these bytes, or None if this process cannot export all of them."""
        for number, segment in self._segments.items():
            if segment.pointer <= pointer and pointer + nbytes <= segment.pointer + segment.nbytes:
                return SegmentPlace(number, pointer - segment.pointer)
        return None

    def address(self, place: SegmentPlace) -> int:
        """The address of a place.

        Raises:
            NotExportable: there is no such segment.
        """
        segment = self._segments.get(place.segment)
        if segment is None or not 0 <= place.offset < segment.nbytes:
            raise NotExportable(f"{self.peer} has nothing at {place}")
        return segment.pointer + place.offset

    def offer(self, segment: int, to: str) -> SegmentOffer:
        """Let the process ``to`` open a segment, which stays until that process has closed it.

        Raises:
            NotExportable: the segment is being retired, or CUDA makes no handle of it.
        """
        found = self._segments.get(segment)
        if found is None or segment in self._retiring:
            raise NotExportable(f"{self.peer} has no segment {segment} to offer")
        if to == self.peer:
            raise InvariantViolated(f"{to} was offered its own segment")
        if segment not in self._handles:
            try:
                self._handles[segment] = self._driver.ipc_memory_handle(found.pointer)
            except CudaError as error:
                raise NotExportable(f"{self.peer} cannot export its memory: {error}") from error
        self._offered.setdefault(segment, set()).add(to)
        return SegmentOffer(self.peer, segment, found.nbytes, self.device, self._handles[segment])

    # ------------------------------------------------------------------------- freeing

    def retire_idle(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return idle segments to the device.

        Returns:
            The segments that must be closed first, with the processes that have them open;
            :meth:`closed` follows for each of these.
        """
        self._take_back()
        asked = []
        for number in self._pool.idle_segments():
            self._pool.remove_segment(number)
            self._retiring.add(number)
            holders = self._offered.get(number)
            if holders:
                asked.append((number, tuple(sorted(holders))))
            else:
                self._free(number)
        return asked

    def closed(self, segment: int, peer: str) -> None:
        """``peer`` has closed a segment that it was asked to close.

        Raises:
            InvariantViolated: ``peer`` does not have it, or was not asked.
        """
        if segment not in self._retiring or peer not in self._offered.get(segment, ()):
            raise InvariantViolated(f"{peer} closed segment {segment}, which it was not asked to")
        self._drop(segment, peer)

    def peer_lost(self, peer: str) -> None:
        """A process died; the kernel has closed the segments that it had open."""
        for segment in [number for number, peers in self._offered.items() if peer in peers]:
            self._drop(segment, peer)

    def _drop(self, segment: int, peer: str) -> None:
        self._offered[segment].discard(peer)
        if segment in self._retiring and not self._offered[segment]:
            self._free(segment)

    def _free(self, segment: int) -> None:
        self._driver.free(self._segments.pop(segment).pointer)
        self._retiring.discard(segment)
        self._offered.pop(segment, None)
        self._handles.pop(segment, None)

    def _free_unoffered(self) -> None:
        """Free the segments that can be freed at once."""
        freed = [number for number in self._pool.idle_segments() if not self._offered.get(number)]
        for number in freed:
            self._pool.remove_segment(number)
            self._free(number)
