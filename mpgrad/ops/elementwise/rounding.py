"""To whole numbers: ``floor ceil trunc round sign``, quotients and remainders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.calling.promotion import (
    as_tensor_operand,
    operands,
    refuse_bool,
    refuse_complex,
    result_dtype,
)
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import not_implemented, operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "ceil",
    "floor",
    "floor_divide",
    "remainder",
    "round",
    "sign",
    "trunc",
]

_floored_quotient = operator(
    "floored_quotient",
    lambda xp, a, b: xp.floor_divide(a, b),
    a=lambda xp, grad, a_shape: xp.zeros_beside(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.zeros_beside(grad, b_shape),
)


def floored_quotient(input: Any, other: Any) -> Tensor:
    """``div(input, other, rounding_mode="floor")``; the gradient is zero."""
    return call(_floored_quotient, *quotient_operands("div", input, other))


_truncated_quotient = operator(
    "truncated_quotient",
    lambda xp, a, b: _cut_off(xp, a, b),
    a=lambda xp, grad, a_shape: xp.zeros_beside(grad, a_shape),
    b=lambda xp, grad, b_shape: xp.zeros_beside(grad, b_shape),
)


def _cut_off(xp: Any, a: Any, b: Any) -> Any:
    if (a if hasattr(a, "dtype") else b).dtype.kind == "f":
        return xp.trunc(xp.divide(a, b))
    # Rounded down, and up by one if that leaves a rest of a negative quotient.
    rest = xp.not_equal(xp.remainder(a, b), 0)
    is_negative = xp.not_equal(xp.less(a, 0), xp.less(b, 0))
    return xp.add(xp.floor_divide(a, b), xp.logical_and(rest, is_negative))


def truncated_quotient(input: Any, other: Any) -> Tensor:
    """``div(input, other, rounding_mode="trunc")``; the gradient is zero."""
    return call(_truncated_quotient, *quotient_operands("div", input, other))


def quotient_operands(name: str, input: Any, other: Any) -> tuple[Any, Any]:
    """The operands of a division that is rounded.

    Raises:
        NotImplementedError: they are complex or boolean.
        RuntimeError: integers are divided by 0.
    """
    a, b = operands(input, other)
    refuse_complex(name, a, b)
    refuse_bool(name, a, b)
    if result_dtype(a, b).kind in "iu":
        divisor = on_host(b._array) if isinstance(b, Tensor) else b
        if not np.all(divisor):
            raise RuntimeError(f"{name}: ZeroDivisionError: an integer is divided by 0")
    return a, b


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
    return call(_floor_divide, *quotient_operands("floor_divide", input, other))


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
    return call(_remainder, *quotient_operands("remainder", input, other))


def _flat(name: str, function: str, doc: str, whole: str = "iu") -> Callable[[Any], Tensor]:
    """A step function: its gradient is zero wherever it has one.

    Args:
        name: of the operator.
        function: of the array namespace.
        doc: the docstring.
        whole: kinds of dtypes whose elements are unchanged.
    """
    op = operator(
        name,
        lambda xp, input: (
            xp.copy(input) if input.dtype.kind in whole else getattr(xp, function)(input)
        ),
        input=lambda xp, grad: xp.zeros_beside(grad, grad.shape),
    )

    def public(input: Any) -> Tensor:
        tensor = as_tensor_operand(input)
        refuse_complex(name, tensor)
        if "b" not in whole:
            refuse_bool(name, tensor)
        return call(op, tensor)

    public.__name__, public.__doc__ = name, doc
    return public


sign = _flat("sign", "sign", "-1, 0 or 1, of NaN 0; the gradient is zero.", whole="b")
floor = _flat("floor", "floor", "The largest integer not above; the gradient is zero.")
ceil = _flat("ceil", "ceil", "The smallest integer not below; the gradient is zero.")
trunc = _flat("trunc", "trunc", "The integer part; the gradient is zero.")
rint = _flat("round", "rint", "The nearest integer, halves to even; the gradient is zero.")


def _rounded(xp: Any, input: Any, *, decimals: int) -> Any:
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return xp.divide(xp.rint(xp.multiply(input, scale)), scale)
    return xp.multiply(xp.rint(xp.divide(input, scale)), scale)


_round_decimals = operator(
    "round_decimals",
    _rounded,
    input=lambda xp, grad: xp.zeros_beside(grad, grad.shape),
)


def round(input: Any, *, decimals: int = 0) -> Tensor:
    """The nearest number with this many decimals, halves to even; the gradient is zero."""
    tensor = as_tensor_operand(input)
    if decimals == 0:
        return rint(tensor)
    if tensor.dtype.kind != "f":
        raise NotImplementedError(f"round with decimals is not implemented for {tensor.dtype}")
    return call(_round_decimals, tensor, decimals=decimals)
