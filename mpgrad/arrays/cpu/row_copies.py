"""copy_rows(): copies short rows, each of them as one item.

NumPy begins a loop for each row, which takes longer than to copy a few elements: rows of 16 bytes
take 5 to 8 times as long as items of 16 bytes (docs/profiles.md, "Layers beside PyTorch").
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Longer rows are copied as they are: items of that size are not faster.
ROW_BYTES_MAX = 512


def copy_rows(target: Array, source: Array) -> None:
    """``target[...] = source``, for arrays of one dtype and with rows of one length."""
    length, size = source.shape[-1], source.itemsize
    if 1 < length <= ROW_BYTES_MAX // size and source.strides[-1] == target.strides[-1] == size:
        item = _item(length * size)
        target, source = target.view(item), source.view(item)
    np.copyto(target, source)


@functools.lru_cache(ROW_BYTES_MAX)
def _item(nbytes: int) -> np.dtype[Any]:
    return np.dtype((np.void, nbytes))
