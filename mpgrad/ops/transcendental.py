"""Exponentials, logarithms, trigonometric and S-shaped functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops.promotion import as_tensor_operand, floating, refuse_complex
from mpgrad.ops.registry import Formula, operator
from mpgrad.tensor import Tensor

__all__ = [
    "arccos",
    "arcsin",
    "arctan",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "log",
    "log1p",
    "relu",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
]


def _elementwise(
    name: str, forward: Formula, derivative: Formula, doc: str, *, is_real: bool = False
) -> Callable[[Any], Tensor]:
    """Register ``name`` and make its public function of one floating tensor."""
    op = operator(name, forward, input=derivative)

    def public(input: Any) -> Tensor:
        tensor = floating(input)
        if is_real:
            refuse_complex(name, tensor)
        return call(op, tensor)

    public.__name__, public.__qualname__, public.__doc__ = name, name, doc
    return public


exp = _elementwise(
    "exp",
    lambda xp, input: xp.exp(input),
    lambda xp, grad, result: xp.multiply(grad, result),
    "e to the power of each element.",
)
expm1 = _elementwise(
    "expm1",
    lambda xp, input: xp.expm1(input),
    lambda xp, grad, result: xp.multiply(grad, xp.add(result, 1)),
    "``exp(input) - 1``, exact near 0.",
)
log = _elementwise(
    "log",
    lambda xp, input: xp.log(input),
    lambda xp, grad, input: xp.divide(grad, input),
    "The natural logarithm.",
)
log1p = _elementwise(
    "log1p",
    lambda xp, input: xp.log1p(input),
    lambda xp, grad, input: xp.divide(grad, xp.add(input, 1)),
    "``log(1 + input)``, exact near 0.",
)
sin = _elementwise(
    "sin",
    lambda xp, input: xp.sin(input),
    lambda xp, grad, input: xp.multiply(grad, xp.cos(input)),
    "The sine.",
)
cos = _elementwise(
    "cos",
    lambda xp, input: xp.cos(input),
    lambda xp, grad, input: xp.negative(xp.multiply(grad, xp.sin(input))),
    "The cosine.",
)
tan = _elementwise(
    "tan",
    lambda xp, input: xp.tan(input),
    lambda xp, grad, result: xp.multiply(grad, xp.add(xp.multiply(result, result), 1)),
    "The tangent.",
)
arcsin = _elementwise(
    "arcsin",
    lambda xp, input: xp.arcsin(input),
    lambda xp, grad, input: xp.divide(grad, xp.sqrt(xp.subtract(1, xp.multiply(input, input)))),
    "The inverse of the sine.",
)
arccos = _elementwise(
    "arccos",
    lambda xp, input: xp.arccos(input),
    lambda xp, grad, input: xp.negative(
        xp.divide(grad, xp.sqrt(xp.subtract(1, xp.multiply(input, input))))
    ),
    "The inverse of the cosine.",
)
arctan = _elementwise(
    "arctan",
    lambda xp, input: xp.arctan(input),
    lambda xp, grad, input: xp.divide(grad, xp.add(xp.multiply(input, input), 1)),
    "The inverse of the tangent.",
)
sinh = _elementwise(
    "sinh",
    lambda xp, input: xp.sinh(input),
    lambda xp, grad, input: xp.multiply(grad, xp.cosh(input)),
    "The hyperbolic sine.",
)
cosh = _elementwise(
    "cosh",
    lambda xp, input: xp.cosh(input),
    lambda xp, grad, input: xp.multiply(grad, xp.sinh(input)),
    "The hyperbolic cosine.",
)
tanh = _elementwise(
    "tanh",
    lambda xp, input: xp.tanh(input),
    lambda xp, grad, result: xp.multiply(grad, xp.subtract(1, xp.multiply(result, result))),
    "The hyperbolic tangent.",
)
sigmoid = _elementwise(
    "sigmoid",
    lambda xp, input: xp.sigmoid(input),
    lambda xp, grad, result: xp.multiply(grad, xp.multiply(result, xp.subtract(1, result))),
    "``1 / (1 + exp(-input))``, computed so that it cannot overflow.",
)
erf = _elementwise(
    "erf",
    lambda xp, input: xp.erf(input),
    lambda xp, grad, input: xp.multiply(
        xp.multiply(grad, 2 / math.sqrt(math.pi)), xp.exp(xp.negative(xp.multiply(input, input)))
    ),
    "The error function.",
    is_real=True,
)


_relu = operator(
    "relu",
    lambda xp, input: xp.maximum(input, 0),
    # The result tells where the input was positive, and the next layer has saved it anyway.
    input=lambda xp, grad, result: xp.where(xp.greater(result, 0), grad, 0.0),
)


def relu(input: Any) -> Tensor:
    """``max(input, 0)``; the gradient at 0 is 0."""
    tensor = as_tensor_operand(input)
    refuse_complex("relu", tensor)
    return call(_relu, tensor)
