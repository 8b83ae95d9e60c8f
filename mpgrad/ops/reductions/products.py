"""Products along dimensions: ``prod`` and ``cumprod``.

Their formulas never divide by an element and look at none: they are right where elements are zero,
and can be differentiated any number of times.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.dimensions import either, one_dim, some_dims
from mpgrad.ops.calling.promotion import as_tensor_operand, cast
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["cumprod", "prod"]

Dims = tuple[int, ...] | None


def part(xp: Any, x: Any, start: int | None, stop: int | None) -> Any:
    """``x[..., start:stop]``."""
    return xp.getitem(x, (Ellipsis, slice(start, stop)), ())


def _ones_beside(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    return xp.add(xp.zeros_beside(x, shape), 1)


def _of_others(xp: Any, x: Any) -> Any:
    """For each element of the last dimension, the product of all others.

    Pairs are multiplied, the same is asked of the (half as many) products, and what is outside of a
    pair times one of the two is what is outside of the other: 3 n products in all.
    """
    length = x.shape[-1]
    if length < 2:
        return _ones_beside(xp, x, x.shape)
    half = length // 2
    left, right = part(xp, x, 0, half), part(xp, x, half, 2 * half)
    pairs = xp.multiply(left, right)
    if length % 2 == 0:
        outside = _of_others(xp, pairs)
        return xp.concatenate([xp.multiply(outside, right), xp.multiply(outside, left)], -1)
    outside = _of_others(xp, xp.concatenate([pairs, part(xp, x, -1, None)], -1))
    of_pairs, of_last = part(xp, outside, 0, half), part(xp, outside, half, None)
    return xp.concatenate([xp.multiply(of_pairs, right), xp.multiply(of_pairs, left), of_last], -1)


def _prod_grad(xp: Any, grad: Any, input: Any, dim: Dims) -> Any:
    shape = input.shape
    dims = tuple(range(len(shape))) if dim is None else dim
    rest = tuple(d for d in range(len(shape)) if d not in dims)
    order = rest + dims
    moved = xp.transpose(input, order)
    outer = tuple(shape[d] for d in rest)
    others = _of_others(xp, xp.reshape(moved, (*outer, math.prod(shape[d] for d in dims))))
    slopes = xp.multiply(others, xp.reshape(grad, (*outer, 1)))
    back = sorted(range(len(order)), key=order.__getitem__)
    return xp.transpose(xp.reshape(slopes, moved.shape), tuple(back))


_prod = operator(
    "prod", lambda xp, input, *, dim, keepdim: xp.prod(input, dim, keepdim), input=_prod_grad
)


def prod(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None
) -> Tensor:
    """The product over ``dim``, of elements converted to ``dtype`` first."""
    tensor = as_tensor_operand(input)
    if dtype is not None:
        return cast(prod(cast(tensor, dtype), dim, keepdim, axis=axis), dtype)
    if tensor.dtype == np.float16:  # whose products soon overflow, also those of the gradient
        return cast(prod(cast(tensor, np.float32), dim, keepdim, axis=axis), np.float16)
    return call(_prod, tensor, dim=some_dims(dim, axis, tensor.ndim), keepdim=keepdim)


def recurrence(xp: Any, factors: Any, terms: Any) -> Any:
    """``y[i] = terms[i] + factors[i] * y[i - 1]`` along the last dimension, in log2(n) steps.

    The composition of two affine maps is one: Hillis and Steele, "Data parallel algorithms", 1986.
    """
    length, step = terms.shape[-1], 1
    while step < length:
        early_terms, late_terms = part(xp, terms, 0, step), part(xp, terms, step, None)
        early_factors, late_factors = part(xp, factors, 0, step), part(xp, factors, step, None)
        before = part(xp, terms, 0, length - step)
        joined = xp.add(late_terms, xp.multiply(late_factors, before))
        terms = xp.concatenate([early_terms, joined], -1)
        before = part(xp, factors, 0, length - step)
        factors = xp.concatenate([early_factors, xp.multiply(late_factors, before)], -1)
        step *= 2
    return terms


def _cumprod_grad(xp: Any, grad: Any, input: Any, result: Any, dim: int) -> Any:
    """``prod(x[:j]) * s[j]`` with ``s[j] = grad[j] + x[j + 1] * s[j + 1]``."""
    if not input.shape or input.shape[dim] < 2:
        return grad
    order = list(range(len(input.shape)))
    order[dim], order[-1] = order[-1], order[dim]
    grad, input, result = (xp.transpose(x, tuple(order)) for x in (grad, input, result))
    one = _ones_beside(xp, input, (*input.shape[:-1], 1))
    # From the end: each element of grad is followed by its factor.
    factors = xp.concatenate([one, xp.flip(part(xp, input, 1, None), -1)], -1)
    sums = xp.flip(recurrence(xp, factors, xp.flip(grad, -1)), -1)
    before = xp.concatenate([one, part(xp, result, 0, -1)], -1)
    return xp.transpose(xp.multiply(sums, before), tuple(order))


_cumprod = operator(
    "cumprod", lambda xp, input, *, dim: xp.cumprod(input, dim), input=_cumprod_grad
)


def cumprod(
    input: Any,
    dim: Any = None,
    *,
    dtype: Any = None,
    axis: Any = None,
) -> Tensor:
    """The running product along ``dim``, of elements converted to ``dtype`` first."""
    tensor = as_tensor_operand(input)
    if dtype is not None:
        return cast(cumprod(cast(tensor, dtype), dim, axis=axis), dtype)
    return call(_cumprod, tensor, dim=one_dim(either("dim", dim, "axis", axis), tensor.ndim))
