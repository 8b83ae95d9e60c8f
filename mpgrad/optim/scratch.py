"""Scratch: memory for what an update computes on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import device_of, empty_beside
from mpgrad.base.device import Device

Array = np.ndarray[Any, Any]


class Scratch:
    """Arrays that every update uses again, per dtype and device of the largest size seen."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, np.dtype[Any], Device], Any] = {}

    def like(self, array: Array, which: int) -> Array:
        """An uninitialised array of that shape and dtype.

        Args:
            array: on whose device it lies.
            which: the number of the array; the next request for this number gets the same memory.
        """
        key = (which, array.dtype, device_of(array))
        memory = self._memory.get(key)
        if memory is None or memory.size < array.size:
            memory = self._memory[key] = empty_beside(array, array.size)
        return memory[: array.size].reshape(array.shape)


def parts_of(array: Array) -> Array:
    """A view of complex numbers with one more dimension: real and imaginary part."""
    return array[..., None].view(array.real.dtype)  # type: ignore[no-any-return]
