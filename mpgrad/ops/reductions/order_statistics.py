"""Order statistics and moments made of other operators: ``median``, ``cummax``, ``nanmean``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import take_along_axis
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import refuse_complex
from mpgrad.ops.elementwise.comparison import isnan, logical_not
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import ValuesAndIndices, amax, amin
from mpgrad.ops.reductions.reduction import mean, std
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import clone, reshape, squeeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "aminmax",
    "cummax",
    "cummin",
    "kthvalue",
    "median",
    "nanmean",
    "nansum",
    "std_mean",
]


class Extrema(NamedTuple):
    """The smallest and the largest elements."""

    min: Tensor
    max: Tensor


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Extrema:
    """The smallest and the largest element over ``dim``; ties share the gradient."""
    return Extrema(amin(input, dim, keepdim), amax(input, dim, keepdim))


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> tuple[Tensor, Tensor]:
    """``(std(input, ...), mean(input, ...))``."""
    if isinstance(dim, bool):  # std_mean(x, unbiased)
        dim, unbiased = None, dim
    deviation = std(input, dim, unbiased, keepdim, correction=correction)
    return deviation, mean(input, dim, keepdim=keepdim)


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over ``dim`` without NaNs, computed in ``dtype`` if it is given."""
    refuse_complex("nansum", input)
    numbers = where(isnan(input), 0, input) if input.dtype.is_floating_point else input
    return sum_over(numbers, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over ``dim`` without NaNs, computed in ``dtype`` if it is given.

    Raises:
        RuntimeError: ``input`` holds integers or booleans.
    """
    if input.dtype.kind not in "fc":
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{input.dtype}"
        )
    total = nansum(input, dim, keepdim, dtype=dtype)
    return total / sum_over(logical_not(isnan(input)), dim, keepdim)


def cummax(input: Tensor, dim: int) -> ValuesAndIndices:
    """(values, indices) of the largest element so far along ``dim``, of equals the last."""
    return _cumulative(input, dim, np.maximum)


def cummin(input: Tensor, dim: int) -> ValuesAndIndices:
    """(values, indices) of the smallest element so far along ``dim``; see ``cummax``."""
    return _cumulative(input, dim, np.minimum)


def _cumulative(input: Tensor, dim: int, chosen: np.ufunc) -> ValuesAndIndices:
    dim = one_dim(dim, input.ndim)
    array = on_host(input._array)
    if array.ndim == 0:
        return ValuesAndIndices(clone(input), beside(input, np.zeros((), np.int64)))
    attains = (array == chosen.accumulate(array, dim)) | (array != array)
    places = np.arange(array.shape[dim]).reshape([-1] + [1] * (array.ndim - 1 - dim))
    indices = beside(input, np.maximum.accumulate(np.where(attains, places, 0), dim))
    return ValuesAndIndices(take_along_axis(input, indices, dim), indices)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """(values, indices) of the ``k``-th smallest element along ``dim``; NaN counts as largest.

    Raises:
        IndexError: there are no elements along ``dim``.
        RuntimeError: there is no ``k``-th element.
    """
    dim = one_dim(dim, input.ndim)
    length = input.shape[dim] if input.ndim else 1
    if length == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {dim} to have non-zero size.")
    if not 1 <= k <= length:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    return _ranked(input, k - 1, dim, keepdim, nan_first=False)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the smaller one of two; NaN if there is a NaN.

    Along ``dim`` as (values, indices), over all elements as a tensor without dimensions.

    Raises:
        IndexError: there are no elements along ``dim``.
    """
    if dim is None:
        if input._array.size == 0:
            return sum_over(input) + float("nan")
        return evenly(input, median(reshape(input.detach(), -1), 0).values)
    dim = one_dim(dim, input.ndim)
    length = input.shape[dim] if input.ndim else 1
    if length == 0:
        raise IndexError(f"median(): Expected reduction dim {dim} to have non-zero size.")
    return _ranked(input, (length - 1) // 2, dim, keepdim, nan_first=True)


def _shares(xp: Any, grad: Any, input: Any, value: Any) -> Any:
    """``grad``, shared evenly by all elements that equal ``value`` (NaN equals NaN)."""
    both_nan = xp.logical_and(xp.isnan(input), xp.isnan(value))
    is_value = xp.logical_or(xp.equal(input, value), both_nan)
    share = xp.divide(grad, xp.astype(xp.sum(is_value), grad.dtype))
    return xp.where(is_value, share, 0.0)


_evenly = operator("median", lambda xp, input, value: xp.copy(value), input=_shares)


def evenly(input: Tensor, value: Tensor) -> Tensor:
    """``value``, which is an element of ``input``; all that equal it share its gradient."""
    return call(_evenly, input, value)


def _ranked(
    input: Tensor, rank: int, dim: int, keepdim: bool, *, nan_first: bool
) -> ValuesAndIndices:
    array = on_host(input._array)
    if array.ndim == 0:
        return ValuesAndIndices(clone(input), beside(input, np.zeros((), np.int64)))
    places = np.argsort(array, dim, kind="stable").take([rank], dim)
    if nan_first and array.dtype.kind == "f":
        is_nan = np.isnan(array)
        first = np.expand_dims(is_nan.argmax(dim), dim)
        places = np.where(is_nan.any(dim, keepdims=True), first, places)
    indices = beside(input, places)
    values = take_along_axis(input, indices, dim)
    if keepdim:
        return ValuesAndIndices(values, indices)
    return ValuesAndIndices(squeeze(values, dim), squeeze(indices, dim))
