"""Reductions: sums, means, variances, ``logsumexp``, cumulative sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.dimensions import Dims, count, either, keep, one_dim, some_dims
from mpgrad.ops.calling.promotion import as_tensor_operand, cast, floating
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "all",
    "any",
    "cumsum",
    "logsumexp",
    "mean",
    "std",
    "sum",
    "var",
    "var_mean",
]


_sum = operator(
    "sum",
    lambda xp, input, *, dim, keepdim: xp.sum(input, dim, keepdim),
    input=lambda xp, grad, input_shape, dim: xp.broadcast_to(
        keep(xp, grad, input_shape, dim), input_shape
    ),
)


def sum(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The sum over ``dim`` (an int, several, or None for all)."""
    tensor = as_tensor_operand(input)
    keepdim = either("keepdim", keepdim, "keepdims", keepdims)
    if dtype is not None:
        return cast(sum(cast(tensor, dtype), dim, keepdim, axis=axis), dtype)
    return call(_sum, tensor, dim=some_dims(dim, axis, tensor.ndim), keepdim=keepdim)


def _mean_grad(xp: Any, grad: Any, input_shape: tuple[int, ...], dim: Dims) -> Any:
    share = xp.divide(keep(xp, grad, input_shape, dim), count(input_shape, dim))
    return xp.broadcast_to(share, input_shape)


_mean = operator(
    "mean",
    lambda xp, input, *, dim, keepdim: mean_of(xp, input, dim, keepdim),
    input=_mean_grad,
)


def mean_of(xp: Any, input: Any, dim: Dims, keepdim: bool) -> Any:
    """The mean over ``dim``, in the dtype of ``input``."""
    if input.dtype == np.float16:  # the sum may be too large for it
        found = mean_of(xp, xp.astype(input, np.float32), dim, keepdim)
        return xp.astype(found, input.dtype)
    return xp.divide(xp.sum(input, dim, keepdim), count(input.shape, dim))


def mean(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The mean over ``dim``.

    Raises:
        RuntimeError: the elements are integers and no floating ``dtype`` is given.
    """
    tensor = as_tensor_operand(input)
    if dtype is not None:
        tensor = cast(tensor, dtype)
    if tensor.dtype.kind not in "fc":
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {tensor.dtype}"
        )
    dims = some_dims(dim, axis, tensor.ndim)
    return call(_mean, tensor, dim=dims, keepdim=either("keepdim", keepdim, "keepdims", keepdims))


def squared_size(xp: Any, x: Any) -> Any:
    """``abs(x) ** 2``."""
    return xp.square(xp.absolute(x) if x.dtype.kind == "c" else x)


def _centered(xp: Any, input: Any, dim: Dims) -> Any:
    return xp.subtract(input, mean_of(xp, input, dim, True))


def _var_of(xp: Any, input: Any, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    freedom = count(input.shape, dim) - correction
    squares = xp.sum(squared_size(xp, _centered(xp, input, dim)), dim, keepdim)
    return xp.divide(squares, freedom if freedom > 0 else 0)


def _var_grad(xp: Any, grad: Any, input: Any, dim: Dims, correction: float) -> Any:
    freedom = count(input.shape, dim) - correction
    slope = xp.multiply(_centered(xp, input, dim), 2 / freedom if freedom > 0 else math.nan)
    return xp.multiply(keep(xp, grad, input.shape, dim), slope)


def _std_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims, correction: float) -> Any:
    """The variance's gradient over ``2 * result``; 0 where the deviation is 0, as in PyTorch."""
    still = xp.equal(result, 0)
    safe = xp.multiply(xp.where(still, 1.0, result), 2)
    return _var_grad(xp, xp.where(still, 0.0, xp.divide(grad, safe)), input, dim, correction)


# Deviations of complex numbers are real: no holomorphic functions. The formulas hold as they stand.
_var = operator("var", _var_of, wirtinger=True, input=_var_grad)
_std = operator(
    "std",
    lambda xp, input, *, dim, correction, keepdim: xp.sqrt(
        _var_of(xp, input, dim=dim, correction=correction, keepdim=keepdim)
    ),
    wirtinger=True,
    input=_std_grad,
)


def var(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The variance over ``dim``: squared deviations over ``count - correction``."""
    return _deviation(_var, input, dim, keepdim, correction, unbiased, axis, keepdims)  # type: ignore[no-any-return]


def _var_and_mean(xp: Any, input: Any, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    variance = _var_of(xp, input, dim=dim, correction=correction, keepdim=keepdim)
    return variance, mean_of(xp, input, dim, keepdim)


_var_mean = operator(
    "var_mean",
    _var_and_mean,
    wirtinger=True,
    outputs=2,
    input=lambda xp, grads, input, input_shape, dim, correction: xp.add(
        _var_grad(xp, grads[0], input, dim, correction), _mean_grad(xp, grads[1], input_shape, dim)
    ),
)


def var_mean(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> tuple[Tensor, Tensor]:
    """``(var(input, ...), mean(input, ...))``."""
    return _deviation(_var_mean, input, dim, keepdim, correction, unbiased)  # type: ignore[no-any-return]


def std(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The standard deviation over ``dim``, the square root of :func:`var`."""
    return _deviation(_std, input, dim, keepdim, correction, unbiased, axis, keepdims)  # type: ignore[no-any-return]


def _deviation(
    measure: Any,
    input: Any,
    dim: Any,
    keepdim: bool,
    correction: float | None,
    unbiased: bool | None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Any:
    tensor = as_tensor_operand(input)
    if tensor.dtype.kind not in "fc":
        raise RuntimeError(
            f"std and var only support floating point and complex dtypes, not {tensor.dtype}"
        )
    if isinstance(dim, bool):  # PyTorch's older signature: var(input, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    return call(
        measure,
        tensor,
        dim=some_dims(dim, axis, tensor.ndim),
        correction=1 if correction is None else correction,
        keepdim=either("keepdim", keepdim, "keepdims", keepdims),
    )


def _logsumexp_of(xp: Any, input: Any, *, dim: Dims, keepdim: bool) -> Any:
    largest: Any = 0.0
    if count(input.shape, dim):
        largest = xp.max(xp.real(input) if input.dtype.kind == "c" else input, dim, True)
        # An infinite maximum would give inf - inf.
        largest = xp.where(xp.isfinite(largest), largest, 0.0)
    total = xp.log(xp.sum(xp.exp(xp.subtract(input, largest)), dim, True))
    total = xp.add(total, largest)
    return total if keepdim else xp.reshape(total, _without(input.shape, dim))


def _without(shape: tuple[int, ...], dim: Dims) -> tuple[int, ...]:
    return () if dim is None else tuple(n for i, n in enumerate(shape) if i not in dim)


def _logsumexp_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims) -> Any:
    total = keep(xp, result, input.shape, dim)
    return xp.multiply(keep(xp, grad, input.shape, dim), xp.exp(xp.subtract(input, total)))


_logsumexp = operator("logsumexp", _logsumexp_of, input=_logsumexp_grad)


def logsumexp(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """``log(sum(exp(input)))`` over ``dim``, with the largest element taken out first."""
    tensor = floating(input)
    return call(_logsumexp, tensor, dim=some_dims(dim, axis, tensor.ndim), keepdim=keepdim)


_cumsum = operator(
    "cumsum",
    lambda xp, input, *, dim: xp.cumsum(input, dim),
    input=lambda xp, grad, dim: xp.flip(xp.cumsum(xp.flip(grad, dim), dim), dim),
)


def cumsum(
    input: Any,
    dim: Any = None,
    *,
    dtype: Any = None,
    axis: Any = None,
) -> Tensor:
    """The running sum along ``dim``, of elements converted to ``dtype`` first."""
    tensor = as_tensor_operand(input)
    if dtype is not None:
        return cast(cumsum(cast(tensor, dtype), dim, axis=axis), dtype)
    if tensor.dtype == np.float16:  # a long sum stops growing there
        return cast(cumsum(cast(tensor, np.float32), dim, axis=axis), np.float16)
    return call(_cumsum, tensor, dim=one_dim(either("dim", dim, "axis", axis), tensor.ndim))


# ------------------------------------------------------------------------ not differentiable


def _plain(function: str, input: Any, dim: Any, axis: Any, keepdim: bool) -> Tensor:
    tensor = as_tensor_operand(input)
    # Over no dimension at all, where sums go over all of them: both as in PyTorch.
    dim = either("dim", dim, "axis", axis)
    is_none = isinstance(dim, tuple | list) and not dim
    axes = () if is_none else some_dims(dim, None, tensor.ndim)
    found = unrecorded(lambda xp, x: getattr(xp, function)(x, axes, keepdim), tensor)
    # For uint8, the former dtype of masks, the result is uint8, too.
    return cast(found, np.uint8) if tensor.dtype == np.uint8 else found


def any(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether any element over ``dim`` is true (not zero)."""
    return _plain("any", input, dim, axis, keepdim)


def all(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether all elements over ``dim`` are true (not zero)."""
    return _plain("all", input, dim, axis, keepdim)
