"""Elements in their order: ``sort``, ``argsort``, ``topk``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import getitem, take_along_axis
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import as_tensor_operand
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import ValuesAndIndices
from mpgrad.ops.shapes.shape import clone, contiguous
from mpgrad.recording.dispatch.operator_call import unrecorded
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["argsort", "sort", "topk"]


def sort(
    input: Any,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool = True,
    axis: int | None = None,
) -> ValuesAndIndices:
    """(values, indices) in order along ``dim``; equal elements keep theirs, NaN counts as largest.

    Raises:
        RuntimeError: the elements are complex.
    """
    tensor = as_tensor_operand(input)
    indices = argsort(tensor, dim if axis is None else axis, descending)
    if tensor.ndim == 0:
        return ValuesAndIndices(clone(tensor), indices)
    where = one_dim(dim if axis is None else axis, tensor.ndim)
    return ValuesAndIndices(take_along_axis(tensor, indices, where), indices)


def argsort(
    input: Any,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool = True,
    axis: int | None = None,
) -> Tensor:
    """The indices that put the elements along ``dim`` in order; equal ones keep theirs in any case.

    Raises:
        RuntimeError: the elements are complex.
    """
    tensor = as_tensor_operand(input)
    if tensor.dtype.kind == "c":
        raise RuntimeError("Sort does not support complex dtypes")
    array = tensor._array
    dim = one_dim(dim if axis is None else axis, tensor.ndim)
    if array.ndim == 0:
        return beside(tensor, np.zeros((), np.int64))
    return unrecorded(_argsort_descending if descending else _argsort, tensor, dim)


def _argsort(xp: Any, array: Any, dim: int) -> Any:
    return xp.argsort(array, dim)


def _argsort_descending(xp: Any, array: Any, dim: int) -> Any:
    # From the end, so that equal elements are in their order after the reversal.
    places = _argsort(xp, xp.flip(array, dim), dim)
    return xp.flip(array.shape[dim] - 1 - places, dim)


def topk(
    input: Any,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    axis: int | None = None,
) -> ValuesAndIndices:
    """(values, indices) of the ``k`` largest (or smallest) elements along ``dim``, in order.

    Raises:
        RuntimeError: there are fewer than ``k``, or the elements are complex.
    """
    tensor = as_tensor_operand(input)
    where = one_dim(dim if axis is None else axis, tensor.ndim)
    length = tensor.shape[where] if tensor.ndim else 1
    if not 0 <= k <= length:
        raise RuntimeError(f"selected index k out of range: {k} of {length}")
    indices = argsort(tensor, where, descending=largest)
    if tensor.ndim == 0:
        return ValuesAndIndices(clone(tensor), indices)
    first = contiguous(getitem(indices, (slice(None),) * where + (slice(0, k),)))
    return ValuesAndIndices(take_along_axis(tensor, first, where), first)
