"""Elementwise functions made of others: parts of numbers, replacements, products with cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops import arithmetic
from mpgrad.ops.arithmetic import add, div, mul, neg, sqrt, square, sub
from mpgrad.ops.choices import where
from mpgrad.ops.comparison import eq, isnan
from mpgrad.ops.promotion import as_tensor_operand, cast, floating, operands, require_tensors
from mpgrad.ops.rounding import trunc
from mpgrad.ops.shape import clone
from mpgrad.ops.transcendental import erf, log, log1p, logaddexp
from mpgrad.tensors.tensor import Tensor

__all__ = [
    "deg2rad",
    "erfc",
    "float_power",
    "frac",
    "hypot",
    "logaddexp2",
    "logit",
    "nan_to_num",
    "rad2deg",
]


def frac(input: Tensor) -> Tensor:
    """The digits after the point, with the sign of the element."""
    return sub(input, trunc(input))


def deg2rad(input: Any) -> Tensor:
    """Degrees as radians."""
    return mul(floating(input), math.pi / 180)


def rad2deg(input: Any) -> Tensor:
    """Radians as degrees."""
    return mul(floating(input), 180 / math.pi)


def erfc(input: Any) -> Tensor:
    """``1 - erf(input)``, which is less exact above 5, where it is nearly 0."""
    return sub(1, erf(input))


def float_power(input: Any, exponent: Any) -> Tensor:
    """``input ** exponent`` in double precision.

    Raises:
        TypeError: both are numbers.
    """
    operands(input, exponent)
    base, exponent = (
        cast(x, np.complex128 if x.dtype.kind == "c" else np.float64)
        for x in (as_tensor_operand(input), as_tensor_operand(exponent))
    )
    return arithmetic.pow(base, exponent)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """The hypotenuse ``sqrt(input ** 2 + other ** 2)``, whose squares must not overflow.

    Raises:
        TypeError: an operand is no tensor.
    """
    require_tensors("hypot", input=input, other=other)
    first, second = operands(input, other)
    return sqrt(add(square(first), square(second)))


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """``log2(2 ** input + 2 ** other)`` without overflow.

    Raises:
        TypeError: an operand is no tensor.
    """
    require_tensors("logaddexp2", input=input, other=other)
    first, second = operands(input, other)
    factor = math.log(2)
    return div(logaddexp(mul(first, factor), mul(second, factor)), factor)


def logit(input: Any, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``, of ``x`` between ``eps`` and ``1 - eps``; outside of these its gradient
    is 0.
    """
    x = floating(input)
    if eps is not None:
        low, high = x.new_full((), eps), x.new_full((), 1 - eps)
        x = where(x < eps, low, where(x > 1 - eps, high, x))
    return sub(log(x), log1p(neg(x)))


def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Numbers in place of NaN (by default 0) and infinities (the largest and the smallest).

    The gradient is 0 where an element was replaced.
    """
    if input.dtype.kind not in "f":
        return clone(input)
    limits = np.finfo(input.dtype)
    replaced = where(isnan(input), 0.0 if nan is None else nan, input)
    for infinity, given, limit in (
        (math.inf, posinf, limits.max),
        (-math.inf, neginf, limits.min),
    ):
        replaced = where(eq(input, infinity), float(limit) if given is None else given, replaced)
    return replaced
