"""Norms, distances and what is scaled by them."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops import reduction
from mpgrad.ops.arithmetic import abs as absolute
from mpgrad.ops.arithmetic import div, mul, sub
from mpgrad.ops.arithmetic import pow as power
from mpgrad.ops.choices import clamp, where
from mpgrad.ops.comparison import eq, ne
from mpgrad.ops.dimensions import Dims, keep, some_dims
from mpgrad.ops.joining import broadcast_tensors
from mpgrad.ops.promotion import cast, floating, promote_types
from mpgrad.ops.registry import operator
from mpgrad.tensor import Tensor

__all__ = ["cosine_similarity", "dist", "norm", "normalize"]


def _norm_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims) -> Any:
    """``input / result``, and 0 at the origin, where the norm has no derivative."""
    zero = xp.equal(result, 0)
    share = xp.where(zero, 0.0, xp.divide(grad, xp.where(zero, 1.0, result)))
    return xp.multiply(input, keep(xp, share, input.shape, dim))


_norm = operator(
    "norm",
    lambda xp, input, *, dim, keepdim: xp.sqrt(
        xp.sum(reduction.squared_size(xp, input), dim, keepdim)
    ),
    wirtinger=True,
    input=_norm_grad,
)


def norm(
    input: Any,
    p: float | str | None = "fro",
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
) -> Tensor:
    """``sum(abs(input) ** p) ** (1 / p)`` over ``dim``; the gradient at 0 is 0.

    Args:
        input: any tensor; of complex numbers the norm is real.
        p: 2 (also as ``"fro"`` or None), 1, infinity, 0 (how many are not zero) or another number.
        dim: an int, several, or None for all.
        keepdim: keep the dimensions, with length 1.

    Raises:
        RuntimeError: another word for ``p``.
    """
    tensor = floating(input)
    dims = some_dims(dim, axis, tensor.ndim)
    if p is None or p == "fro" or p == 2:
        return call(_norm, tensor, dim=dims, keepdim=keepdim)
    if isinstance(p, str):
        raise RuntimeError(f"norm: unknown p={p!r}; it is a number or 'fro'")
    sizes = absolute(tensor)
    if p == math.inf:
        return reduction.amax(sizes, dims, keepdim)
    if p == -math.inf:
        return reduction.amin(sizes, dims, keepdim)
    if p == 0:
        return reduction.sum(cast(ne(sizes, 0), sizes.dtype), dims, keepdim)
    if p == 1:
        return reduction.sum(sizes, dims, keepdim)
    total = reduction.sum(_power(sizes, p), dims, keepdim)
    return _power(total, 1 / p)


def _power(sizes: Tensor, exponent: float) -> Tensor:
    """``sizes ** exponent``; the gradient where they are 0 is 0, however steep the power is."""
    if exponent < 0:
        return power(sizes, exponent)
    zero = eq(sizes, 0)
    return where(zero, 0.0, power(where(zero, 1.0, sizes), exponent))


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of the difference."""
    return norm(sub(input, other), p)


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """``input`` over its norm along ``dim``, or over ``eps`` where that is smaller."""
    return div(input, clamp(norm(input, p, dim, keepdim=True), min=eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along ``dim``; norms count at least ``eps``.

    Raises:
        RuntimeError: neither input is floating, or they do not broadcast.
    """
    dtype = promote_types(x1.dtype, x2.dtype)
    if dtype.kind != "f":
        raise RuntimeError(
            f"cosine_similarity: expected common dtype to be floating point, yet it is {dtype}"
        )
    x1, x2 = broadcast_tensors(cast(x1, dtype), cast(x2, dtype))
    products = mul(normalize(x1, 2.0, dim, eps), normalize(x2, 2.0, dim, eps))
    return reduction.sum(products, dim)
