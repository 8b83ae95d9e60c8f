"""Quantiles, frequent values, covariances and integrals by trapezoids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import narrow, select, take_along_axis
from mpgrad.ops.by_index.selection import diff
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.elementwise.arithmetic import add, lerp, mul, sqrt, sub
from mpgrad.ops.elementwise.complex_numbers import conj
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import ValuesAndIndices
from mpgrad.ops.reductions.order_statistics import evenly
from mpgrad.ops.reductions.ordering import sort
from mpgrad.ops.reductions.reduction import cumsum
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import clone, movedim, reshape, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "mode",
    "nanmedian",
    "nanquantile",
    "quantile",
    "trapezoid",
    "trapz",
]

_WAYS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The elements below which the fractions ``q`` of all elements lie; NaN where there is one.

    Args:
        input: float32 or float64.
        q: a number from 0 to 1, or a vector of them, which becomes a first dimension.
        dim: along which; None for all elements.
        keepdim: keep it with length 1.
        interpolation: between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"``
            or ``"nearest"``.

    Raises:
        RuntimeError: a fraction is out of range, the dtypes differ, or there are no elements.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """``quantile`` without NaNs."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def _quantile(
    name: str, input: Tensor, q: Any, dim: Any, keepdim: bool, way: str, skip: bool
) -> Tensor:
    if input.dtype.kind != "f" or input.dtype.itemsize < 4:
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if way not in _WAYS:
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, "
            f"but got {way}"
        )
    if input.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if isinstance(q, Tensor) and q.dtype != input.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    fractions = np.asarray(on_host(q._array) if isinstance(q, Tensor) else q, np.float64)
    if fractions.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    if np.any((fractions < 0) | (fractions > 1)):
        raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
    shape = tuple(input.shape)
    if dim is None:
        flat, kept = reshape(input, (-1,)), (1,) * input.ndim
    else:
        at = one_dim(dim, input.ndim)
        flat = movedim(input, at, -1) if input.ndim else reshape(input, (1,))
        kept = tuple(1 if d == at else n for d, n in enumerate(shape))
    found = _ranked(
        flat, reshape(q, (-1,)) if isinstance(q, Tensor) else None, fractions, way, skip
    )
    lead = fractions.shape
    if keepdim:
        return reshape(found, (*lead, *kept))
    return reshape(found, (*lead, *flat.shape[:-1]))


def _ranked(x: Tensor, q: Tensor | None, fractions: Any, way: str, skip: bool) -> Tensor:
    """(fractions, ...): of the last dimension; ``q``: the fractions, where they are a Tensor."""
    ordered, values = sort(x, -1).values, on_host(x._array)
    blank = np.isnan(values)
    counts = (~blank).sum(-1) if skip else np.full(values.shape[:-1], values.shape[-1])
    ranks = fractions.reshape(-1, *(1,) * counts.ndim) * np.maximum(counts - 1, 0)
    if not skip:
        ranks = np.where(blank.any(-1), values.shape[-1] - 1, ranks)
    ranks = ranks.astype(values.dtype)
    if way == "lower":
        ranks = np.floor(ranks)
    elif way == "higher":
        ranks = np.ceil(ranks)
    elif way == "nearest":
        ranks = np.rint(ranks)
    low = np.floor(ranks)
    weight = np.full(ranks.shape, 0.5, values.dtype) if way == "midpoint" else ranks - low
    weight = np.where(np.ceil(ranks) == low, 0, weight).astype(values.dtype)
    below, above = (
        take_along_axis(ordered, beside(x, np.moveaxis(p.astype(np.int64), 0, -1)), x.ndim - 1)
        for p in (low, np.ceil(ranks))
    )
    share = beside(x, np.ascontiguousarray(np.moveaxis(weight, 0, -1)))
    if q is not None and q.requires_grad and way == "linear":
        steps = beside(x, np.maximum(counts - 1, 0)[..., None].astype(values.dtype))
        slope = mul(q, steps)
        share = add(share, sub(slope, slope.detach()))
    between = lerp(below, above, share)
    # A weight of 0 leaves an infinite neighbour out.
    infinite = np.isinf(on_host(above._array)) | np.isinf(on_host(below._array))
    found = where(beside(x, np.moveaxis(weight == 0, 0, -1) & infinite), below, between)
    return movedim(found, -1, 0)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element without NaNs, the smaller one of two; see ``median``."""
    if dim is None and input._array.size == 0:
        return input.new_full((), math.nan)
    if dim is None:
        return evenly(input, nanmedian(reshape(input.detach(), (-1,)), 0).values)
    dim = one_dim(dim, input.ndim)
    array = on_host(input._array)
    if array.ndim == 0:
        return ValuesAndIndices(clone(input), beside(input, np.zeros((), np.int64)))
    blank = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    if array.shape[dim] == 0:
        raise IndexError(
            f"nanmedian(): Expected reduction dim {dim} to have non-zero size for input of shape "
            f"{list(array.shape)}"
        )
    order = np.argsort(array, dim, kind="stable")
    rank = np.maximum((~blank).sum(dim, keepdims=True) - 1, 0) // 2
    indices = beside(input, np.take_along_axis(order, rank, dim))
    values = take_along_axis(input, indices, dim)
    if keepdim:
        return ValuesAndIndices(values, indices)
    return ValuesAndIndices(squeeze(values, dim), squeeze(indices, dim))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """(values, indices) of the most frequent elements along ``dim``, of several the smallest.

    The index is that of its last place.
    """
    dim = one_dim(dim, input.ndim)
    array = on_host(input._array)
    if array.ndim == 0:
        return ValuesAndIndices(clone(input), beside(input, np.zeros((), np.int64)))
    if not array.shape[dim]:
        raise IndexError(f"mode(): Expected reduction dim {dim} to have non-zero size.")
    lines = np.moveaxis(array, dim, -1)
    places = np.empty(lines.shape[:-1], np.int64)
    for at in np.ndindex(places.shape):
        values, counts = np.unique(lines[at], return_counts=True, equal_nan=False)
        chosen = values[counts.argmax()]
        same = lines[at] == chosen if chosen == chosen else lines[at] != lines[at]
        places[at] = np.flatnonzero(same)[-1]
    indices = beside(input, np.expand_dims(places, dim))
    found = take_along_axis(input, indices, dim)
    if keepdim:
        return ValuesAndIndices(found, indices)
    return ValuesAndIndices(squeeze(found, dim), squeeze(indices, dim))


# ------------------------------------------------------------------------------------ covariances


def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariances of variables, which are the rows of ``input``.

    Args:
        input: (variables, observations), or one variable.
        correction: subtracted from the number of observations.
        fweights: how often each observation counts, whole numbers.
        aweights: how much it counts.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if input.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    rows = reshape(input, (1, -1)) if input.ndim < 2 else input
    count = rows.shape[1]
    if fweights is not None and fweights.dtype.kind not in "iu":
        raise RuntimeError(
            "cov(): expected fweights to have integral dtype but got fweights with "
            f"{fweights.dtype}"
        )
    if any(w is not None and bool((w < 0).any().item()) for w in (fweights, aweights)):
        raise RuntimeError("cov(): fweights and aweights cannot be negative")
    weights = fweights
    if aweights is not None:
        weights = aweights if weights is None else mul(weights, aweights)
    if weights is not None and tuple(weights.shape) != (count,):
        raise RuntimeError(
            f"cov(): expected weights to have {count} elements, but got {list(weights.shape)}"
        )
    total: Any = count if weights is None else sum_over(weights)
    weighted = rows if weights is None else mul(rows, weights)
    centered = sub(rows, sum_over(weighted, 1, True) / total)
    if weights is None or correction == 0 or aweights is None:
        divisor = total - correction
    else:
        divisor = total - correction * sum_over(mul(weights, aweights)) / total
    divisor = clamp(divisor, min=0) if isinstance(divisor, Tensor) else max(divisor, 0)
    right = centered if weights is None else mul(centered, weights)
    found = matmul(centered, conj(right).T) / divisor
    return found if rows.shape[0] != 1 else reshape(found, ())


def corrcoef(input: Tensor) -> Tensor:
    """The correlations of variables, which are the rows of ``input``.

    Raises:
        RuntimeError: there are more than two dimensions.
    """
    found = cov(input)
    if found.ndim == 0:
        return found / found
    deviations = sqrt(found.diagonal().real if found.dtype.kind == "c" else found.diagonal())
    scaled = found / unsqueeze(deviations, 1) / deviations
    return scaled if found.dtype.kind == "c" else clamp(scaled, -1, 1)


# -------------------------------------------------------------------------------------- integrals


def _areas(y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    dim = one_dim(dim, y.ndim)
    count = max(y.shape[dim] - 1, 0)
    both = add(narrow(y, dim, min(1, y.shape[dim]), count), narrow(y, dim, 0, count))
    if x is None:
        return mul(both, dx / 2)
    if x.ndim == 1:
        if x.shape[0] != y.shape[dim]:
            raise RuntimeError(
                f"trapezoid: There must be one `x` value for each sample point, not {x.shape[0]} "
                f"for {y.shape[dim]}"
            )
        steps = reshape(sub(x[1:], x[:-1]), (-1, *(1,) * (y.ndim - dim - 1)))
    else:
        missing = max(y.ndim - x.ndim, 0)
        steps = diff(reshape(x, (*(1,) * missing, *x.shape)), dim=dim)
    return mul(mul(both, steps), 0.5)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """The integral of samples along ``dim`` by trapezoids.

    Args:
        y: the samples.
        x: where they lie; or
        dx: how far apart.
        dim: along which they follow each other.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    dim = one_dim(dim, y.ndim)
    if y.shape[dim] == 0:
        return y.new_zeros(y.shape[:dim] + y.shape[dim + 1 :])
    if x is not None:
        return sum_over(_areas(y, x, dx, dim), dim)
    ends = add(select(y, dim, 0), select(y, dim, -1))
    return mul(sub(sum_over(y, dim), mul(ends, 0.5)), dx)


trapz = trapezoid


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Any = 1, dim: int = -1
) -> Tensor:
    """The integral up to each sample; see ``trapezoid``."""
    return cumsum(_areas(y, x, dx, dim), one_dim(dim, y.ndim))
