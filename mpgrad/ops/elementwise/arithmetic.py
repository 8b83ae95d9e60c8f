"""Arithmetic with broadcasting: ``add sub mul div pow``, absolute values, roots."""

from __future__ import annotations

import builtins
import cmath
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.ops.calling.promotion import (
    as_operand,
    as_tensor_operand,
    cast,
    floating,
    operands,
    refuse_bool,
    stored,
    wrapped,
)
from mpgrad.ops.calling.promotion import result_dtype as _result_dtype
from mpgrad.ops.elementwise.rounding import floored_quotient, truncated_quotient
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "abs",
    "absolute",
    "add",
    "addcdiv",
    "addcmul",
    "div",
    "divide",
    "lerp",
    "mul",
    "multiply",
    "neg",
    "negative",
    "pow",
    "reciprocal",
    "rsqrt",
    "sqrt",
    "square",
    "sub",
    "subtract",
    "true_divide",
]

_HALF = np.dtype(np.float16)
_LEAST_HALF, _LARGEST_HALF = float(np.finfo(_HALF).smallest_normal), float(np.finfo(_HALF).max)

_add = operator(
    "add",
    lambda xp, a, b: xp.add(a, b),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.sum_to(grad, b_shape),
    passes_on=True,
)


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """``input + alpha * other``."""
    a, b = operands(input, other)
    return _add.run(a, b if alpha == 1 else scaled(a, b, alpha))  # type: ignore[no-any-return]


_sub = operator(
    "sub",
    lambda xp, a, b: xp.subtract(a, b),
    a=lambda xp, grad, a_shape: xp.sum_to(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.negative(xp.sum_to(grad, b_shape)),
)


def refuse_subtraction(*values: Any) -> None:
    """Raise if one of the values is boolean.

    Raises:
        RuntimeError: that is so.
    """
    for value in values:
        if value._array.dtype.kind == "b" if isinstance(value, Tensor) else type(value) is bool:
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. Use the `^`, "
                "`~`, `logical_xor()` or `logical_not()` operator instead."
            )


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """``input - alpha * other``.

    Raises:
        RuntimeError: an operand is boolean.
    """
    refuse_subtraction(input, other)
    a, b = operands(input, other)
    return _sub.run(a, b if alpha == 1 else scaled(a, b, alpha))  # type: ignore[no-any-return]


_mul = operator(
    "mul",
    lambda xp, a, b: xp.multiply(a, b),
    a=lambda xp, grad, b, a_shape: xp.sum_to(xp.multiply(grad, b), a_shape),
    b=lambda xp, grad, a, b_shape: xp.sum_to(xp.multiply(grad, a), b_shape),
)


def mul(input: Any, other: Any) -> Tensor:
    """``input * other``."""
    a, b = operands(input, other)
    if (b.__class__ is float and _is_lost(b, a)) or (a.__class__ is float and _is_lost(a, b)):
        return in_float32(mul, a, b)
    return _mul.run(a, b)  # type: ignore[no-any-return]


def _is_lost(number: float, beside: Any) -> bool:
    """Whether float16, of which ``beside`` is, has no digits, or infinity, for ``number``."""
    return beside._array.dtype == _HALF and not (
        number == 0 or _LEAST_HALF <= builtins.abs(number) <= _LARGEST_HALF
    )


def in_float32(function: Callable[..., Tensor], *operands: Any, **options: Any) -> Tensor:
    """``function`` of the operands in float32, as float16: its steps may leave that range."""
    wide = (cast(x, np.float32) if isinstance(x, Tensor) else x for x in operands)
    return cast(function(*wide, **options), _HALF)


def scaled(a: Any, b: Any, alpha: Any) -> Any:
    """``b * alpha``, where ``a`` and ``b`` are :func:`operands` of what gives their dtype.

    Raises:
        RuntimeError: ``alpha`` is of a higher category than that dtype, or out of its range.
    """
    alpha = alpha.item() if isinstance(alpha, Tensor) else alpha
    dtype = _result_dtype(a, b)
    for kinds, kind, word in (("biuf", complex, "complex"), ("biu", float, "floating point")):
        if dtype.kind in kinds and isinstance(alpha, kind):
            raise RuntimeError(
                f"For operands of dtype {dtype}, argument alpha must not be a {word} number."
            )
    alpha = stored(alpha, dtype)
    return call(_mul, b, alpha) if isinstance(b, Tensor) else wrapped(b * alpha, dtype)


_div = operator(
    "div",
    lambda xp, a, b: xp.divide(a, b),
    a=lambda xp, grad, b, a_shape: xp.sum_to(xp.divide(grad, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.multiply(xp.negative(grad), xp.divide(xp.divide(a, b), b)), b_shape
    ),
)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``, true division; ``rounding_mode`` ``"floor"`` rounds down, ``"trunc"``
    towards zero.

    Raises:
        RuntimeError: an unknown ``rounding_mode``, or an integer is divided by 0.
    """
    if rounding_mode == "floor":
        return floored_quotient(input, other)
    if rounding_mode == "trunc":
        return truncated_quotient(input, other)
    if rounding_mode is not None:
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc' or 'floor' but found "
            f"{rounding_mode!r}"
        )
    a, b = operands(input, other, float_result=True)
    if b.__class__ is float and _is_lost(b, a):
        return in_float32(div, a, b)
    return _div.run(a, b)  # type: ignore[no-any-return]


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``.

    Raises:
        NotImplementedError: all are boolean.
    """
    values = [as_operand(tensor) for tensor in (input, tensor1, tensor2)]
    refuse_bool("addcmul", *values)
    dtype = _result_dtype(*values)
    if dtype.kind in "iu":
        value = stored(value, dtype)
    if dtype == _HALF:
        return in_float32(addcmul, *values, value=value)
    return add(input, mul(tensor1, tensor2), alpha=value)


def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``.

    Raises:
        RuntimeError: ``tensor1`` and ``tensor2`` are integers.
    """
    if _result_dtype(as_operand(tensor1), as_operand(tensor2)).kind not in "fc":
        raise RuntimeError(
            "addcdiv: integer division is not supported. Use add(input, div(tensor1, tensor2)) "
            "for true division."
        )
    values = [as_operand(tensor) for tensor in (input, tensor1, tensor2)]
    if _result_dtype(*values) == _HALF:
        return in_float32(addcdiv, *values, value=value)
    return add(input, div(tensor1, tensor2), alpha=value)


def _rest(xp: Any, weight: Any) -> Any:
    return xp.subtract(1, weight) if hasattr(weight, "dtype") else 1 - weight


def _between(xp: Any, input: Any, end: Any, weight: Any) -> Any:
    way = xp.subtract(end, input)

    def near() -> Any:
        return xp.add(input, xp.multiply(weight, way))

    def far() -> Any:
        return xp.subtract(end, xp.multiply(way, _rest(xp, weight)))

    if isinstance(weight, int | float | complex):
        return near() if builtins.abs(weight) < 0.5 else far()
    return xp.where(xp.less(xp.absolute(weight), 0.5), near(), far())


_lerp = operator(
    "lerp",
    _between,
    input=lambda xp, grad, weight, input_shape: xp.sum_to(
        xp.multiply(grad, _rest(xp, weight)), input_shape
    ),
    end=lambda xp, grad, weight, end_shape: xp.sum_to(xp.multiply(grad, weight), end_shape),
    weight=lambda xp, grad, input, end, weight_shape: xp.sum_to(
        xp.multiply(grad, xp.subtract(end, input)), weight_shape
    ),
)


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """``input + weight * (end - input)``, computed from the nearer end.

    Raises:
        RuntimeError: the dtypes differ.
        NotImplementedError: they are no floating or complex ones.
    """
    a, b = as_tensor_operand(input), as_tensor_operand(end)
    is_single = isinstance(weight, Tensor) and not weight.ndim
    for name, other in (("end", b), ("weight", None if is_single else weight)):
        if isinstance(other, Tensor) and other.dtype != a.dtype:
            raise RuntimeError(f"lerp: expected dtype {a.dtype} for `{name}` but got {other.dtype}")
    if is_single:
        a, b, weight = (cast(x, _result_dtype(a, b, weight)) for x in (a, b, weight))
    if a.dtype.kind not in "fc":
        raise NotImplementedError(f"lerp is not implemented for {a.dtype}")
    if a.dtype == _HALF:
        return in_float32(lerp, a, b, weight)
    return call(_lerp, a, b, as_operand(weight))


_REAL = np.dtype(np.float32)


def _power(xp: Any, a: Any, b: Any) -> Any:
    if isinstance(b, int | float):
        # Two exponents that are common and whose NumPy loop is many times slower.
        if b == 2:
            return xp.multiply(a, a)
        if b == 0.5:
            return xp.sqrt(a)
    elif getattr(b, "dtype", _REAL).kind == "i":
        # NumPy refuses integers to negative powers: 1 / a ** -b, cut off to an integer.
        sign = xp.subtract(1, xp.multiply(xp.remainder(b, 2), 2))
        inverse = xp.where(xp.equal(a, 1), 1, xp.where(xp.equal(a, -1), sign, 0))
        return xp.where(xp.less(b, 0), inverse, xp.power(a, xp.maximum(b, 0)))
    return xp.power(a, b)


def _power_grad_base(xp: Any, grad: Any, a: Any, b: Any, a_shape: Any) -> Any:
    """``b * a ** (b - 1)``, and 0 for ``b == 0`` even where ``a`` is 0."""
    if isinstance(b, int | float | complex):
        if b == 0:
            return xp.zeros_beside(grad, grad.shape)
        slope = xp.multiply(_power(xp, a, b - 1), b) if b != 2 else xp.multiply(a, 2)
        return xp.sum_to(xp.multiply(grad, slope), a_shape)
    flat = xp.equal(b, 0)
    # The power is of 1 where it is masked, so that its own derivative stays finite, too.
    slope = xp.multiply(b, xp.power(a, xp.subtract(xp.where(flat, 1, b), 1)))
    return xp.sum_to(xp.multiply(grad, xp.where(flat, 0.0, slope)), a_shape)


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
    if _result_dtype(a, b).kind == "b":
        if not isinstance(b, bool):
            raise NotImplementedError("pow is not implemented for bool")
        return call(_add, a, not b)
    if isinstance(exponent, int) and isinstance(a, Tensor) and a._array.dtype.kind in "iu":
        if exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        stored(exponent, a._array.dtype)  # it raises for one that would wrap around
    return call(_pow, a, b)


_neg = operator(
    "neg", lambda xp, input: xp.negative(input), input=lambda xp, grad: xp.negative(grad)
)


def neg(input: Any) -> Tensor:
    """``-input``.

    Raises:
        RuntimeError: the elements are boolean.
    """
    tensor = as_tensor_operand(input)
    if tensor._array.dtype.kind == "b":
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. Use the `~` or "
            "`logical_not()` operator instead."
        )
    return _neg.run(tensor)  # type: ignore[no-any-return]


_abs = operator(
    "abs",
    lambda xp, input: xp.absolute(input),
    input=lambda xp, grad, input: xp.multiply(grad, xp.sign(input)),
    wirtinger=True,
)


def abs(input: Any) -> Tensor:
    """The absolute value, real also of complex numbers; its gradient at 0 is 0.

    Raises:
        NotImplementedError: the elements are boolean.
    """
    tensor = as_tensor_operand(input)
    refuse_bool("abs", tensor)
    return call(_abs, tensor)


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
    tensor = as_tensor_operand(input)
    return call(_square, cast(tensor, np.int64) if tensor.dtype.kind == "b" else tensor)


#: PyTorch's other names.
absolute, negative, multiply, subtract = abs, neg, mul, sub
divide = true_divide = div
