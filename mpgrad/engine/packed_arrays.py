"""PackedArrays: the arrays of one GraphTask as references that its workers can open.

Arrays in the client's arena travel as offsets. Any other array is copied, once per submission, and
the copies are counted. Everything packed stays alive until ``close``.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import is_on_gpu
from mpgrad.arrays.cuda.device_submission import DeviceSubmission
from mpgrad.base.handles import (
    CLIENT_ARENA,
    CLIENT_DEVICE_ARENA,
    INLINE_LIMIT_BYTES,
    Block,
    GradientRef,
    TensorHandle,
)
from mpgrad.errors import ProtocolError
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.tensors.storage import adopt
from mpgrad.shm.arena import client_arena
from mpgrad.shm.mapped_arena import ForeignArena, byte_bounds
from mpgrad.wire.programs import InlineArray, PackedArray, SharedArray

Array: TypeAlias = np.ndarray[Any, Any]


class PackedArrays:
    """The arrays of one submission."""

    def __init__(self) -> None:
        self._arena = client_arena()
        #: Earlier gradients that a double backward sends again.
        self.engine_arena: ForeignArena | None = None
        self._kept: list[Any] = []
        #: By identity, because many Nodes save the same array.
        self._packed: dict[int, PackedArray] = {}
        #: The connection to the memory of GPU workers, if there are any.
        self.devices: DeviceSubmission | None = None
        self.handed_bytes = 0
        self.copied_bytes = 0

    def close(self, *, is_complete: bool = False) -> None:
        """Release all packed arrays; ``is_complete`` says that every read of them has finished."""
        if self.devices is not None:
            self.devices.close(is_complete=is_complete)
        self._kept.clear()
        self._packed.clear()

    def array(self, array: Array) -> PackedArray:
        """A reference to ``array``, or to a copy if it lies outside the arena."""
        found = self._packed.get(id(array))
        if found is None:
            found = self._packed[id(array)] = self._pack(array)
            self._kept.append(array)
        return found

    def _pack(self, array: Array) -> PackedArray:
        self.handed_bytes += array.nbytes
        if self.devices is not None and is_on_gpu(array):
            before = self.devices.copied_bytes
            packed = SharedArray(self.devices.handle(array))
            self.copied_bytes += self.devices.copied_bytes - before
            return packed
        if array.base is not None:  # else it owns its memory
            for arena in (self._arena, self.engine_arena):
                place = None if arena is None else arena.locate(array)
                if arena is not None and place is not None:
                    return _shared(array, *place, arena.number)
        self.copied_bytes += array.nbytes
        if array.flags.c_contiguous:
            if array.nbytes <= INLINE_LIMIT_BYTES:
                return InlineArray(array.shape, array.strides, array.dtype.str, 0, array.tobytes())
            copy = self._copy(array)
            return _shared(copy, *self._located(copy))
        data, offset = _span(array)
        if len(data) <= INLINE_LIMIT_BYTES:
            return InlineArray(array.shape, array.strides, array.dtype.str, offset, data)
        start, block, generation = self._located(self._store(data))
        return _shared(array, start + offset, block, generation)

    def gradient(self, array: Array | None) -> GradientRef:
        """A C-contiguous gradient that flows into the graph from here (a seed, a hook's result)."""
        if array is None:
            return None
        if self.devices is not None and is_on_gpu(array):
            return self.devices.publish(array)
        if array.nbytes <= INLINE_LIMIT_BYTES:
            return array.tobytes()
        place = self._arena.locate(array)
        if place is None or place[0] != place[1]:
            self.copied_bytes += array.nbytes
            array = self._copy(array)
            place = self._located(array)
        self._kept.append(array)
        return Block(CLIENT_ARENA, place[1], array.nbytes, place[2])

    def open(self, ref: GradientRef, meta: InputMetadata) -> Array | None:
        """A copy of a gradient that came inside a message, or that this client submitted."""
        shape, dtype, _ = meta
        if isinstance(ref, bytes):
            try:
                return np.ndarray(shape, dtype, ref).copy()
            except TypeError as error:
                raise ProtocolError(f"a gradient of {len(ref)} bytes: {error}") from None
        if ref is None:
            return None
        if ref.arena >= CLIENT_DEVICE_ARENA:
            return self._device_copy(ref, meta)
        return adopt(self._arena.open(ref, shape, dtype, writeable=False))

    def _device_copy(self, block: Block, meta: InputMetadata) -> Any:
        if self.devices is None:
            raise ProtocolError(f"a gradient on a GPU, of an engine that has none: {block}")
        return self.devices.copy(block, meta.shape, meta.dtype, meta.device)

    def _copy(self, array: Array) -> Array:
        """A copy of ``array`` in the arena, whatever its size."""
        copy = self._arena.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        self._kept.append(copy)
        return copy

    def _store(self, data: bytes) -> Array:
        """A block of the arena with ``data``."""
        block = self._arena.empty((max(len(data), 1),), np.uint8)
        block[: len(data)] = np.frombuffer(data, np.uint8)
        self._kept.append(block)
        return block

    def stored(self, data: bytes) -> int:
        """The offset in the arena of a copy of ``data``."""
        return self._located(self._store(data))[0]

    def _located(self, array: Array) -> tuple[int, int, int]:
        place = self._arena.locate(array)
        if place is None:
            raise RuntimeError("an array that was just made in the arena does not lie in it")
        return place


def _shared(
    array: Array, offset: int, block: int, generation: int, arena: int = CLIENT_ARENA
) -> SharedArray:
    layout = (array.shape, array.strides, array.dtype.str)
    return SharedArray(TensorHandle(arena, offset, block, generation, *layout))


def spanned(array: Array) -> tuple[Array, int]:
    """All bytes from the lowest to the highest address, and the offset of element 0."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8), 0
    data, offset = _span(array)
    return np.frombuffer(data, np.uint8), offset


def _span(array: Array) -> tuple[bytes, int]:
    """All bytes from the lowest to the highest address of ``array``, and the offset of element 0.

    Gaps are sent too, so that the strides on the other side are exactly the same.
    """
    address = array.__array_interface__["data"][0]
    low, high = byte_bounds(address, array.shape, array.itemsize, array.strides)
    return ctypes.string_at(low, high - low), address - low
