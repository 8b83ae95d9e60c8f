"""ReusedMemory: memory for the results of a compiled case, which each run takes again.

Results of a step need less memory than caches hold, if each takes what an earlier one has left. A
block of the arena is made for workers, which no result that ends inside the case ever reaches.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_backend import LARGE_BYTES

Array = np.ndarray[Any, Any]

#: The bytes that one case keeps, alive or not. Further results come from the arena.
KEPT_BYTES_MAX = 32 * 2**20
_CACHE_LINE_BYTES = 64


class ReusedMemory:
    """Gives arrays whose memory it takes again as soon as no view of it is left. Thread-safe.

    Args:
        otherwise: ``otherwise(shape, dtype)`` gives the arrays that it has no room for.
    """

    def __init__(self, otherwise: Callable[[tuple[int, ...], Any], Array]) -> None:
        self._otherwise = otherwise
        #: By bytes each memory, and where a cache line begins in it.
        self._kept: dict[int, list[tuple[Array, int]]] = {}
        self._nbytes = 0
        #: Never waited for: a finaliser or signal handler may enter while its own thread is inside.
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised C-contiguous array, at the start of a cache line if it is large."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LARGE_BYTES:
            return np.empty(shape, dtype)
        if not self._lock.acquire(blocking=False):
            return self._otherwise(shape, dtype)
        try:
            kept = self._kept.setdefault(nbytes, [])
            found = _first_idle(kept, _IDLE)
            if found is None:
                if self._nbytes + nbytes > KEPT_BYTES_MAX:
                    return self._otherwise(shape, dtype)
                memory = np.empty(nbytes + _CACHE_LINE_BYTES, np.uint8)
                found = memory, -memory.ctypes.data % _CACHE_LINE_BYTES
                kept.append(found)
                self._nbytes += nbytes
            return np.ndarray(shape, dtype, *found)
        finally:
            self._lock.release()


def _first_idle(kept: list[tuple[Array, int]], count: int) -> tuple[Array, int] | None:
    """The first memory with at most ``count`` references."""
    for found in kept:
        if sys.getrefcount(found[0]) <= count:
            return found
    return None


#: The references that ``_first_idle`` counts where nobody has a view; each view is one more.
_IDLE = next(n for n in range(9) if _first_idle([(np.empty(0), 0)], n) is not None)
