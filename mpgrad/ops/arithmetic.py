"""Arithmetic with broadcasting: ``add sub mul div pow``, extrema, selection, roots."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops.out_argument import into
from mpgrad.ops.promotion import (
    as_operand,
    as_tensor_operand,
    cast,
    floating,
    operands,
    refuse_complex,
)
from mpgrad.ops.promotion import result_dtype as _result_dtype
from mpgrad.ops.registry import not_implemented, operator
from mpgrad.tensor import Tensor

__all__ = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "div",
    "floor",
    "floor_divide",
    "lerp",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
    "sub",
    "trunc",
    "where",
]

_add = operator(
    "add",
    lambda xp, a, b: xp.add(a, b),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.sum_to(grad, b_shape),
)

#: Operators whose inputs get the gradient itself, the very array, where none was broadcast.
PASSING_ON = frozenset({_add.name})


def add(input: Any, other: Any, *, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    """``input + alpha * other``."""
    if out is not None:
        return into(out, add, input, other, alpha=alpha)
    a, b = operands(input, other)
    return call(_add, a, b if alpha == 1 else mul(b, alpha))


_sub = operator(
    "sub",
    lambda xp, a, b: xp.subtract(a, b),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.negative(xp.sum_to(grad, b_shape)),
)


def sub(input: Any, other: Any, *, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    """``input - alpha * other``."""
    if out is not None:
        return into(out, sub, input, other, alpha=alpha)
    a, b = operands(input, other)
    if _result_dtype(a, b).kind == "b":
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    return call(_sub, a, b if alpha == 1 else mul(b, alpha))


_mul = operator(
    "mul",
    lambda xp, a, b: xp.multiply(a, b),
    a=lambda xp, grad, b, a_shape: xp.sum_to(xp.multiply(grad, b), a_shape),
    b=lambda xp, grad, a, b_shape: xp.sum_to(xp.multiply(grad, a), b_shape),
)


def mul(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    """``input * other``."""
    if out is not None:
        return into(out, mul, input, other)
    return call(_mul, *operands(input, other))


_div = operator(
    "div",
    lambda xp, a, b: xp.divide(a, b),
    a=lambda xp, grad, b, a_shape: xp.sum_to(xp.divide(grad, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.multiply(xp.negative(grad), xp.divide(xp.divide(a, b), b)), b_shape
    ),
)


def div(
    input: Any, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None
) -> Tensor:
    """``input / other``, true division; ``rounding_mode="floor"`` rounds down.

    Raises:
        RuntimeError: an unknown ``rounding_mode``.
    """
    if out is not None:
        return into(out, div, input, other, rounding_mode=rounding_mode)
    if rounding_mode == "floor":
        return floored_quotient(input, other)
    if rounding_mode is not None:
        raise RuntimeError(
            f"div expected rounding_mode to be one of None or 'floor' but found {rounding_mode!r}"
        )
    return call(_div, *operands(input, other, float_result=True))


_floored_quotient = operator(
    "floored_quotient",
    lambda xp, a, b: xp.floor_divide(a, b),
    a=lambda xp, grad, a_shape: xp.zeros_beside(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.zeros_beside(grad, b_shape),
)


def floored_quotient(input: Any, other: Any) -> Tensor:
    """``div(input, other, rounding_mode="floor")``; the gradient is zero."""
    a, b = operands(input, other)
    refuse_complex("floor_divide", a, b)
    return call(_floored_quotient, a, b)


_floor_divide = operator(
    "floor_divide",
    lambda xp, a, b: xp.floor_divide(a, b),
    a=not_implemented("floor_divide"),
    b=not_implemented("floor_divide"),
)


def floor_divide(input: Any, other: Any) -> Tensor:
    """``floor(input / other)``. A backward that comes to it is an error, as in PyTorch: use
    ``div(input, other, rounding_mode="floor")`` where a gradient of zero is meant.
    """
    a, b = operands(input, other)
    refuse_complex("floor_divide", a, b)
    return call(_floor_divide, a, b)


_remainder = operator(
    "remainder",
    lambda xp, a, b: xp.remainder(a, b),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.negative(xp.multiply(grad, xp.floor_divide(a, b))), b_shape
    ),
)


def remainder(input: Any, other: Any) -> Tensor:
    """Python's ``input % other``: the sign of the divisor."""
    a, b = operands(input, other)
    refuse_complex("remainder", a, b)
    return call(_remainder, a, b)


def clamp_min(input: Any, min: Any) -> Tensor:
    """At least ``min``."""
    return clamp(input, min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """At most ``max``."""
    return clamp(input, None, max)


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``."""
    return add(input, mul(tensor1, tensor2), alpha=value)


def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``."""
    return add(input, div(tensor1, tensor2), alpha=value)


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """``input + weight * (end - input)``."""
    return add(input, mul(weight, sub(end, input)))


def _power(xp: Any, a: Any, b: Any) -> Any:
    if isinstance(b, int | float):
        # Two exponents that are common and whose NumPy loop is many times slower.
        if b == 2:
            return xp.multiply(a, a)
        if b == 0.5:
            return xp.sqrt(a)
    return xp.power(a, b)


def _power_grad_base(xp: Any, grad: Any, a: Any, b: Any, a_shape: Any) -> Any:
    """``b * a ** (b - 1)``, and 0 for ``b == 0`` even where ``a`` is 0."""
    if isinstance(b, int | float | complex):
        if b == 0:
            return xp.zeros_beside(grad, grad.shape)
        slope = xp.multiply(_power(xp, a, b - 1), b) if b != 2 else xp.multiply(a, 2)
        return xp.sum_to(xp.multiply(grad, slope), a_shape)
    slope = xp.multiply(b, xp.power(a, xp.subtract(b, 1)))
    return xp.sum_to(xp.multiply(grad, xp.where(xp.equal(b, 0), 0.0, slope)), a_shape)


def _power_grad_exponent(xp: Any, grad: Any, a: Any, b: Any, result: Any, b_shape: Any) -> Any:
    """``a ** b * log(a)``, and 0 for ``a == 0`` with ``b >= 0``, the limit from the right."""
    if isinstance(a, int | float | complex):
        if a == 0:
            slope = xp.where(_not_negative(xp, b), 0.0, xp.multiply(result, -float("inf")))
        else:
            slope = xp.multiply(result, _log_of_scalar(a, is_complex=b.dtype.kind == "c"))
        return xp.sum_to(xp.multiply(grad, slope), b_shape)
    flat = xp.logical_and(xp.equal(a, 0), _not_negative(xp, b))
    # log is taken of 1 where it would be masked, so that its own derivative stays finite too.
    slope = xp.multiply(result, xp.log(xp.where(flat, 1.0, a)))
    return xp.sum_to(xp.multiply(grad, xp.where(flat, 0.0, slope)), b_shape)


def _not_negative(xp: Any, x: Any) -> Any:
    return xp.greater_equal(xp.real(x) if x.dtype.kind == "c" else x, 0)


def _log_of_scalar(value: complex, *, is_complex: bool) -> complex:
    if is_complex:
        return cmath.log(value)
    return math.log(value.real) if value.real > 0 else math.nan


_pow = operator("pow", _power, a=_power_grad_base, b=_power_grad_exponent)


def pow(input: Any, exponent: Any) -> Tensor:
    """``input ** exponent``.

    Raises:
        RuntimeError: integers to a negative integer power.
    """
    a, b = operands(input, exponent)
    if isinstance(b, int) and b < 0 and isinstance(a, Tensor) and a._array.dtype.kind in "iu":
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return call(_pow, a, b)


_neg = operator(
    "neg", lambda xp, input: xp.negative(input), input=lambda xp, grad: xp.negative(grad)
)


def neg(input: Any) -> Tensor:
    """``-input``."""
    return call(_neg, as_tensor_operand(input))


_abs = operator(
    "abs",
    lambda xp, input: xp.absolute(input),
    input=lambda xp, grad, input: xp.multiply(grad, xp.sign(input)),
    wirtinger=True,
)


def abs(input: Any) -> Tensor:
    """The absolute value, real also of complex numbers; its gradient at 0 is 0."""
    return call(_abs, as_tensor_operand(input))


def _chosen(xp: Any, grad: Any, wins: Any, ties: Any, shape: Any) -> Any:
    """The gradient of the operand that ``wins``; a tie gives half to each, as in PyTorch."""
    whole = xp.where(wins, grad, 0.0)
    return xp.sum_to(xp.where(ties, xp.multiply(grad, 0.5), whole), shape)


_maximum = operator(
    "maximum",
    lambda xp, a, b: xp.maximum(a, b),
    a=lambda xp, grad, a, b, a_shape: _chosen(xp, grad, xp.greater(a, b), xp.equal(a, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: _chosen(xp, grad, xp.less(a, b), xp.equal(a, b), b_shape),
)
_minimum = operator(
    "minimum",
    lambda xp, a, b: xp.minimum(a, b),
    a=lambda xp, grad, a, b, a_shape: _chosen(xp, grad, xp.less(a, b), xp.equal(a, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: _chosen(xp, grad, xp.greater(a, b), xp.equal(a, b), b_shape),
)


def maximum(input: Any, other: Any) -> Tensor:
    """The larger of each pair of elements; a NaN wins."""
    a, b = operands(input, other)
    refuse_complex("maximum", a, b)
    return call(_maximum, a, b)


def minimum(input: Any, other: Any) -> Tensor:
    """The smaller of each pair of elements; a NaN wins."""
    a, b = operands(input, other)
    refuse_complex("minimum", a, b)
    return call(_minimum, a, b)


def _clamp_forward(xp: Any, input: Any, *, min: float | None, max: float | None) -> Any:
    if min is not None:
        input = xp.maximum(input, min)
    return input if max is None else xp.minimum(input, max)


def _clamp_grad(xp: Any, grad: Any, input: Any, min: float | None, max: float | None) -> Any:
    if min is not None:
        grad = xp.where(xp.greater_equal(input, min), grad, 0.0)
    return grad if max is None else xp.where(xp.less_equal(input, max), grad, 0.0)


_clamp = operator("clamp", _clamp_forward, input=_clamp_grad)


def clamp(input: Any, min: float | None = None, max: float | None = None) -> Tensor:
    """Limit every element to [``min``, ``max``]; the gradient is 1 on the limits, 0 outside.

    Raises:
        RuntimeError: neither limit is given.
    """
    if min is None and max is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        input = input if min is None else maximum(input, min)
        return input if max is None else minimum(input, max)
    tensor = as_tensor_operand(input)
    refuse_complex("clamp", tensor)
    limits = tuple(as_operand(limit) for limit in (min, max) if limit is not None)
    tensor = cast(tensor, _result_dtype(tensor, *limits))
    return call(_clamp, tensor, min=min, max=max)


_where = operator(
    "where",
    lambda xp, condition, a, b: xp.where(condition, a, b),
    a=lambda xp, grad, condition, a_shape: xp.sum_to(xp.where(condition, grad, 0.0), a_shape),
    b=lambda xp, grad, condition, b_shape: xp.sum_to(xp.where(condition, 0.0, grad), b_shape),
    wirtinger=True,
)


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """``input`` where ``condition`` is true, ``other`` elsewhere (all broadcast)."""
    return call(_where, cast(as_tensor_operand(condition), bool), *operands(input, other))


_sqrt = operator(
    "sqrt",
    lambda xp, input: xp.sqrt(input),
    input=lambda xp, grad, result: xp.divide(grad, xp.multiply(result, 2)),
)


def sqrt(input: Any) -> Tensor:
    """The square root."""
    return call(_sqrt, floating(input))


_rsqrt = operator(
    "rsqrt",
    lambda xp, input: xp.reciprocal(xp.sqrt(input)),
    input=lambda xp, grad, result: xp.multiply(
        xp.multiply(grad, -0.5), xp.multiply(result, xp.multiply(result, result))
    ),
)


def rsqrt(input: Any) -> Tensor:
    """``1 / sqrt(input)``."""
    return call(_rsqrt, floating(input))


_reciprocal = operator(
    "reciprocal",
    lambda xp, input: xp.reciprocal(input),
    input=lambda xp, grad, result: xp.negative(xp.multiply(grad, xp.multiply(result, result))),
)


def reciprocal(input: Any) -> Tensor:
    """``1 / input``."""
    return call(_reciprocal, floating(input))


_square = operator(
    "square",
    lambda xp, input: xp.square(input),
    input=lambda xp, grad, input: xp.multiply(grad, xp.multiply(input, 2)),
)


def square(input: Any) -> Tensor:
    """``input * input``."""
    return call(_square, as_tensor_operand(input))


def _flat(name: str, function: str, doc: str) -> Callable[[Any], Tensor]:
    """A step function: its gradient is zero wherever it has one."""
    op = operator(
        name,
        lambda xp, input: getattr(xp, function)(input),
        input=lambda xp, grad: xp.zeros_beside(grad, grad.shape),
    )

    def public(input: Any) -> Tensor:
        tensor = as_tensor_operand(input)
        refuse_complex(name, tensor)
        return call(op, tensor)

    public.__name__, public.__doc__ = name, doc
    return public


sign = _flat("sign", "sign", "-1, 0 or 1; the gradient is zero.")
floor = _flat("floor", "floor", "The largest integer not above; the gradient is zero.")
ceil = _flat("ceil", "ceil", "The smallest integer not below; the gradient is zero.")
trunc = _flat("trunc", "trunc", "The integer part; the gradient is zero.")
round = _flat("round", "rint", "The nearest integer, halves to even; the gradient is zero.")
