"""Where the client's arrays are born: in its shared arena where that pays, else on the heap.

An array that lies in the arena is handed to a worker as an offset; any other is copied at each
hand-over. Knows arenas, not tensors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.backends.cpu import LARGE_BYTES
from mpgrad.shm.arena import client_arena


class VersionCounter:
    """Counts in-place changes; shared by a tensor, its views and its ``detach()``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


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
