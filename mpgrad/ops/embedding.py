"""Whole numbers as vectors: rows of a table, or one at the place of the number."""

from __future__ import annotations

import numpy as np

from mpgrad.device_arrays import on_host
from mpgrad.dispatch import unrecorded
from mpgrad.ops.indexing import pick
from mpgrad.tensor import Tensor


def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """The rows of ``weight`` at ``input``.

    Args:
        input: indices, of any shape.
        weight: (rows, features).

    Returns:
        (*shape of ``input``, features).

    Raises:
        RuntimeError: the indices are no integers, or ``weight`` is no matrix.
        IndexError: there is no such row.
    """
    if input.dtype.kind not in "iu" or weight.ndim != 2:
        raise RuntimeError(
            f"embedding: expected integer indices and a 2-D weight, but got {input.dtype} and "
            f"{weight.ndim}-D"
        )
    _check_range(input, weight.shape[0])
    return pick(weight, 0, input)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros with a 1 at the index, in a new last dimension; as many classes as needed if -1.

    Raises:
        RuntimeError: the indices are no integers.
        IndexError: an index is negative or no class.
    """
    if tensor.dtype.kind not in "iu":
        raise RuntimeError(f"one_hot is only applicable to index tensors, not to {tensor.dtype}")
    array = on_host(tensor._array)
    classes = (int(array.max()) + 1 if array.size else 0) if num_classes == -1 else num_classes
    _check_range(tensor, classes)
    return unrecorded(
        lambda xp, x: xp.astype(xp.equal(x[..., None], xp.arange(classes)), np.int64), tensor
    )


def _check_range(indices: Tensor, count: int) -> None:
    array = on_host(indices._array)
    if array.size and (array.min() < 0 or array.max() >= count):
        raise IndexError(f"index out of range: {array.min()} to {array.max()} of {count}")
