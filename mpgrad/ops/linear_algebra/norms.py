"""Norms, distances, and scaling by norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.dimensions import Dims, count, keep, one_dim, some_dims
from mpgrad.ops.calling.promotion import as_tensor_operand, cast, floating, promote_types
from mpgrad.ops.elementwise.arithmetic import add, div, mul, sub
from mpgrad.ops.elementwise.comparison import gt, lt
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.linear_algebra.factorizations import svdvals
from mpgrad.ops.reductions import reduction
from mpgrad.ops.shapes.joining import broadcast_tensors
from mpgrad.ops.shapes.shape import movedim, unsqueeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["cosine_similarity", "dist", "norm", "normalize", "renorm"]


def _norm_of(xp: Any, input: Any, *, p: float, dim: Dims, keepdim: bool) -> Any:
    if p == 1 or (p == p and p != 0 and count(input.shape, dim) == 1):
        return xp.sum(xp.absolute(input), dim, keepdim)  # of one element no power overflows
    if p == 2:
        return xp.sqrt(xp.sum(reduction.squared_size(xp, input), dim, keepdim))
    sizes = xp.absolute(input)
    if p == math.inf:
        return xp.max(sizes, dim, keepdim)
    if p == -math.inf:
        return xp.min(sizes, dim, keepdim)
    if p == 0:
        return xp.astype(xp.sum(xp.not_equal(sizes, 0), dim, keepdim), sizes.dtype)
    return xp.power(xp.sum(xp.power(sizes, p), dim, keepdim), 1 / p)


def _norm_grad(xp: Any, grad: Any, input: Any, result: Any, p: float, dim: Dims) -> Any:
    """``input * abs(input) ** (p - 2) / result ** (p - 1)``, and 0 where that has no value."""
    grad, result = (keep(xp, x, input.shape, dim) for x in (grad, result))
    if p == 0:
        return None
    if p == 1 or (p == p and count(input.shape, dim) == 1):
        return xp.multiply(xp.sign(input), grad)
    if math.isinf(p):
        attains = xp.equal(xp.absolute(input), result)
        attains = xp.logical_or(attains, xp.logical_and(xp.isnan(input), xp.isnan(result)))
        share = xp.divide(grad, xp.astype(xp.sum(attains, dim, True), grad.dtype))
        return xp.multiply(xp.sign(input), xp.where(attains, share, 0.0))
    zero = xp.equal(result, 0)
    safe = xp.where(zero, 1.0, result)
    if p == 2:
        return xp.multiply(input, xp.where(zero, 0.0, xp.divide(grad, safe)))
    sizes = xp.absolute(input)
    origin = xp.equal(sizes, 0)
    slope = xp.where(origin, 0.0, xp.power(xp.where(origin, 1.0, sizes), p - 1))
    share = xp.where(zero, 0.0, xp.divide(grad, xp.power(safe, p - 1)))
    return xp.multiply(xp.multiply(xp.sign(input), slope), share)


_norm = operator("norm", _norm_of, wirtinger=True, input=_norm_grad)


def norm(
    input: Any,
    p: float | str | None = "fro",
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: Any = None,
) -> Tensor:
    """``sum(abs(input) ** p) ** (1 / p)`` over ``dim``; the gradient at 0 is 0.

    Args:
        input: any floating or complex tensor; of complex numbers the norm is real.
        p: 2 (also as ``"fro"`` or None), infinity, 0 (how many are not zero, without a gradient),
            another number, or ``"nuc"`` for the sum of the singular values of matrices.
        dim: an int, several, or None for all.
        keepdim: keep the dimensions, with length 1.
        dtype: to convert the elements to first.
        axis: another name of ``dim``.

    Raises:
        RuntimeError: another word for ``p``, integers, or no elements where a norm needs some.
    """
    tensor = as_tensor_operand(input)
    tensor = tensor if dtype is None else cast(tensor, dtype)
    if tensor.dtype.kind not in "fc":
        raise RuntimeError(
            f"norm: Expected a floating point or complex tensor as input. Got {tensor.dtype}"
        )
    dims = some_dims(dim, axis, tensor.ndim)
    if p == "nuc":
        return nuclear_norm(tensor, dims, keepdim)
    order = 2.0 if p is None or p == "fro" else p
    if isinstance(order, str):
        raise RuntimeError(f"norm: unknown p={p!r}; it is a number, 'fro' or 'nuc'")
    if (order < 0 or order == math.inf) and count(tensor.shape, dims) == 0:
        raise RuntimeError(
            f"norm: cannot compute the {p} norm on an empty tensor because the operation does not "
            "have an identity"
        )
    half = tensor.dtype == np.float16
    wide = cast(tensor, np.float32) if half else tensor  # sums of powers overflow early
    result = call(_norm, wide, p=float(order), dim=dims, keepdim=keepdim)
    return cast(result, np.float16) if half else result


def nuclear_norm(input: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    """The sum of the singular values of the matrices over two dimensions.

    Raises:
        RuntimeError: ``dims`` (None: all) are not two different dimensions.
    """
    dims = tuple(range(input.ndim)) if dims is None else tuple(dims)
    if len(dims) != 2:
        raise RuntimeError(f"norm: the nuclear norm is of two dimensions, but got dim={dims}")
    found = reduction.sum(svdvals(movedim(input, dims, (-2, -1))), -1)
    for place in sorted(dims) if keepdim else ():
        found = unsqueeze(found, place)
    return found


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of the difference."""
    return norm(floating(sub(input, other)), p)


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """``input`` over its norm along ``dim``, or over ``eps`` where that is smaller."""
    return div(input, clamp(norm(input, p, dim, keepdim=True), min=eps))


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """``input`` whose slices along ``dim`` have a p-norm of at most ``maxnorm``.

    Raises:
        RuntimeError: ``p`` is not positive, ``maxnorm`` negative, there are fewer than two
            dimensions, or ``input`` holds integers.
    """
    if isinstance(p, complex) or not p > 0:
        raise RuntimeError(f"renorm: non-positive-norm not supported, got p={p}")
    if isinstance(maxnorm, complex) or maxnorm < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim}")
    kept = one_dim(dim, input.ndim)
    if input.dtype.kind not in "fc":
        raise RuntimeError(f"renorm: expected a floating or complex tensor, got {input.dtype}")
    wide = cast(input, np.result_type(input._array.dtype, np.float64))  # powers overflow early
    length = norm(wide, p, [d for d in range(input.ndim) if d != kept], keepdim=True)
    factor = where(gt(length, maxnorm), div(maxnorm, add(length, 1e-7)), 1.0)
    return mul(input, cast(factor, input.dtype.to_real()))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along ``dim``; norms count at least ``eps``.

    The gradient is that of the norms as they are, as in PyTorch.

    Raises:
        RuntimeError: neither input is floating, or they do not broadcast.
    """
    dtype = promote_types(x1._array.dtype, x2._array.dtype)
    if dtype.kind != "f":
        raise RuntimeError(
            f"cosine_similarity: expected common dtype to be floating point, yet it is {dtype}"
        )
    units = []
    for x in broadcast_tensors(x1, x2):
        # Each vector is divided in its own dtype, as in PyTorch.
        x = x if x.dtype.kind == "f" else cast(x, dtype)
        length = norm(x, 2.0, dim, keepdim=True)
        raised = add(length, sub(eps, length.detach()))
        units.append(div(x, where(lt(length, eps), raised, length)))
    return reduction.sum(mul(*units), dim)
