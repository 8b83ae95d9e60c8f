"""Reductions: sums, means, variances, extrema, ``logsumexp``, cumulative sums."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpgrad.dispatch import call, unrecorded
from mpgrad.ops.choices import maximum, minimum
from mpgrad.ops.device_moves import beside
from mpgrad.ops.dimensions import Dims, count, either, keep, one_dim, some_dims
from mpgrad.ops.promotion import as_tensor_operand, cast, floating, refuse_complex
from mpgrad.ops.registry import operator
from mpgrad.ops.shape import clone
from mpgrad.tensor import Tensor

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "cumsum",
    "logsumexp",
    "max",
    "mean",
    "min",
    "std",
    "sum",
    "var",
    "var_mean",
]


class ValuesAndIndices(NamedTuple):
    """The extrema along one dimension, and where they are."""

    values: Tensor
    indices: Tensor


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
    if dtype is not None:
        tensor = cast(tensor, dtype)
    dims = some_dims(dim, axis, tensor.ndim)
    return call(_sum, tensor, dim=dims, keepdim=either("keepdim", keepdim, "keepdims", keepdims))


def _mean_grad(xp: Any, grad: Any, input_shape: tuple[int, ...], dim: Dims) -> Any:
    share = xp.divide(keep(xp, grad, input_shape, dim), count(input_shape, dim))
    return xp.broadcast_to(share, input_shape)


_mean = operator(
    "mean",
    lambda xp, input, *, dim, keepdim: _mean_of(xp, input, dim, keepdim),
    input=_mean_grad,
)


def _mean_of(xp: Any, input: Any, dim: Dims, keepdim: bool) -> Any:
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
    return xp.subtract(input, _mean_of(xp, input, dim, True))


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
    keepdim: bool = False,
    *,
    correction: float = 1,
    unbiased: bool | None = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The variance over ``dim``: squared deviations over ``count - correction``."""
    tensor = floating(input)
    return call(
        _var,
        tensor,
        dim=some_dims(dim, axis, tensor.ndim),
        correction=correction if unbiased is None else int(unbiased),
        keepdim=either("keepdim", keepdim, "keepdims", keepdims),
    )


def _var_and_mean(xp: Any, input: Any, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    variance = _var_of(xp, input, dim=dim, correction=correction, keepdim=keepdim)
    return variance, _mean_of(xp, input, dim, keepdim)


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
    keepdim: bool = False,
    *,
    correction: float = 1,
    unbiased: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """``(var(input, ...), mean(input, ...))``."""
    tensor = floating(input)
    return call(  # type: ignore[no-any-return]
        _var_mean,
        tensor,
        dim=some_dims(dim, None, tensor.ndim),
        correction=correction if unbiased is None else int(unbiased),
        keepdim=keepdim,
    )


def std(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    unbiased: bool | None = None,
    axis: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The standard deviation over ``dim``, the square root of :func:`var`."""
    tensor = floating(input)
    return call(
        _std,
        tensor,
        dim=some_dims(dim, axis, tensor.ndim),
        correction=correction if unbiased is None else int(unbiased),
        keepdim=either("keepdim", keepdim, "keepdims", keepdims),
    )


def _extremum_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims) -> Any:
    """An equal share for each element that attains the extremum (PyTorch's amax)."""
    attains = xp.equal(input, keep(xp, result, input.shape, dim))
    ties = xp.sum(attains, dim, True)
    share = xp.divide(keep(xp, grad, input.shape, dim), xp.astype(ties, grad.dtype))
    return xp.multiply(attains, share)


_amax = operator(
    "amax",
    lambda xp, input, *, dim, keepdim: xp.max(input, dim, keepdim),
    input=_extremum_grad,
)
_amin = operator(
    "amin",
    lambda xp, input, *, dim, keepdim: xp.min(input, dim, keepdim),
    input=_extremum_grad,
)


def amax(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """The largest element over ``dim``; ties share the gradient."""
    tensor = as_tensor_operand(input)
    refuse_complex("amax", tensor)
    return call(_amax, tensor, dim=some_dims(dim, axis, tensor.ndim), keepdim=keepdim)


def amin(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """The smallest element over ``dim``; ties share the gradient."""
    tensor = as_tensor_operand(input)
    refuse_complex("amin", tensor)
    return call(_amin, tensor, dim=some_dims(dim, axis, tensor.ndim), keepdim=keepdim)


def _at_extremum(xp: Any, input: Any, indices: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    values = xp.take_along_axis(input, indices, dim)
    if keepdim:
        return values, indices
    shape = input.shape[:dim] + input.shape[dim + 1 :]
    return xp.reshape(values, shape), xp.reshape(indices, shape)


def _at_extremum_grad(
    xp: Any, grad: Any, results: Any, input_shape: tuple[int, ...], dim: int
) -> Any:
    grad, indices = (keep(xp, x, input_shape, (dim,)) for x in (grad, results[1]))
    return xp.scatter_along_axis(grad, indices, dim, input_shape[dim])


_max_along = operator(
    "max",
    lambda xp, input, *, dim, keepdim: _at_extremum(
        xp, input, xp.argmax(input, dim, True), dim, keepdim
    ),
    input=_at_extremum_grad,
)
_min_along = operator(
    "min",
    lambda xp, input, *, dim, keepdim: _at_extremum(
        xp, input, xp.argmin(input, dim, True), dim, keepdim
    ),
    input=_at_extremum_grad,
)


def max(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """The largest element, or (values, indices) along ``dim``, or :func:`maximum` of two tensors.

    Along ``dim`` the first of equal elements is taken and gets the gradient.
    """
    return _extremum(_amax, _max_along, maximum, input, either("dim", dim, "axis", axis), keepdim)


def min(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """The smallest element, or (values, indices) along ``dim``, or :func:`minimum` of two tensors.

    Along ``dim`` the first of equal elements is taken and gets the gradient.
    """
    return _extremum(_amin, _min_along, minimum, input, either("dim", dim, "axis", axis), keepdim)


def _extremum(whole: Any, along: Any, of_two: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    if isinstance(dim, Tensor):
        return of_two(input, dim)
    tensor = as_tensor_operand(input)
    refuse_complex("max or min", tensor)
    if dim is None:
        return call(whole, tensor, dim=None, keepdim=False)
    if tensor.ndim == 0:
        one_dim(dim, 0)
        return ValuesAndIndices(clone(tensor), beside(tensor, np.zeros((), np.int64)))
    return ValuesAndIndices(*call(along, tensor, dim=one_dim(dim, tensor.ndim), keepdim=keepdim))


def _logsumexp_of(xp: Any, input: Any, *, dim: Dims, keepdim: bool) -> Any:
    largest = xp.max(xp.real(input) if input.dtype.kind == "c" else input, dim, True)
    # An infinite maximum would give inf - inf.
    largest = xp.where(xp.isfinite(largest), largest, 0.0)
    total = xp.log(xp.sum(xp.exp(xp.subtract(input, largest)), dim, True))
    total = xp.add(total, largest)
    return total if keepdim else xp.reshape(total, _without(input.shape, dim))


def _without(shape: tuple[int, ...], dim: Dims) -> tuple[int, ...]:
    return () if dim is None else tuple(n for i, n in enumerate(shape) if i not in dim)


def _logsumexp_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims) -> Any:
    # Where all elements are -inf, so is the result, and -inf - -inf would be NaN.
    total = keep(xp, xp.where(xp.equal(result, -math.inf), 0.0, result), input.shape, dim)
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


def cumsum(input: Any, dim: Any = None, *, axis: Any = None) -> Tensor:
    """The running sum along ``dim``."""
    tensor = as_tensor_operand(input)
    return call(_cumsum, tensor, dim=one_dim(either("dim", dim, "axis", axis), tensor.ndim))


# ------------------------------------------------------------------------ not differentiable


def _plain(function: str, input: Any, dim: Any, axis: Any, keepdim: bool) -> Tensor:
    tensor = as_tensor_operand(input)
    axes = some_dims(dim, axis, tensor.ndim)
    return unrecorded(lambda xp, x: getattr(xp, function)(x, axes, keepdim), tensor)


def any(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether any element over ``dim`` is true (not zero)."""
    return _plain("any", input, dim, axis, keepdim)


def all(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Whether all elements over ``dim`` are true (not zero)."""
    return _plain("all", input, dim, axis, keepdim)


def argmax(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Where the (first) largest element along ``dim`` is; in the flattened tensor if None."""
    return _where_extremum("argmax", input, either("dim", dim, "axis", axis), keepdim)


def argmin(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Where the (first) smallest element along ``dim`` is; in the flattened tensor if None."""
    return _where_extremum("argmin", input, either("dim", dim, "axis", axis), keepdim)


def _where_extremum(function: str, input: Any, dim: Any, keepdim: bool) -> Tensor:
    tensor = as_tensor_operand(input)
    refuse_complex(function, tensor)
    if dim is not None and tensor.ndim:
        dim = one_dim(dim, tensor.ndim)
    axis = dim if tensor.ndim else None
    return unrecorded(lambda xp, x: getattr(xp, function)(x, axis, keepdim), tensor)
