"""Checks of index tensors: their dtypes, their range, and their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import value_check
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.tensors.tensor import Tensor

_WHOLE = (np.dtype(np.int32), np.dtype(np.int64))


def check_index_dtype(name: str, index: Tensor, error: type[Exception] = RuntimeError) -> None:
    """Raise ``error`` unless ``index`` holds int32 or int64, or nothing."""
    if index.dtype not in _WHOLE and index._array.size:
        raise error(f"{name}(): Expected dtype int32 or int64 for index, but got {index.dtype}")


@value_check
def check_bounds(
    name: str, array: Any, dim: int, size: int, error: type[Exception] = IndexError
) -> None:
    """Raise ``error`` unless all elements of ``array``, an index, are in [0, ``size``).

    An index on a GPU is not checked, because that would wait for the GPU.
    """
    if not isinstance(array, np.ndarray) or array.size == 0:
        return
    for found in (array.min(), array.max()):
        if not 0 <= found < size:
            raise error(
                f"{name}(): index {found} is out of bounds for dimension {dim} with size {size}"
            )


def check_covered(name: str, index: Tensor, input: Tensor, dim: int) -> None:
    """Check the shape of ``index``.

    Raises:
        RuntimeError: ``index`` has another number of dimensions than ``input``, or is longer than
            ``input`` in a dimension other than ``dim``.
    """
    if index.ndim != input.ndim:
        raise RuntimeError(
            f"{name}(): Index tensor must have the same number of dimensions as input tensor, not "
            f"{index.ndim} and {input.ndim}"
        )
    lengths = zip(index.shape, input.shape, strict=True)
    if any(n > m for d, (n, m) in enumerate(lengths) if d != dim) and index._array.size:
        raise RuntimeError(
            f"{name}(): Expected index {list(index.shape)} to be no larger than self "
            f"{list(input.shape)} apart from dimension {dim}"
        )


def as_vector(tensor: Tensor) -> Tensor:
    """``tensor``; one without dimensions as a vector of one element."""
    return tensor if tensor.ndim else reshape(tensor, (1,))
