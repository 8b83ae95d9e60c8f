"""``mg.masked``: reductions and normalisations that count only elements where a mask is true.

A ``mask`` is boolean and broadcasts to the input; without one all elements count. What is left out
takes part as the value that changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise import transcendental
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import div, sqrt, square, sub
from mpgrad.ops.elementwise.minimum_maximum import clamp_min, where
from mpgrad.ops.linear_algebra.matrix_norms import vector_norm
from mpgrad.ops.neural import activation, composed_activations
from mpgrad.ops.new_tensors.creation import ones_like
from mpgrad.ops.reductions import extrema, products, reduction
from mpgrad.ops.reductions.quantiles import nanmedian
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "amax",
    "amin",
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "log_softmax",
    "logaddexp",
    "logsumexp",
    "mean",
    "median",
    "norm",
    "normalize",
    "prod",
    "softmax",
    "softmin",
    "std",
    "sum",
    "var",
]

_SMALL = ("bool", "uint8", "int8", "int16", "int32")


def _kept(input: Tensor, mask: Tensor | None, value: Any, dtype: Any = None) -> Tensor:
    """``input`` in ``dtype``, with ``value`` where the mask is false."""
    if dtype is not None:
        input = cast(input, dtype)
    if mask is None:
        return input
    if mask.dtype.kind != "b":
        raise TypeError(f"a mask is boolean, not {mask.dtype}")
    return cast(where(mask, input, value), input.dtype)


def _of_sums(input: Tensor, dtype: Any) -> Any:
    """Small integers are summed in int64."""
    return np.int64 if dtype is None and str(input._array.dtype) in _SMALL else dtype


def sum(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The sum over ``dim`` of the elements where ``mask`` is true."""
    return reduction.sum(_kept(input, mask, 0, _of_sums(input, dtype)), dim, bool(keepdim))


def prod(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The product over ``dim`` of the elements where ``mask`` is true."""
    return products.prod(_kept(input, mask, 1, _of_sums(input, dtype)), dim, bool(keepdim))


def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The running sum along ``dim`` of the elements where ``mask`` is true."""
    return reduction.cumsum(_kept(input, mask, 0), dim, dtype=dtype or input.dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The running product along ``dim`` of the elements where ``mask`` is true."""
    return products.cumprod(_kept(input, mask, 1), dim, dtype=dtype or input.dtype)


def _limit(input: Tensor, sign: int) -> Any:
    """The largest value of the dtype (``sign`` 1), or the smallest."""
    if input.dtype.kind == "b":
        return sign > 0
    if input.dtype.kind in "iu":
        limits = np.iinfo(input.dtype)
        return limits.max if sign > 0 else limits.min
    return sign * math.inf


def amax(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The largest element over ``dim`` where ``mask`` is true, else the dtype's smallest value."""
    return extrema.amax(_kept(input, mask, _limit(input, -1), dtype), dim, bool(keepdim))


def amin(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The smallest element over ``dim`` where ``mask`` is true, else the dtype's largest value."""
    return extrema.amin(_kept(input, mask, _limit(input, 1), dtype), dim, bool(keepdim))


def argmax(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """Where ``amax`` is along ``dim``, in the flattened tensor if None."""
    return extrema.argmax(_kept(input, mask, _limit(input, -1), dtype), dim, bool(keepdim))


def argmin(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """Where ``amin`` is along ``dim``, in the flattened tensor if None."""
    return extrema.argmin(_kept(input, mask, _limit(input, 1), dtype), dim, bool(keepdim))


def _count(input: Tensor, dim: Any, mask: Any, keepdim: bool) -> Tensor:
    return sum(ones_like(input, dtype=np.int64), dim, keepdim=keepdim, mask=mask)


def mean(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The mean over ``dim`` of the elements where ``mask`` is true, NaN of none.

    Raises:
        ValueError: the elements are integers, and no floating ``dtype`` is given.
    """
    tensor = input if dtype is None else cast(input, dtype)
    if tensor.dtype.kind not in "fc":
        raise ValueError(f"mean expects a floating type input or dtype, not {tensor.dtype}")
    total = sum(tensor, dim, keepdim=keepdim, mask=mask)
    return div(total, _count(input, dim, mask, keepdim))


def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The middle element along ``dim`` of those where ``mask`` is true, the smaller one of two.

    Raises:
        ValueError: the elements are integers, and a mask is given.
    """
    tensor = input if dtype is None else cast(input, dtype)
    if tensor.dtype.kind == "f":
        kept = _kept(tensor, mask, math.nan)
        return nanmedian(kept, dim, bool(keepdim)).values  # type: ignore[no-any-return]
    if mask is not None and not bool(mask.all().item()):
        raise ValueError("masked median of integers expects a mask that leaves nothing out")
    return tensor.median(dim, bool(keepdim)).values  # type: ignore[no-any-return]


def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tensor:
    """``sum(abs(input) ** ord) ** (1 / ord)`` over ``dim`` where ``mask`` is true."""
    order = 2.0 if ord is None else float(ord)
    kept = _kept(input, mask, 0 if order >= 0 else math.inf, dtype)
    return vector_norm(kept, order, dim, bool(keepdim))


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tensor:
    """The variance over ``dim`` of the elements where ``mask`` is true."""
    taken = correction if correction is not None else int(unbiased is None or unbiased)
    tensor = input if dtype is None else cast(input, dtype)
    if tensor.dtype.kind not in "fc":
        tensor = cast(tensor, np.float32)
    away = sub(tensor, mean(tensor, dim, keepdim=True, mask=mask))
    squares = square(absolute(away) if away.dtype.kind == "c" else away)
    total = sum(squares, dim, keepdim=keepdim, mask=mask)
    found = div(total, clamp_min(sub(_count(input, dim, mask, keepdim), taken), 0))
    return cast(found, tensor.dtype)


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tensor:
    """The root of ``var``."""
    options = {"correction": correction, "keepdim": keepdim, "dtype": dtype, "mask": mask}
    return sqrt(var(input, dim, unbiased, **options))


def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """``mg.softmax`` along ``dim`` over the elements where ``mask`` is true; others get 0."""
    return activation.softmax(_kept(input, mask, -math.inf, dtype), dim)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """The logarithm of ``softmax``."""
    return activation.log_softmax(_kept(input, mask, -math.inf, dtype), dim)


def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """``softmax`` of the negative."""
    return composed_activations.softmin(_kept(input, mask, math.inf, dtype), dim)


def normalize(
    input: Tensor,
    ord: float,
    dim: Any,
    *,
    eps: float = 1e-12,
    dtype: Any = None,
    mask: Any = None,
) -> Tensor:
    """``input`` over its norm along ``dim`` where ``mask`` is true, 0 elsewhere."""
    tensor = input if dtype is None else cast(input, dtype)
    length = norm(tensor, ord, dim, keepdim=True, mask=mask)
    return div(_kept(tensor, mask, 0), clamp_min(length, eps))


def logsumexp(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """``log(sum(exp(input)))`` over ``dim`` where ``mask`` is true."""
    kept = _kept(input, mask, _limit(input, -1))
    return cast(reduction.logsumexp(kept, dim, bool(keepdim)), dtype or input.dtype)


def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: Any = None,
    input_mask: Any = None,
    other_mask: Any = None,
) -> Tensor:
    """``log(exp(input) + exp(other))``; a number where its mask is false counts as 0."""
    return transcendental.logaddexp(
        _kept(input, input_mask, -math.inf, dtype), _kept(other, other_mask, -math.inf, dtype)
    )
