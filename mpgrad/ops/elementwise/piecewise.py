"""Elementwise functions made of others: parts of numbers, replacements, products with cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.calling.promotion import (
    as_tensor_operand,
    cast,
    floating,
    operands,
    refuse_complex,
    require_tensors,
)
from mpgrad.ops.elementwise import arithmetic
from mpgrad.ops.elementwise.arithmetic import div, mul, sub
from mpgrad.ops.elementwise.comparison import eq, isnan
from mpgrad.ops.elementwise.complex_numbers import complex as complex_of
from mpgrad.ops.elementwise.complex_numbers import imag, real
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.rounding import trunc
from mpgrad.ops.elementwise.transcendental import erf, logaddexp
from mpgrad.ops.shapes.shape import clone
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

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


_hypot = operator(
    "hypot",
    lambda xp, a, b: xp.hypot(a, b),
    a=lambda xp, grad, a, result, a_shape: xp.sum_to(_leg(xp, grad, a, result), a_shape),
    b=lambda xp, grad, b, result, b_shape: xp.sum_to(_leg(xp, grad, b, result), b_shape),
)


def _leg(xp: Any, grad: Any, leg: Any, hypotenuse: Any) -> Any:
    return xp.multiply(grad, xp.divide(leg, hypotenuse))


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """The hypotenuse ``sqrt(input ** 2 + other ** 2)``, also where a square would overflow.

    Raises:
        TypeError: an operand is no tensor.
        NotImplementedError: the operands are integers or complex numbers.
    """
    require_tensors("hypot", input=input, other=other)
    first, second = operands(input, other)
    if first.dtype.kind != "f":
        raise NotImplementedError(f"hypot is not implemented for {first.dtype}")
    return call(_hypot, first, second)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """``log2(2 ** input + 2 ** other)`` without overflow.

    Raises:
        TypeError: an operand is no tensor.
    """
    require_tensors("logaddexp2", input=input, other=other)
    first, second = operands(input, other)
    factor = math.log(2)
    return div(logaddexp(mul(first, factor), mul(second, factor)), factor)


def _logit_values(xp: Any, input: Any, *, eps: float | None) -> Any:
    if eps is not None and not eps < 0:
        above = xp.where(xp.greater(input, 1 - eps), 1 - eps, input)
        input = xp.where(xp.less(input, eps), eps, above)
    return xp.subtract(xp.log(input), xp.log1p(xp.negative(input)))


def _logit_slope(xp: Any, grad: Any, input: Any, eps: float | None) -> Any:
    is_limited = eps is not None and not eps < 0
    least = 0.0 if eps is None or not is_limited else eps
    outside = xp.logical_or(xp.less(input, least), xp.greater(input, 1 - least))
    product = xp.add(xp.multiply(input, xp.subtract(1, input)), 0.0)  # -0.0 becomes 0.0
    slope = xp.divide(grad, product)
    return xp.where(outside, 0.0 if is_limited else math.nan, slope)


_logit = operator("logit", _logit_values, input=_logit_slope)


def logit(input: Any, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``, of ``x`` between ``eps`` and ``1 - eps``.

    Outside of these its gradient is 0; without ``eps`` it is NaN outside of 0 and 1, as the value.

    Raises:
        NotImplementedError: the elements are complex.
    """
    x = floating(input)
    refuse_complex("logit", x)
    return call(_logit, x, eps=eps)


def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Numbers in place of NaN (by default 0) and infinities (the largest and the smallest).

    The gradient is 0 where an element was replaced. The parts of a complex number are treated each
    for itself.
    """
    if input.dtype.kind == "c":
        parts = (nan_to_num(part, nan, posinf, neginf) for part in (real(input), imag(input)))
        return complex_of(*parts)
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
