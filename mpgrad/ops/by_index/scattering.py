"""Elements put or added at indices: ``scatter``, ``index_add`` and others.

A tensor without dimensions counts as a vector of one element, as in PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.index_checks import (
    as_vector,
    check_bounds,
    check_covered,
    check_index_dtype,
)
from mpgrad.ops.by_index.indexing import getitem, narrow, scatter_index
from mpgrad.ops.by_index.overwriting import masked_fill, put_index
from mpgrad.ops.by_index.selection import check_mask
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import stored
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.joining import broadcast_tensors
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["index_add", "index_copy", "index_fill", "masked_scatter", "scatter", "scatter_add"]


def _of_vectors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` for vectors, also for tensors without dimensions."""

    @functools.wraps(function)
    def public(input: Tensor, dim: int, index: Tensor, *others: Any, **options: Any) -> Tensor:
        dim = one_dim(dim, input.ndim)
        others = tuple(as_vector(x) if isinstance(x, Tensor) else x for x in others)
        options = {
            name: as_vector(x) if isinstance(x, Tensor) else x for name, x in options.items()
        }
        result = function(as_vector(input), dim, as_vector(index), *others, **options)
        return result if input.ndim else reshape(result, ())

    return public


# ------------------------------------------------------------------------ a place per element


def _along(name: str, input: Tensor, dim: int, index: Tensor, src: Any) -> tuple[list[Tensor], Any]:
    """The target of each element of ``index`` in ``input``, and its element of ``src``."""
    check_index_dtype(name, index)
    if not index._array.size and index.ndim != input.ndim:  # which names no element in any way
        index = reshape(index, (0,) * input.ndim)
        src = (
            reshape(narrow(reshape(src, -1), 0, 0, 0), index.shape)
            if isinstance(src, Tensor)
            else src
        )
    check_covered(name, index, input, dim)
    check_bounds(name, index._array, dim, input.shape[dim], RuntimeError)
    grids = np.ix_(*(np.arange(n) for n in index.shape))
    places = [index if d == dim else Tensor(grid) for d, grid in enumerate(grids)]
    if not isinstance(src, Tensor):
        return places, stored(src, input._array.dtype)
    if src.dtype != input.dtype:
        raise RuntimeError(
            f"{name}(): Expected self.dtype to be equal to src.dtype, not {input.dtype} and "
            f"{src.dtype}"
        )
    if src.ndim != index.ndim:
        raise RuntimeError(
            f"{name}(): Index tensor must have the same number of dimensions as src tensor"
        )
    if any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
        raise RuntimeError(
            f"{name}(): Expected index {list(index.shape)} to be no larger size than src "
            f"{list(src.shape)}"
        )
    return places, getitem(src, tuple(slice(0, n) for n in index.shape))


@_of_vectors
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None
) -> Tensor:
    """``input`` with each element of ``src`` (or one number) put at ``index`` along ``dim``.

    ``index`` may be shorter than ``src`` and, except along ``dim``, than ``input``. Where it is
    repeated, one of the elements stays.

    Args:
        input: any tensor.
        dim: of ``index``.
        index: of int32 or int64.
        src: a tensor of the dtype of ``input``, or a number.
        reduce: ``"add"`` or ``"multiply"`` with the old element, instead of replacing it.

    Raises:
        RuntimeError: shapes or dtypes do not fit, or an index is out of range.
    """
    places, values = _along("scatter", input, dim, index, src)
    key = (INDEX,) * input.ndim
    if reduce is None:
        return put_index(input, values, key, places)
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    if not isinstance(values, Tensor):
        values = add(zeros(index.shape, dtype=input.dtype, device=input.device), values)
    if reduce == "add":
        return add(input, scatter_index(values, key, places, input.shape))
    return _multiplied(input, values, places)


def _multiplied(input: Tensor, values: Tensor, places: list[Tensor]) -> Tensor:
    """``input`` times each of ``values`` at its place, on the CPU; not differentiable."""
    if is_grad_enabled() and (input.requires_grad or values.requires_grad):
        raise RuntimeError("scatter(): reduce='multiply' has no derivative")
    product = on_host(input._array).copy()
    numbers = np.arange(product.size).reshape(product.shape)
    flat = numbers[tuple(on_host(place._array) for place in places)]
    np.multiply.at(product.reshape(-1), flat.reshape(-1), on_host(values._array).reshape(-1))
    return beside(input, product)


@_of_vectors
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input`` with each element of ``src`` added at ``index`` along ``dim``.

    ``index`` may be shorter than ``src`` and, except along ``dim``, than ``input``.

    Raises:
        RuntimeError: shapes or dtypes do not fit, or an index is out of range.
    """
    places, values = _along("scatter_add", input, dim, index, src)
    key = (INDEX,) * input.ndim
    return add(input, scatter_index(values, key, places, input.shape))


def aimed(
    name: str, input: Tensor, dim: int, index: Tensor, src: Tensor
) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """For operators that treat ``input`` as one line: its shape, the place of each element of
    ``index`` in that line, and its element of ``src``.

    Raises:
        RuntimeError: as of ``scatter``.
    """
    shape = tuple(input.shape)
    input, index, src = as_vector(input), as_vector(index), as_vector(src)
    dim = one_dim(dim, input.ndim)
    places, values = _along(name, input, dim, index, src)
    arrays = np.broadcast_arrays(*(on_host(place._array) for place in places))
    flat = np.ravel_multi_index(tuple(arrays), input.shape) if index.numel() else arrays[0]
    return shape, beside(input, flat.reshape(-1)), reshape(values, -1)


# ------------------------------------------------------------------------ a place per slice


def slices(
    name: str, input: Tensor, dim: int, index: Tensor, source: Tensor, error: type[Exception]
) -> tuple[Any, ...]:
    """The key of the slices at ``index``, into which those of ``source`` fit."""
    check_index_dtype(name, index)
    if index.ndim != 1:
        raise IndexError(f"{name}(): Index should have dimension 1 or 0 (got {index.ndim})")
    if source.dtype != input.dtype:
        raise RuntimeError(
            f"{name}(): self ({input.dtype}) and source ({source.dtype}) must have the same dtype"
        )
    if source.ndim != input.ndim:
        raise error(
            f"{name}(): source tensor shape must match self tensor shape, excluding the specified "
            f"dimension. Got self.shape = {list(input.shape)} source.shape = {list(source.shape)}"
        )
    if index.shape[0] != source.shape[dim]:
        raise error(
            f"{name}(): Number of indices ({index.shape[0]}) should be equal to source.size(dim): "
            f"({source.shape[dim]}), for dim: {dim}"
        )
    lengths = zip(input.shape, source.shape, strict=True)
    if any(n != m for d, (n, m) in enumerate(lengths) if d != dim):
        raise RuntimeError(
            f"{name}(): source tensor shape must match self tensor shape, excluding the specified "
            f"dimension. Got self.shape = {list(input.shape)} source.shape = {list(source.shape)}"
        )
    check_bounds(name, index._array, dim, input.shape[dim])
    return (slice(None),) * dim + (INDEX,)


@_of_vectors
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """``input`` plus ``alpha`` times the slices of ``source``, added at ``index`` along ``dim``.

    Raises:
        IndexError: an index is out of range.
        RuntimeError: shapes or dtypes do not fit.
    """
    key = slices("index_add", input, dim, index, source, RuntimeError)
    scaled = source if alpha == 1 else mul(source, stored(alpha, input._array.dtype))
    return add(input, scatter_index(scaled, key, [index], input.shape))


@_of_vectors
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``input`` with the slices of ``source`` put at ``index`` along ``dim``.

    Raises:
        IndexError: an index is out of range, or there are not as many as slices.
        RuntimeError: shapes or dtypes do not fit.
    """
    key = slices("index_copy", input, dim, index, source, IndexError)
    return put_index(input, source, key, [index])


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """``input`` with a number (or 0-d tensor) in the slices at ``index`` along ``dim``.

    Raises:
        IndexError: an index is no int64 or out of range.
        RuntimeError: ``value`` has dimensions, or ``input`` cannot hold it.
    """
    if index.dtype != np.int64:
        raise IndexError(f"index_fill(): Expected dtype int64 for index, not {index.dtype}")
    dim = one_dim(dim, input.ndim)
    # As a mask, so that the gradient of an index that is repeated counts once.
    length = input.shape[dim] if input.ndim else 1
    marks = put_index(zeros(length, dtype=bool, device=input.device), True, (INDEX,), [index])
    mask = reshape(marks, (-1, *(1,) * (input.ndim - dim - 1)) if input.ndim else ())
    return masked_fill(input, mask, value)


# ------------------------------------------------------------------------ by mask


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``input`` with the first elements of ``source`` put where ``mask`` is true (both broadcast).

    Raises:
        RuntimeError: the mask is not boolean, the dtypes differ, or there are not enough elements.
    """
    check_mask("masked_scatter", mask)
    if input.dtype != source.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype} and {source.dtype}"
        )
    input, mask = broadcast_tensors(input, mask)
    count = int(mask._array.sum())
    if count > source._array.size:
        raise RuntimeError(
            f"masked_scatter: Expected at least {count} elements in the source, got "
            f"{source._array.size}"
        )
    return put_index(input, narrow(reshape(source, -1), 0, 0, count), (INDEX,), [mask])
