"""Where the client's arrays are born: in its shared arena where that pays, else on the heap.

An array that lies in the arena is handed to a worker as an offset; any other is copied at each
hand-over. Knows arenas, not tensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpgrad.backends.cpu import LARGE_BYTES
from mpgrad.shm.arena import client_arena
from mpgrad.shm.lease import Lease


class VersionCounter:
    """Counts in-place changes; shared by a tensor, its views and its ``detach()``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def count(self) -> None:
        """Note a change."""
        self.value += 1
        for changed in _watchers:
            changed.append(self)


#: Lists that get the counter of everything that is changed.
_watchers: list[list[VersionCounter]] = []


@contextmanager
def watched() -> Iterator[list[VersionCounter]]:
    """The counters of what any thread changes in place inside the block."""
    changed: list[VersionCounter] = []
    _watchers.append(changed)
    try:
        yield changed
    finally:
        # By identity: lists are equal if their elements are.
        _watchers[:] = [other for other in _watchers if other is not changed]


class _InferenceVersion(VersionCounter):
    """The counter of all tensors made in inference mode: it counts nothing."""

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


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An uninitialised C-contiguous array of ``shape`` (elements), in the arena if large.

    Raises:
        SharedMemoryExhausted: the arena's limit is reached.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LARGE_BYTES:
        return np.empty(shape, dtype)
    return client_arena().empty(shape, dtype)


def adopt(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of ``array`` born here (C-contiguous)."""
    copy = empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def adopt_in_layout(
    array: np.ndarray[Any, Any], pattern: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """A copy of ``array`` born here, its dimensions in memory in the order of ``pattern``'s.

    Args:
        array: what to copy.
        pattern: of the same number of dimensions.
    """
    order = sorted(range(array.ndim), key=lambda axis: (-pattern.strides[axis], axis))
    copy = empty(tuple(array.shape[axis] for axis in order), array.dtype)
    copy = copy.transpose(np.argsort(order))
    np.copyto(copy, array)
    return copy


def is_dense(array: np.ndarray[Any, Any]) -> bool:
    """Whether the elements fill a piece of memory without gap or overlap, in whatever order."""
    expected = array.itemsize
    for stride, length in sorted(zip(array.strides, array.shape, strict=True)):
        if length > 1:
            if stride != expected:
                return False
            expected *= length
    return True


def is_exclusive(array: np.ndarray[Any, Any]) -> bool:
    """Whether the caller's variable is the only way to ``array`` and its memory."""
    if not array.flags.writeable or sys.getrefcount(array) > _SOLE:
        return False
    if array.flags.owndata:
        return True
    # An array in the arena lies over an array of bytes that the Lease owns. NumPy makes that one
    # the base of every further view, so its references tell whether there is any.
    memory = array.base
    return (
        type(memory) is np.ndarray
        and isinstance(memory.base, Lease)
        and memory.nbytes == array.nbytes
        and sys.getrefcount(memory) <= _SOLE
    )


def _references(array: np.ndarray[Any, Any]) -> int:
    return sys.getrefcount(array)


def _sole_references() -> int:
    array = np.empty(0)
    return _references(array)


#: What ``is_exclusive`` counts for an array that only its caller holds (it differs by interpreter).
_SOLE = _sole_references()
