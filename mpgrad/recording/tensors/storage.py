"""The memory of the client's arrays: its shared arena for large ones, else the heap.

An array in the arena is handed to a worker as an offset; any other is copied at each submission. An
array on a GPU lies in memory of the CUDA driver. This file knows arenas, not tensors.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.arrays.cpu.cpu_backend import LARGE_BYTES
from mpgrad.arrays.cuda import device_arrays
from mpgrad.base.device import CPU, Device
from mpgrad.base.refused_calls import is_from_kernel
from mpgrad.errors import SharedMemoryExhausted
from mpgrad.shm.arena import client_arena
from mpgrad.shm.mapped_arena import Lease


class VersionCounter:
    """Counts in-place changes; shared by a tensor, its views and its ``detach()``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def count(self) -> None:
        """Count a change."""
        self.value += 1
        for changed in _watchers:
            changed.append(self)


#: Lists that get the counter of every changed tensor.
_watchers: list[list[VersionCounter]] = []


class watched:
    """The counters of the tensors that any thread changes in place inside the block."""

    __slots__ = ("_changed",)

    def __enter__(self) -> list[VersionCounter]:
        self._changed: list[VersionCounter] = []
        _watchers.append(self._changed)
        return self._changed

    def __exit__(self, *_: object) -> None:
        # By identity: lists are equal if their elements are.
        _watchers[:] = [other for other in _watchers if other is not self._changed]


class leaves_made:
    """The leaves that any thread makes inside the block: ``id`` -> a weak reference."""

    __slots__ = ("_found",)

    def __enter__(self) -> dict[int, weakref.ref[Any]]:
        self._found: dict[int, weakref.ref[Any]] = {}
        _leaf_lists.append(self._found)
        return self._found

    def __exit__(self, *_: object) -> None:
        _leaf_lists[:] = [other for other in _leaf_lists if other is not self._found]


#: Where new leaves are noted; empty nearly always.
_leaf_lists: list[dict[int, weakref.ref[Any]]] = []


def is_noted(leaf: Any) -> bool:
    """Note that a tensor requires grad from now on: True."""
    for found in _leaf_lists:
        found[id(leaf)] = weakref.ref(leaf)
    return True


def is_watched() -> bool:
    """Whether a ``watched`` block is active in any thread."""
    return bool(_watchers)


class _InferenceVersion(VersionCounter):
    """The counter of all tensors made in inference mode: it does not count."""

    __slots__ = ()

    @property
    def value(self) -> int:
        return 0

    @value.setter
    def value(self, value: int) -> None:
        pass

    def __init__(self) -> None:
        pass


#: A tensor with this counter is an inference tensor.
INFERENCE = _InferenceVersion()


def not_an_array(data: Any) -> TypeError:
    """The error of ``Tensor(data)``."""
    return TypeError(
        f"Tensor(...) wraps a NumPy or CuPy array, and got a {type(data).__name__}; "
        "mpgrad.tensor(...) makes a tensor of data, mpgrad.empty(...) one of a shape"
    )


def empty(shape: tuple[int, ...], dtype: Any, device: Device = CPU) -> Any:
    """An uninitialised C-contiguous array of ``shape`` (elements), in the arena if large.

    Raises:
        SharedMemoryExhausted: the arena's limit is reached.
    """
    if device.index is not None:
        return device_arrays.empty(shape, dtype, device)
    if TRACING.entered:
        program = TRACING.program()
        if program is not None and not program.is_given_up:
            return program.empty(shape, dtype)
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    arena = None
    try:
        arena = client_arena()
        return arena.empty(shape, dtype)
    except OSError as error:
        if not is_from_kernel(error):
            raise
        # Limits of this process leave no room for an arena, or the system refuses it.
    except SharedMemoryExhausted:
        if arena is None or not arena.is_cramped:
            raise
    return np.empty(shape, dtype)  # on the heap: it is copied when it is submitted


#: The least bytes of an operator's result that lies in the arena while nobody reads it there. To
#: copy a smaller one in the first submission takes less time than blocks for all of them.
SHARED_BYTES = 256 * 1024

#: The ``id`` of each engine whose workers read results in the arena.
_readers: set[int] = set()


def note_reader(engine: int, *, reads: bool) -> None:
    """The workers of an engine, given by its ``id``, begin or cease to read results."""
    if reads:
        _readers.add(engine)
    else:
        _readers.discard(engine)


def empty_result(shape: tuple[int, ...], dtype: Any, device: Device = CPU) -> Any:
    """``empty`` for the result of an operator: on the heap if no worker reads it, and it has less
    than SHARED_BYTES.

    Raises:
        SharedMemoryExhausted: the arena's limit is reached.
    """
    if not _readers and device.index is None and not TRACING.entered:
        dtype = np.dtype(dtype)
        if math.prod(shape) * dtype.itemsize < SHARED_BYTES:
            return np.empty(shape, dtype)
    return empty(shape, dtype, device)


def adopt(array: Any, device: Device | None = None) -> Any:
    """A copy of ``array`` in this memory (C-contiguous), on ``device`` or that of ``array``."""
    is_small = type(array) is np.ndarray and array.nbytes < LARGE_BYTES
    if is_small and device is None and not TRACING.entered:
        return array.copy()
    here = device_arrays.device_of(array)
    if device is not None and device != here:
        array = device_arrays.moved(array, device)
        return array if device is not CPU else adopt(array)
    if here is not CPU:
        return device_arrays.copied(array)
    copy = empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def adopt_in_layout(array: Any, pattern: Any) -> Any:
    """A copy of ``array`` in this memory, with the dimensions in the order of ``pattern``.

    Args:
        array: what to copy.
        pattern: an array with the same number of dimensions.
    """
    device = device_arrays.device_of(array)
    order = sorted(range(array.ndim), key=lambda axis: (-pattern.strides[axis], axis))
    with device_arrays.on(device):
        copy = empty(tuple(array.shape[axis] for axis in order), array.dtype, device)
        copy = copy.transpose(np.argsort(order).tolist())
        copy[...] = array
    return copy


def is_dense(array: Any) -> bool:
    """Whether the elements fill a range of memory without gap or overlap, in any order."""
    expected = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length > 1:
            if stride != expected:
                return False
            expected *= length
    return True


def is_exclusive(array: Any) -> bool:
    """Whether the caller's variable is the only reference to ``array`` and its memory."""
    if not isinstance(array, np.ndarray):
        # A reshaped array has a base, and so has every view of the same memory.
        base = array.base
        return (
            sys.getrefcount(array) <= _SOLE
            and (base is None or (base.nbytes == array.nbytes and sys.getrefcount(base) <= _SOLE))
            and sys.getrefcount(array.data.mem) <= _sole_references_to_gpu_memory()
        )
    if sys.getrefcount(array) > _SOLE:
        return False
    flags = array.flags
    if not flags.writeable:
        return False
    if flags.owndata:
        return True
    # An array in the arena lies over an array of bytes that the Lease owns. NumPy makes that the
    # base of every further view, so its reference count shows whether there is any.
    memory = array.base
    return (
        type(memory) is np.ndarray
        and isinstance(memory.base, Lease)
        and memory.nbytes == array.nbytes
        and sys.getrefcount(memory) <= _SOLE
    )


def is_held_alone(array: np.ndarray[Any, Any]) -> bool:
    """Whether nobody but the caller's variable can read ``array``, though it may be a part of its
    memory, and one that cannot be written (``is_exclusive`` asks for more)."""
    if sys.getrefcount(array) > _SOLE:
        return False
    memory = array.base
    if memory is None:
        return True
    is_last = type(memory) is np.ndarray and (memory.base is None or isinstance(memory.base, Lease))
    return is_last and sys.getrefcount(memory) <= _SOLE


def _references(array: np.ndarray[Any, Any]) -> int:
    return sys.getrefcount(array)


def _sole_references() -> int:
    array = np.empty(0)
    return _references(array)


#: The count in ``is_exclusive`` for an array that only its caller holds (differs by interpreter).
_SOLE = _sole_references()


@functools.cache
def _sole_references_to_gpu_memory() -> int:
    """The same for the memory of a GPU's array, which all its views share."""
    array = device_arrays.cuda_namespace().empty(1, "uint8")
    return sys.getrefcount(array.data.mem)
