"""DeviceMemory and DeviceReader: a process's arrays on a GPU as others see them, and the reverse.

What leaves a process stays where it is: others get (arena, segment and offset) and the number of an
event. The exporter keeps an array until it is told that nobody holds it; who reads it lets his
stream wait for the event first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.errors import ProtocolError
from mpgrad.handles import Block, TensorHandle
from mpgrad.shm.cuda_driver import DEVICE_TO_DEVICE, CudaDriver
from mpgrad.shm.cuda_export import Exporter, SegmentOffer
from mpgrad.shm.cuda_import import Importer
from mpgrad.shm.device_board import EVENT, MEMORY, DeviceBoard, Row
from mpgrad.shm.event_ring import EVENTS, EventRing
from mpgrad.shm.lease import byte_bounds
from mpgrad.shm.segment_pool import Place

#: An offset in a Block of device memory is a segment's number and what follows in it.
SEGMENT_BITS = 40
#: A generation there is a number that only grows, and the event to wait for (0: none).
_EVENT_BITS = EVENTS.bit_length()
_NO_EVENT = 0

#: A segment that went to one process of an engine may come to all of them.
_EVERYBODY = "every process of the engine"


def _packed(place: Place) -> int:
    return place.segment << SEGMENT_BITS | place.offset


def _unpacked(offset: int) -> Place:
    return Place(offset >> SEGMENT_BITS, offset & ((1 << SEGMENT_BITS) - 1))


class DeviceMemory:
    """What this process exports of one GPU. Used by one thread at a time, with the GPU current.

    Args:
        driver: of this process.
        arena: the number under which others know it.
        device: which GPU.
    """

    def __init__(self, driver: CudaDriver, arena: int, device: int) -> None:
        self._driver, self.arena, self.device = driver, arena, device
        self.exporter = Exporter(driver, str(arena), device)
        self._ring: EventRing | None = None
        self._serial = 0
        #: What others may be reading, by generation.
        self._published: dict[int, Any] = {}
        #: Per event those who may still wait for it: blocks, and handovers.
        self._users: Counter[int] = Counter()
        #: The event that will follow what has been published and not been marked.
        self._event: int | None = None
        self._is_unmarked = False
        self.copied_bytes = 0

    # ------------------------------------------------------------------------ leaving

    def publish(self, array: Any, board: DeviceBoard) -> Block:
        """A reference to a C-contiguous array; nobody may write to it any more.

        ``mark`` must follow before the reference is sent.
        """
        place = self._place_of(array)
        if place is None:
            array = array.copy()
            self.copied_bytes += array.nbytes
            place = self._place_of(array)
        if place is None:
            raise ProtocolError("a new array does not lie in the memory that is exported")
        if array.nbytes:
            self._show(place.segment, board)
        event = self._next_event(board)
        if event != _NO_EVENT:
            self._users[event] += 1
        generation = self._next_generation(event)
        self._published[generation] = array
        return Block(self.arena, _packed(place), array.nbytes, generation)

    def mark(self) -> None:
        """Let the event follow all that the current stream has been given until now."""
        if not self._is_unmarked:
            return
        stream = self._driver.current_stream()
        if self._event is None or self._ring is None:
            stream.synchronize()
        else:
            self._ring.record_again(self._event, stream)
        self._event, self._is_unmarked = None, False

    def release(self, block: Block) -> None:
        """Nobody holds ``block`` any more."""
        if self._published.pop(block.generation, None) is not None:
            self._drop_event(block.generation & ((1 << _EVENT_BITS) - 1))

    def published(self, block: Block) -> Any:
        """The array itself.

        Raises:
            ProtocolError: there is no such block (any more).
        """
        found = self._published.get(block.generation)
        if found is None:
            raise ProtocolError(f"a block that this process does not export: {block}")
        return found

    # ------------------------------------------------------------------------ saved arrays

    def handle(self, array: Any, board: DeviceBoard, event: int) -> TensorHandle | None:
        """A reference to a strided array, None if it lies in memory that cannot be exported.

        The caller keeps the array, and ``event`` (see ``begin_handover``), while others read.
        """
        if array.nbytes == 0:
            return TensorHandle(
                self.arena, 0, 0, _NO_EVENT, array.shape, array.strides, array.dtype.str
            )
        low, high = byte_bounds(
            self._driver.pointer(array), array.shape, array.itemsize, array.strides
        )
        place = self.exporter.locate(low, high - low) if array.nbytes else Place(0, 0)
        if place is None:
            return None
        self._show(place.segment, board)
        start = _packed(place)
        first = start + (self._driver.pointer(array) - low if array.nbytes else 0)
        layout = (array.shape, array.strides, array.dtype.str)
        return TensorHandle(self.arena, first, start, event, *layout)

    def begin_handover(self, board: DeviceBoard) -> int:
        """An event behind all that the current stream has been given: readers wait for it."""
        event = self._next_event(board)
        if event != _NO_EVENT:
            self._users[event] += 1
        self.mark()
        return event

    def end_handover(self, event: int) -> None:
        """Nobody waits for it any more."""
        self._drop_event(event)

    # ------------------------------------------------------------------------ inside

    def _place_of(self, array: Any) -> Place | None:
        if array.nbytes == 0:
            return Place(0, 0)
        return self.exporter.locate(self._driver.pointer(array), array.nbytes)

    def _show(self, segment: int, board: DeviceBoard) -> None:
        if board.find(MEMORY, self.arena, segment) is None:
            offer = self.exporter.offer(segment, _EVERYBODY)
            row = Row(MEMORY, self.arena, segment, offer.nbytes, self.device, offer.handle)
            board.put(row)

    def _next_event(self, board: DeviceBoard) -> int:
        """The number of the event that ``mark`` will record, and one more."""
        if not self._is_unmarked:
            self._is_unmarked = True
            if self._ring is None:
                self._ring = EventRing(self._driver)
            self._event = self._ring.record(self._driver.current_stream(), waiters=1)
        if self._event is None or self._ring is None:
            return _NO_EVENT
        if board.find(EVENT, self.arena, self._event) is None:
            for number, handle in enumerate(self._ring.handles()):
                board.put(Row(EVENT, self.arena, number, 0, self.device, handle))
        return self._event + 1

    def _next_generation(self, event: int) -> int:
        self._serial += 1
        return self._serial << _EVENT_BITS | event

    def _drop_event(self, event: int) -> None:
        if event == _NO_EVENT or self._ring is None:
            return
        self._users[event] -= 1
        if self._users[event] == 0:
            del self._users[event]
            self._ring.waited(event - 1)


class DeviceReader:
    """Other processes' device memory, as this one sees it.

    Args:
        driver: of this process.
        board: where handles stand.
        own: what this process exports itself.
        is_bound: whether one thread alone uses it.
    """

    def __init__(
        self,
        driver: CudaDriver,
        board: DeviceBoard,
        own: Sequence[DeviceMemory],
        *,
        is_bound: bool = True,
    ) -> None:
        self._driver, self._board = driver, board
        self._own = {memory.arena: memory for memory in own}
        self._importer = Importer(driver, [memory.exporter for memory in own], is_bound=is_bound)
        self._events: dict[tuple[int, int], Any] = {}
        self._copy_streams: dict[int, Any] = {}
        #: Events behind copies out of others' memory that have been asked for.
        self._reads: list[Any] = []

    def open(self, handle: TensorHandle) -> Any:
        """A strided array on the current device, over memory that its exporter keeps meanwhile.

        Raises:
            ProtocolError: nobody has shown such memory.
            CudaError: its exporter is dead.
        """
        if 0 in handle.shape:
            return self._driver.namespace.empty(handle.shape, handle.dtype)
        self._wait(handle.arena, handle.generation, self._driver.current_stream())
        itemsize = np.dtype(handle.dtype).itemsize
        low, high = byte_bounds(handle.offset, handle.shape, itemsize, handle.strides)
        if low < handle.block_offset:
            raise ProtocolError(f"an array in front of its block: {handle}")
        pointer, use = self._pointer(handle.arena, _unpacked(low), high - low)
        first = pointer + handle.offset - low
        return self._driver.array(first, handle.shape, handle.dtype, handle.strides, use)

    def copy(self, block: Block, shape: Sequence[int], dtype: Any) -> Any:
        """A new array on the current device with what ``block`` holds, on whichever GPU that lies.

        It is copied beside what the current stream does; ``finish_reads`` before the block is let
        go.

        Raises:
            ProtocolError: it is of another size, or nobody has shown such memory.
            CudaError: its exporter is dead.
        """
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes != block.nbytes:
            raise ProtocolError(f"{block} is no array of shape {tuple(shape)}")
        if block.arena in self._own:
            return self._own[block.arena].published(block).reshape(shape)
        out = self._driver.namespace.empty(shape, dtype)
        if nbytes == 0:
            return out
        now, beside = self._driver.current_stream(), self._copy_stream()
        # Its memory may still be in use by what the current stream was given before.
        before = self._driver.event()
        before.record(now)
        beside.wait_event(before)
        self._wait(block.arena, block.generation & ((1 << _EVENT_BITS) - 1), beside)
        pointer, _use = self._pointer(block.arena, _unpacked(block.offset), nbytes)
        self._driver.copy(self._driver.pointer(out), pointer, nbytes, DEVICE_TO_DEVICE, beside)
        copied = self._driver.event()
        copied.record(beside)
        now.wait_event(copied)
        self._reads.append(copied)
        return out

    def finish_reads(self) -> None:
        """Block until every copy has run: then the blocks that they read may be let go."""
        while self._reads:
            self._reads.pop().synchronize()

    def _copy_stream(self) -> Any:
        device = self._driver.current_device()
        if device not in self._copy_streams:
            self._copy_streams[device] = self._driver.stream()
        return self._copy_streams[device]

    def _wait(self, arena: int, event: int, stream: Any) -> None:
        if event == _NO_EVENT or arena in self._own:
            return
        key = (arena, event - 1)
        if key not in self._events:
            row = self._board.find(EVENT, *key)
            if row is None:
                raise ProtocolError(f"nobody has shown event {event - 1} of memory {arena}")
            self._events[key] = self._driver.open_ipc_event(row.handle)
        stream.wait_event(self._events[key])

    def _pointer(self, arena: int, place: Place, nbytes: int) -> tuple[int, Any]:
        if arena not in self._own:
            row = self._board.find(MEMORY, arena, place.segment)
            if row is None:
                raise ProtocolError(f"nobody has shown segment {place.segment} of memory {arena}")
            self._importer.open(SegmentOffer(str(arena), *row[2:]))
        return self._importer.pointer(str(arena), self._device_of(arena), place, nbytes)

    def _device_of(self, arena: int) -> int:
        own = self._own.get(arena)
        return -1 if own is None else own.device
