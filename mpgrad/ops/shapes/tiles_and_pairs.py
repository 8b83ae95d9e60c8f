"""Tensors put together from pieces of others: tiles, combinations, diagonals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.ops.by_index.indexing import diagonal_scatter, gather, index_select
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.elementwise.comparison import lt
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.joining import meshgrid
from mpgrad.ops.shapes.shape import broadcast_to, flip, repeat, reshape, stack, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "cartesian_prod",
    "combinations",
    "diag_embed",
    "fliplr",
    "flipud",
    "take_along_dim",
    "tile",
]


def tile(input: Tensor, *dims: Any) -> Tensor:
    """``input`` side by side with itself, ``dims`` times along the last dimensions."""
    counts = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    return repeat(input, (*(1,) * (input.ndim - len(counts)), *counts))


def atleast_1d(*tensors: Any) -> Any:
    """As vectors: a 0-d tensor gets a dimension of length 1; several tensors as a tuple."""
    return _each(tensors, lambda x: x if x.ndim else reshape(x, 1))


def atleast_2d(*tensors: Any) -> Any:
    """As matrices: a tensor with fewer dimensions becomes one row; several tensors as a tuple."""
    return _each(tensors, lambda x: x if x.ndim > 1 else reshape(x, (1, -1)))


def atleast_3d(*tensors: Any) -> Any:
    """With three dimensions: a vector lies in the middle one, a matrix in the first two."""
    return _each(
        tensors,
        lambda x: x if x.ndim > 2 else unsqueeze(x, -1) if x.ndim == 2 else reshape(x, (1, -1, 1)),
    )


def _each(tensors: tuple[Any, ...], change: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return change(tensors[0])
    several = tensors[0] if len(tensors) == 1 else tensors
    return tuple(change(tensor) for tensor in several)


def fliplr(input: Tensor) -> Tensor:
    """In reverse along the second dimension.

    Raises:
        RuntimeError: there is none.
    """
    if input.ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """In reverse along the first dimension.

    Raises:
        RuntimeError: there is none.
    """
    if input.ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, as rows; of one vector itself."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(grid, -1) for grid in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of ``r`` elements of a vector in their order, as rows.

    Raises:
        RuntimeError: ``input`` is no vector, or ``r`` is negative.
    """
    if input.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return beside(input, np.empty(0, input._array.dtype))
    choose: Any = itertools.combinations
    if with_replacement:
        choose = itertools.combinations_with_replacement
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1)
    return reshape(index_select(input, 0, beside(input, places)), (len(places) // r, r))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices over ``dim1`` and ``dim2`` that have the last dimension as their diagonal.

    Raises:
        RuntimeError: both are the same dimension.
    """
    ndim = input.ndim + 1
    first, second = one_dim(dim1, ndim), one_dim(dim2, ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for place in sorted((first, second)):
        shape.insert(place, size)
    return diagonal_scatter(input, tuple(shape), offset, first, second)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements at ``indices`` along ``dim`` (of the flattened input, if it is None).

    The other dimensions of both broadcast. Negative indices count from the end.

    Raises:
        RuntimeError: ``indices`` are not int64, have more or fewer dimensions than ``input``, or do
            not broadcast.
    """
    if indices.dtype != np.int64:
        raise RuntimeError(
            f"take_along_dim(): dtype of indices should be int64 but got {indices.dtype}"
        )
    if dim is None:
        input, indices, dim = reshape(input, -1), reshape(indices, -1), 0
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "take_along_dim(): input and indices should have the same number of dimensions, but "
            f"got {input.ndim} dimensions for input, and {indices.ndim} dimensions for indices"
        )
    dim = one_dim(dim, input.ndim)
    common = broadcast_shape(
        *(tuple(1 if d == dim else n for d, n in enumerate(x.shape)) for x in (input, indices))
    )
    along = [
        broadcast_to(x, tuple(x.shape[dim] if d == dim else n for d, n in enumerate(common)))
        for x in (input, indices)
    ]
    places = where(lt(along[1], 0), add(along[1], input.shape[dim]), along[1])
    return gather(along[0], dim, places)
