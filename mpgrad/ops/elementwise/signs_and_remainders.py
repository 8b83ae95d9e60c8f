"""Elementwise functions of signs, remainders and whole numbers, and sums of products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.promotion import (
    as_tensor_operand,
    cast,
    floating,
    promote_types,
    real_tensors,
    refuse_complex,
    require_tensors,
)
from mpgrad.ops.elementwise.arithmetic import mul, sub
from mpgrad.ops.elementwise.comparison import eq, ge, isnan, le, logical_or
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import exp2
from mpgrad.ops.linear_algebra.matrix_products import added, bmm, mv, outer
from mpgrad.ops.new_tensors.creation import ones_like
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "addbmm",
    "addmv",
    "addr",
    "copysign",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "heaviside",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "positive",
    "rsub",
    "signbit",
]


def _whole_pair(name: str, input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    a, b = real_tensors(name, input, other)
    if a.dtype.kind not in "iu":
        raise NotImplementedError(f"{name}() is not implemented for {a.dtype}: whole numbers only")
    return a, b


_fmod = operator(
    "fmod",
    lambda xp, a, b: xp.astype(xp.fmod(a, b), a.dtype),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.negative(xp.multiply(grad, xp.trunc(xp.divide(a, b)))), b_shape
    ),
)


def fmod(input: Any, other: Any) -> Tensor:
    """``input - other * trunc(input / other)``: the remainder with the sign of ``input``.

    Raises:
        TypeError: ``input`` is no tensor.
        RuntimeError: whole numbers are divided by 0.
    """
    require_tensors("fmod", input=input)
    a, b = real_tensors("fmod", input, other)
    if a.dtype.kind in "iub":
        if bool(eq(b, 0).any().item()):
            raise RuntimeError("ZeroDivisionError")
        return unrecorded(lambda xp, x, y: xp.fmod(x, y), a, b)
    return call(_fmod, a, b)


def _copysign_grad(xp: Any, grad: Any, a: Any, result: Any, a_shape: Any) -> Any:
    origin = xp.equal(a, 0)
    ratio = xp.where(origin, 0.0, xp.divide(result, xp.where(origin, 1.0, a)))
    return xp.sum_to(xp.multiply(grad, ratio), a_shape)


_copysign = operator(
    "copysign",
    lambda xp, a, b: xp.copysign(a, b),
    a=_copysign_grad,
    b=lambda xp, grad, b_shape: xp.zeros_beside(grad, b_shape),
)


def copysign(input: Any, other: Any) -> Tensor:
    """``abs(input)`` with the sign of ``other``; the gradient is 0 where ``input`` is.

    Raises:
        TypeError: ``input`` is no tensor.
    """
    require_tensors("copysign", input=input)
    return call(_copysign, *real_tensors("copysign", input, other, float_result=True))


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger element; if one is NaN, the other. Of equal ones ``input`` gets the gradient.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("fmax", input=input, other=other)
    a, b = real_tensors("fmax", input, other)
    return where(logical_or(ge(a, b), isnan(b)), a, b)  # type: ignore[no-any-return]


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller element; if one is NaN, the other. Of equal ones ``input`` gets the gradient.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("fmin", input=input, other=other)
    a, b = real_tensors("fmin", input, other)
    return where(logical_or(le(a, b), isnan(b)), a, b)  # type: ignore[no-any-return]


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """``values`` at 0, 1 above, else 0 (for NaN, too); without a derivative.

    Raises:
        RuntimeError: the dtypes differ.
    """
    if input.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return unrecorded(
        lambda xp, x, v: xp.astype(xp.where(x == 0, v, x > 0), x.dtype), input, values
    )


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor of whole numbers."""
    require_tensors("gcd", input=input, other=other)
    a, b = _whole_pair("gcd", input, other)
    return unrecorded(lambda xp, x, y: xp.gcd(x, y), a, b)


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple of whole numbers."""
    require_tensors("lcm", input=input, other=other)
    a, b = _whole_pair("lcm", input, other)
    return unrecorded(lambda xp, x, y: xp.lcm(x, y), a, b)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """``input * 2 ** other``.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("ldexp", input=input, other=other)
    if input.dtype.kind == "f" and other.dtype.kind in "iu":
        wide = np.float64 if input.dtype == np.float64 else np.float32
        return cast(mul(cast(input, wide), exp2(cast(other, wide))), input.dtype)
    return mul(input, exp2(floating(other)))


def positive(input: Tensor) -> Tensor:
    """``input`` itself.

    Raises:
        RuntimeError: it is boolean.
    """
    if input.dtype.kind == "b":
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """``other - alpha * input``.

    Raises:
        TypeError: ``input`` is no tensor.
    """
    require_tensors("rsub", input=input)
    scaled = mul(input, alpha) if alpha != 1 else input
    return sub(as_tensor_operand(other), scaled)


def signbit(input: Tensor) -> Tensor:
    """Whether the sign is negative, of -0.0, too."""
    refuse_complex("signbit", input)
    if input.dtype.kind in "ub":
        return unrecorded(lambda xp, x: xp.zeros(x.shape, bool), input)
    return unrecorded(lambda xp, x: xp.signbit(x) if x.dtype.kind == "f" else x < 0, input)


def isposinf(input: Tensor) -> Tensor:
    """Whether it is infinity."""
    refuse_complex("isposinf", input)
    return eq(input, math.inf)


def isneginf(input: Tensor) -> Tensor:
    """Whether it is minus infinity."""
    refuse_complex("isneginf", input)
    return eq(input, -math.inf)


def isreal(input: Tensor) -> Tensor:
    """Whether the imaginary part is 0."""
    if input.dtype.kind == "c":
        return eq(input.imag, 0)
    return ones_like(input, dtype=bool)


# -------------------------------------------------------------------------------- sums of products


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return added("addmv", input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``.

    Raises:
        RuntimeError: the elements are whole numbers, but ``beta`` or ``alpha`` is not.
    """
    product = outer(vec1, vec2)
    if input.dtype.kind == product.dtype.kind == "b":
        return logical_or(mul(input, bool(beta)), mul(product, bool(alpha)))
    dtype = promote_types(input._array.dtype, product._array.dtype)
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if dtype.kind in "biu" and isinstance(factor, float):
            raise RuntimeError(
                f"For integral input tensors, argument {name} must not be a floating point number."
            )
    return added("addr", cast(input, dtype), cast(product, dtype), beta, alpha)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """``beta * input`` plus ``alpha`` times the sum of the products of all matrices."""
    product = sum_over(bmm(batch1, batch2), 0, dtype=batch1.dtype)
    return added("addbmm", input, product, beta, alpha)
