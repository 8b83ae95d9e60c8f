"""Shapes under broadcasting and sums, and the errors of operands that do not fit together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.errors import LinAlgError


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape: lengths are equal or 1, counted from the last dimension.

    Raises:
        RuntimeError: two lengths differ.
    """
    common: list[int] = []
    for shape in shapes:
        lead = len(shape) - len(common)
        common = [1] * lead + common
        for dim, length in enumerate(shape, start=max(-lead, 0)):
            if length != 1:
                if common[dim] not in (1, length):
                    raise RuntimeError(
                        f"The size of tensor a ({common[dim]}) must match the size of tensor b "
                        f"({length}) at non-singleton dimension {dim}"
                    )
                common[dim] = length
    return tuple(common)


def refusal(name: str, arrays: Sequence[Any], error: Exception) -> Exception:
    """PyTorch's error for an ``error`` that an array library raised in a forward of ``name``."""
    if isinstance(error, IndexError):
        return IndexError(str(error).replace("axis", "dimension").replace("array", "tensor"))
    if isinstance(error, np.linalg.LinAlgError):
        return LinAlgError(f"{name}(): {error}")
    if "maximum supported dimension" in str(error):
        return RuntimeError(f"{name}(): a Tensor has at most 64 dimensions")
    if isinstance(error, TypeError):
        dtypes = [str(array.dtype) for array in arrays if hasattr(array, "dtype")]
        # Which of NumPy's functions has no loop for them says nothing to a user.
        reason = "" if "ufunc" in str(error) else f" ({error})"
        return NotImplementedError(
            f"{name}() is not implemented for {' and '.join(dtypes)}{reason}"
        )
    try:
        broadcast_shape(*(array.shape for array in arrays if hasattr(array, "shape")))
    except RuntimeError as mismatch:
        return RuntimeError(f"{name}(): {mismatch}")
    return RuntimeError(f"{name}(): {error}")


def joint_shape(*operands: Any) -> tuple[int, ...]:
    """The shape of an elementwise result of arrays and numbers, as NumPy tells it."""
    try:
        return np.broadcast(*operands).shape
    except RuntimeError:  # it knows no more than 32 dimensions
        return broadcast_shape(*(np.shape(operand) for operand in operands))


@functools.lru_cache(4096)
def stretched_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """The axes along which an array of shape ``target`` is repeated in one of ``shape``."""
    lead = len(shape) - len(target)
    inner = [lead + i for i, n in enumerate(target) if n == 1 and shape[lead + i] != 1]
    return (*range(lead), *inner)


def reduced_shape(
    shape: tuple[int, ...], axis: int | tuple[int, ...] | None, keepdims: bool
) -> tuple[int, ...]:
    """The shape of a sum over ``axis`` of an array of ``shape``."""
    axes = {a % len(shape) for a in ((axis,) if isinstance(axis, int) else axis or ())}
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)
