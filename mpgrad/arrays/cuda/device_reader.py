"""DeviceReader: arrays on GPUs that belong to other processes.

Saved tensors are read where they lie, gradients are copied on a separate stream. The host does not
wait: streams wait for the exporter's event before the reads, and a mark is recorded after them
(``read_marks``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import DEVICE_TO_DEVICE, CudaDriver
from mpgrad.arrays.cuda.cuda_import import Importer
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import EVENT_BITS, NO_EVENT, ON_HOST, DeviceMemory
from mpgrad.arrays.cuda.event_ring import OpenedEvents
from mpgrad.arrays.cuda.segment_exchange import unpacked
from mpgrad.arrays.cuda.segment_pool import SegmentPlace
from mpgrad.base.handles import Block, TensorHandle
from mpgrad.errors import ProtocolError
from mpgrad.shm.mapped_arena import byte_bounds


class DeviceReader:
    """Opens arrays of other processes.

    Args:
        driver: of this process.
        link: to the engine's other processes.
        own: the memory that this process exports.
    """

    def __init__(self, driver: CudaDriver, link: DeviceLink, own: Sequence[DeviceMemory]) -> None:
        self._driver, self._link = driver, link
        self._own = {memory.arena: memory for memory in own}
        self._importer: Importer = link.importer
        self._events = OpenedEvents(driver, link.board)
        self._copy_streams: dict[int, Any] = {}
        #: Whether there were reads since the last mark.
        self._has_read = False
        #: (memory, event, GPU) that the current stream of the GPU waits for since then.
        self._waited: set[tuple[int, int, int]] = set()

    def open(self, handle: TensorHandle) -> Any:
        """A strided array over memory that its exporter keeps meanwhile, on the GPU where it lies.

        A copy through the host lies on the current GPU.

        Raises:
            ProtocolError: no process has published such memory.
            CudaError: CUDA refuses.
        """
        if 0 in handle.shape:
            return self._driver.namespace.empty(handle.shape, handle.dtype)
        itemsize = np.dtype(handle.dtype).itemsize
        low, high = byte_bounds(handle.offset, handle.shape, itemsize, handle.strides)
        if low < handle.block_offset:
            raise ProtocolError(f"an array in front of its block: {handle}")
        place, first = unpacked(low), handle.offset - low
        layout = (handle.shape, handle.dtype, handle.strides)
        self._has_read = True
        if place.segment == ON_HOST:
            span = self._driver.namespace.empty(high - low, np.uint8)
            self._from_host(handle.arena, place, span)
            return self._driver.array(self._driver.pointer(span) + first, *layout, span)
        pointer, device, use = self._pointer(handle.arena, place, high - low)
        here = self._driver.current_device()
        self._wait_once(handle, here)
        if device == here:
            return self._driver.array(pointer + first, *layout, use)
        # The stream of the GPU where it lies must wait, too.
        with self._driver.device(device):
            self._wait_once(handle, device)
            return self._driver.array(pointer + first, *layout, use)

    def copy(self, block: Block, shape: Sequence[int], dtype: Any) -> Any:
        """A new array on the current GPU with the content of ``block``, which may be on any GPU.

        It is copied in parallel with the current stream. Call ``finish_reads`` before the block is
        released.

        Raises:
            ProtocolError: it has another size, or no process has published such memory.
            CudaError: CUDA refuses.
            ExporterLost: its process died, and its copy on the host is lost.
        """
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes != block.nbytes:
            raise ProtocolError(f"{block} is no array of shape {tuple(shape)}")
        if block.arena in self._own:
            return self._own[block.arena].published(block).reshape(shape)
        out = self._driver.namespace.empty(shape, dtype)
        if nbytes == 0:
            return out
        self._has_read = True
        place = unpacked(block.offset)
        if place.segment == ON_HOST:
            self._from_host(block.arena, place, out)
            return out
        pointer, _device, _use = self._pointer(block.arena, place, nbytes)
        now, beside = self._driver.current_stream(), self._copy_stream()
        # Earlier work of the current stream may still use its memory.
        before = self._driver.event()
        before.record(now)
        beside.wait_event(before)
        self._wait(block.arena, block.generation & ((1 << EVENT_BITS) - 1), beside)
        self._driver.copy(self._driver.pointer(out), pointer, nbytes, DEVICE_TO_DEVICE, beside)
        copied = self._driver.event()
        copied.record(beside)
        now.wait_event(copied)
        return out

    def event_of(self, block: Block) -> Any:
        """The event after which ``block`` has its content; None if it has it already."""
        event = block.generation & ((1 << EVENT_BITS) - 1)
        return None if event == NO_EVENT else self._events.find(block.arena, event - 1)

    def finish_reads(self, arena: int) -> None:
        """Allow the release of everything read since the last call.

        Args:
            arena: this process's memory on the current GPU.
        """
        if self._has_read:
            self._link.mark_reads(arena)
            self._has_read = False
            self._waited.clear()

    def _from_host(self, arena: int, place: SegmentPlace, target: Any) -> None:
        """Copy it to the GPU and wait: if its process dies, its successor writes there."""
        stream = self._driver.current_stream()
        pointer = self._driver.pointer(target)
        self._link.pinned(arena).get(place.offset, pointer, target.nbytes, stream)
        stream.synchronize()
        self._link.roster.refresh()
        self._link.roster.process(arena)  # raises if it died: its successor first enters itself

    def _copy_stream(self) -> Any:
        device = self._driver.current_device()
        if device not in self._copy_streams:
            self._copy_streams[device] = self._driver.stream()
        return self._copy_streams[device]

    def _wait_once(self, handle: TensorHandle, device: int) -> None:
        """Wait once: most saved tensors of a task have the same event, which does not change."""
        key = (handle.arena, handle.generation, device)
        if key not in self._waited:
            self._wait(handle.arena, handle.generation, self._driver.current_stream())
            self._waited.add(key)

    def _wait(self, arena: int, event: int, stream: Any) -> None:
        if event == NO_EVENT or arena in self._own:
            return
        stream.wait_event(self._events.find(arena, event - 1))

    def _pointer(self, arena: int, place: SegmentPlace, nbytes: int) -> tuple[int, int, Any]:
        """The address of that memory here, its GPU, and the object that keeps the segment open."""
        own = self._own.get(arena)
        if own is not None:
            return own.exporter.address(place), own.device, None
        row = self._link.segments.open(arena, place.segment)
        if row is None:
            raise ProtocolError(f"nobody has shown segment {place.segment} of memory {arena}")
        pointer, use = self._importer.pointer(str(arena), row.device, place, nbytes)
        return pointer, row.device, use
