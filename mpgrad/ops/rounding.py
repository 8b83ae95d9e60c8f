"""To whole numbers: ``floor ceil trunc round sign``, quotients and remainders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops.promotion import as_tensor_operand, operands, refuse_bool, refuse_complex
from mpgrad.ops.registry import not_implemented, operator
from mpgrad.tensor import Tensor

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


def _flat(name: str, function: str, doc: str, whole: str = "iu") -> Callable[[Any], Tensor]:
    """A step function: its gradient is zero wherever it has one.

    Args:
        name: of the operator.
        function: of the array namespace.
        doc: the docstring.
        whole: kinds of dtypes whose elements stay as they are.
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
round = _flat("round", "rint", "The nearest integer, halves to even; the gradient is zero.")
