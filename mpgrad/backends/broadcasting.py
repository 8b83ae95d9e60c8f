"""The shape that several shapes broadcast to, or which of their lengths do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
    """What PyTorch would raise where an array library raised ``error`` in a forward of ``name``."""
    if isinstance(error, IndexError):
        return error
    if isinstance(error, TypeError):
        dtypes = [str(array.dtype) for array in arrays if hasattr(array, "dtype")]
        return NotImplementedError(
            f"{name}() is not implemented for {' and '.join(dtypes)} ({error})"
        )
    try:
        broadcast_shape(*(array.shape for array in arrays if hasattr(array, "shape")))
    except RuntimeError as mismatch:
        return RuntimeError(f"{name}(): {mismatch}")
    return RuntimeError(f"{name}(): {error}")
