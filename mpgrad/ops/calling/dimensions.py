"""Dimension arguments: PyTorch's ``dim``/``keepdim`` or NumPy's ``axis``/``keepdims``."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from mpgrad.recording.tensors.tensor import Tensor

#: The types of lengths and dimensions: Python's, and NumPy's.
INTEGERS = (int, np.integer)
#: Those that are reduced, ascending; None for all of them.
Dims = tuple[int, ...] | None


def as_tuple(value: Any) -> tuple[int, ...]:
    """One number, or several, as a tuple of Python's."""
    return (int(value),) if isinstance(value, INTEGERS) else tuple(map(index, value))


def is_given(value: Any) -> bool:
    """Whether an option is there: neither None nor an empty list."""
    return value is not None and not (isinstance(value, tuple | list) and not value)


def one_dim(dim: Any, ndim: int) -> int:
    """``dim`` counted from the front; a 0-d tensor has dimension 0 too, as in PyTorch.

    Raises:
        IndexError: there is no such dimension.
        TypeError: ``dim`` is no integer, nor a Tensor of one without dimensions.
    """
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer):
        if not isinstance(dim, Tensor) or dim.ndim or dim.dtype.kind not in "iu":
            raise TypeError(f"dim must be an int, not {type(dim).__name__}")
        dim = int(dim)
    limit = max(ndim, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got "
            f"{dim})"
        )
    return int(dim) % limit


def some_dims(dim: Any, axis: Any, ndim: int) -> tuple[int, ...] | None:
    """The dimensions to reduce, ascending; None for all of them.

    Raises:
        IndexError: there is no such dimension.
        RuntimeError: one is named twice.
        TypeError: both ``dim`` and ``axis`` are given.
    """
    dim = either("dim", dim, "axis", axis)
    several = isinstance(dim, tuple | list)
    if dim is None or ndim == 0 or (several and not dim):
        return None
    dims = [one_dim(d, ndim) for d in (dim if several else (dim,))]
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"a dimension appears multiple times in the list of dims {dim}")
    return tuple(sorted(dims))


def either(name: str, value: Any, alias: str, alias_value: Any) -> Any:
    """The one of two spellings of an argument that was given.

    Raises:
        TypeError: both were.
    """
    if alias_value is None:
        return value
    if value is not None and value is not False:
        raise TypeError(f"got both {name}={value} and {alias}={alias_value}, which mean the same")
    return alias_value


def kept_shape(shape: tuple[int, ...], dims: tuple[int, ...] | None) -> tuple[int, ...]:
    """``shape`` after a reduction over ``dims`` that keeps them with length 1."""
    return tuple(1 if dims is None or i in dims else n for i, n in enumerate(shape))


def keep(xp: Any, reduced: Any, shape: tuple[int, ...], dims: Dims) -> Any:
    """The result of a reduction of ``shape`` with its ``dims`` restored with length 1."""
    kept = kept_shape(shape, dims)
    return reduced if reduced.shape == kept else xp.reshape(reduced, kept)


def count(shape: tuple[int, ...], dims: tuple[int, ...] | None) -> int:
    """How many elements a reduction over ``dims`` takes together."""
    product = 1
    for i, length in enumerate(shape):
        if dims is None or i in dims:
            product *= length
    return product
