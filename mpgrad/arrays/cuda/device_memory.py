"""DeviceMemory: a process's arrays on a GPU for other processes (``device_reader`` is the reverse).

A published array stays where it is: others get (arena, segment and offset) and the number of an
event. The exporter keeps an array until it is told that it has no holder. A reader makes its stream
wait for the event before the first access. If the others cannot open this memory, a copy is
published through pinned host memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.cuda_export import Exporter
from mpgrad.arrays.cuda.device_board import EVENT, MEMORY, Row
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.event_ring import EVENTS, EventRing
from mpgrad.arrays.cuda.pinned_arena import PinnedArena
from mpgrad.arrays.cuda.segment_exchange import packed
from mpgrad.arrays.cuda.segment_pool import SegmentPlace
from mpgrad.base.handles import Block, TensorHandle
from mpgrad.errors import ProtocolError
from mpgrad.shm.mapped_arena import byte_bounds

#: A generation is a rising number, and the event to wait for (0: none).
EVENT_BITS = EVENTS.bit_length()
NO_EVENT = 0
#: The segment number of a block in its maker's range of pinned host memory.
ON_HOST = 1 << 22


class HostCopy(NamedTuple):
    """A copy of device memory in pinned host memory."""

    arena: PinnedArena
    offset: int

    def free(self) -> None:
        """Free the bytes; they have no reader any more."""
        self.arena.free(self.offset)


class DeviceMemory:
    """The memory that this process exports on one GPU.

    It is used by one thread at a time, with the GPU current.

    Args:
        driver: of this process.
        arena: its number for others.
        device: the number of the GPU.
    """

    def __init__(self, driver: CudaDriver, arena: int, device: int) -> None:
        self._driver, self.arena, self.device = driver, arena, device
        self.exporter = Exporter(driver, str(arena), device)
        self._ring: EventRing | None = None
        self._serial = 0
        #: Arrays that others may read, by generation, each with its copy on the host if it has one.
        self._published: dict[int, tuple[Any, ...]] = {}
        #: The event to record after the publications since the last mark.
        self._event: int | None = None
        #: Whether there are publications since the last mark, and whether some are on the host.
        self._is_unmarked = self._is_on_host = False
        #: The number of events given out that follow all earlier work of the GPU.
        self.marks = 0
        self.copied_bytes = 0

    # ------------------------------------------------------------------------ publication

    def publish(self, array: Any, link: DeviceLink) -> Block:
        """A reference to a C-contiguous array, which must not be written to any more.

        ``mark`` must follow before the reference is sent.
        """
        if array.nbytes and not link.is_shared(self.arena):
            copy = self._copy_to_host(self._driver.pointer(array), array.nbytes, link)
            self._is_unmarked = self._is_on_host = True
            generation = self._next_generation(NO_EVENT)
            self._published[generation] = array, copy
            return Block(
                self.arena, packed(SegmentPlace(ON_HOST, copy.offset)), array.nbytes, generation
            )
        place = self._place_of(array)
        if place is None:
            array = array.copy()
            self.copied_bytes += array.nbytes
            place = self._place_of(array)
        if place is None:
            raise ProtocolError("a new array does not lie in the memory that is exported")
        event = NO_EVENT
        if array.nbytes:
            self._show(place.segment, link)
            event = self._next_event(link)
        generation = self._next_generation(event)
        self._published[generation] = (array,)
        return Block(self.arena, packed(place), array.nbytes, generation)

    def mark(self) -> None:
        """Record the event after all work of the current stream so far."""
        if not self._is_unmarked:
            return
        stream = self._driver.current_stream()
        if self._event is not None and self._ring is not None:
            self._ring.record(self._event, stream)
            self.marks += 1
        if self._event is None or self._is_on_host:
            stream.synchronize()
            self.marks += 1
        self._event, self._is_unmarked, self._is_on_host = None, False, False

    def release(self, block: Block) -> tuple[Any, ...]:
        """Release a block without a holder; return what must be kept until GPUs have read it."""
        found = self._published.pop(block.generation, ())
        if found:
            self._drop_event(block.generation & ((1 << EVENT_BITS) - 1))
        return found

    def published(self, block: Block) -> Any:
        """The published array.

        Raises:
            ProtocolError: there is no such block (any more).
        """
        found = self._published.get(block.generation)
        if found is None:
            raise ProtocolError(f"a block that this process does not export: {block}")
        return found[0]

    # ------------------------------------------------------------------------ saved arrays

    def handle(self, array: Any, link: DeviceLink, event: int) -> TensorHandle | None:
        """A reference to a strided array; None if it lies in memory that cannot be exported.

        The caller keeps the array, and ``event`` (see ``begin_submission``), while others read.
        """
        layout = (array.shape, array.strides, array.dtype.str)
        if array.nbytes == 0:
            return TensorHandle(self.arena, 0, 0, NO_EVENT, *layout)
        first = self._driver.pointer(array)
        low, high = byte_bounds(first, array.shape, array.itemsize, array.strides)
        place = self.exporter.locate(low, high - low)
        if place is None:
            return None
        self._show(place.segment, link)
        start = packed(place)
        return TensorHandle(self.arena, start + first - low, start, event, *layout)

    def handle_on_host(self, array: Any, link: DeviceLink) -> tuple[TensorHandle, HostCopy]:
        """The same for a copy on the host, gaps included, so that the strides stay the same.

        The caller frees the copy when it has no reader any more.
        """
        first = self._driver.pointer(array)
        low, high = byte_bounds(first, array.shape, array.itemsize, array.strides)
        copy = self._copy_to_host(low, high - low, link)
        self._driver.current_stream().synchronize()
        start = packed(SegmentPlace(ON_HOST, copy.offset))
        layout = (array.shape, array.strides, array.dtype.str)
        return TensorHandle(self.arena, start + first - low, start, NO_EVENT, *layout), copy

    def begin_submission(self, link: DeviceLink) -> int:
        """An event after all work of the current stream so far, for readers to wait for."""
        event = self._next_event(link)
        self.mark()
        return event

    def end_submission(self, event: int) -> None:
        """Release the event: it has no waiter any more."""
        self._drop_event(event)

    # ------------------------------------------------------------------------ inside

    def _copy_to_host(self, pointer: int, nbytes: int, link: DeviceLink) -> HostCopy:
        pinned = link.pinned(self.arena)
        link.count_host_bytes(self.arena, nbytes)
        self.copied_bytes += nbytes
        return HostCopy(pinned, pinned.put(pointer, nbytes, self._driver.current_stream()))

    def _place_of(self, array: Any) -> SegmentPlace | None:
        if array.nbytes == 0:
            return SegmentPlace(0, 0)
        return self.exporter.locate(self._driver.pointer(array), array.nbytes)

    def _show(self, segment: int, link: DeviceLink) -> None:
        if link.board.find(MEMORY, self.arena, segment) is None:
            link.segments.show(self.arena, self.exporter.offer(segment, link.segments.name))

    def _next_event(self, link: DeviceLink) -> int:
        """Reserve the event that ``mark`` will record, for one more waiter: its number + 1."""
        if self._ring is None:
            self._ring = EventRing(self._driver)
        if not self._is_unmarked:
            self._is_unmarked, self._event = True, self._ring.reserve()
        elif self._event is not None:
            self._ring.share(self._event)
        if self._event is None:
            return NO_EVENT
        if link.board.find(EVENT, self.arena, self._event) is None:
            rows = enumerate(self._ring.handles())
            link.board.put(*(Row(EVENT, self.arena, n, 0, self.device, h) for n, h in rows))
        return self._event + 1

    def _next_generation(self, event: int) -> int:
        self._serial += 1
        return self._serial << EVENT_BITS | event

    def _drop_event(self, event: int) -> None:
        if event != NO_EVENT and self._ring is not None:
            self._ring.waited(event - 1)
