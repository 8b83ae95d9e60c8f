"""Exponentials, logarithms, trigonometric and S-shaped functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.ops.calling.promotion import (
    as_tensor_operand,
    floating,
    operands,
    real_tensors,
    refuse_complex,
    require_tensors,
)
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import Formula, operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "relu",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "xlogy",
]


def _elementwise(
    name: str,
    forward: Formula,
    derivative: Formula,
    doc: str,
    *,
    is_real: bool = False,
    fuses: bool = True,
) -> Callable[..., Tensor]:
    """Register ``name`` and make its public function of one floating tensor.

    Args:
        is_real: complex tensors are refused.
        fuses: False if the formulas use a dtype, which a fused kernel does not know.
    """
    op = operator(name, forward, input=derivative, elementwise=fuses)

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
exp2 = _elementwise(
    "exp2",
    lambda xp, input: xp.exp2(input),
    lambda xp, grad, result: xp.multiply(grad, xp.multiply(result, math.log(2))),
    "2 to the power of each element.",
)
log2 = _elementwise(
    "log2",
    lambda xp, input: xp.log2(input),
    lambda xp, grad, input: xp.divide(grad, xp.multiply(input, math.log(2))),
    "The logarithm to the base 2.",
)
log10 = _elementwise(
    "log10",
    lambda xp, input: xp.log10(input),
    lambda xp, grad, input: xp.divide(grad, xp.multiply(input, math.log(10))),
    "The logarithm to the base 10.",
)


def _log1p(xp: Any, input: Any) -> Any:
    if input.dtype.kind != "c":
        return xp.log1p(input)
    # NumPy's loses small real parts.
    real, imag = xp.real(input), xp.imag(input)
    beyond = xp.add(xp.multiply(real, xp.add(real, 2)), xp.multiply(imag, imag))
    near = xp.multiply(xp.log1p(beyond), 0.5)
    far = xp.log(xp.absolute(xp.add(input, 1)))
    is_near = xp.less(xp.absolute(input), 0.5)
    return xp.complex(xp.where(is_near, near, far), xp.arctan2(imag, xp.add(real, 1)))


log1p = _elementwise(
    "log1p",
    _log1p,
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
arcsinh = _elementwise(
    "arcsinh",
    lambda xp, input: xp.arcsinh(input),
    lambda xp, grad, input: xp.divide(grad, xp.sqrt(xp.add(xp.multiply(input, input), 1))),
    "The inverse of the hyperbolic sine.",
)


def _arccosh_grad(xp: Any, grad: Any, input: Any) -> Any:
    """``grad / sqrt(input ** 2 - 1)``, as PyTorch gives it also below 1."""
    less, more = xp.subtract(input, 1), xp.add(input, 1)
    if input.dtype.kind == "c":  # the root of the product would be on the wrong branch
        return xp.divide(grad, xp.multiply(xp.sqrt(less), xp.sqrt(more)))
    return xp.divide(grad, xp.sqrt(xp.add(xp.multiply(less, more), 0.0)))  # -0.0 becomes 0.0


arccosh = _elementwise(
    "arccosh",
    lambda xp, input: xp.arccosh(input),
    _arccosh_grad,
    "The inverse of the hyperbolic cosine.",
    fuses=False,
)
arctanh = _elementwise(
    "arctanh",
    lambda xp, input: xp.arctanh(input),
    lambda xp, grad, input: xp.divide(grad, xp.subtract(1, xp.multiply(input, input))),
    "The inverse of the hyperbolic tangent.",
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


#: PyTorch's first names.
asin, acos, atan, asinh, acosh, atanh = arcsin, arccos, arctan, arcsinh, arccosh, arctanh


def _per_squares(xp: Any, grad: Any, part: Any, a: Any, b: Any) -> Any:
    """``grad * part / (a * a + b * b)``, and 0 at the origin."""
    squares = xp.add(xp.multiply(a, a), xp.multiply(b, b))
    origin = xp.equal(squares, 0)
    quotient = xp.divide(part, xp.where(origin, 1.0, squares))
    return xp.multiply(grad, xp.where(origin, 0.0, quotient))


_arctan2 = operator(
    "arctan2",
    lambda xp, a, b: xp.arctan2(a, b),
    a=lambda xp, grad, a, b, a_shape: xp.sum_to(_per_squares(xp, grad, b, a, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.negative(_per_squares(xp, grad, a, a, b)), b_shape
    ),
)


def arctan2(input: Any, other: Any) -> Tensor:
    """The angle of the point (``other``, ``input``), in (-pi, pi].

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("atan2", input=input, other=other)
    a, b = operands(input, other, float_result=True)
    refuse_complex("atan2", a, b)
    return call(_arctan2, a, b)


atan2 = arctan2


def _logaddexp_of(xp: Any, a: Any, b: Any) -> Any:
    if a.dtype.kind != "c":
        return xp.logaddexp(a, b)
    swapped = xp.less(xp.real(a), xp.real(b))
    larger, smaller = xp.where(swapped, b, a), xp.where(swapped, a, b)
    return xp.add(larger, xp.log1p(xp.exp(xp.subtract(smaller, larger))))


_logaddexp = operator(
    "logaddexp",
    _logaddexp_of,
    a=lambda xp, grad, a, b, a_shape: xp.sum_to(
        xp.multiply(grad, xp.sigmoid(xp.subtract(a, b))), a_shape
    ),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.multiply(grad, xp.sigmoid(xp.subtract(b, a))), b_shape
    ),
)


def logaddexp(input: Any, other: Any) -> Tensor:
    """``log(exp(input) + exp(other))``, computed so that it cannot overflow.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("logaddexp", input=input, other=other)
    a, b = operands(input, other, float_result=True)
    return call(_logaddexp, as_tensor_operand(a), as_tensor_operand(b))


def _xlogy_values(xp: Any, a: Any, b: Any) -> Any:
    nothing = xp.logical_and(xp.equal(a, 0), xp.logical_not(xp.isnan(b)))
    return xp.where(nothing, 0.0, xp.multiply(a, xp.log(b)))


_xlogy = operator(
    "xlogy",
    _xlogy_values,
    a=lambda xp, grad, a, b, a_shape: xp.sum_to(
        xp.where(
            xp.logical_and(xp.equal(a, 0), xp.less_equal(b, 0)), 0.0, _xlogy_values(xp, grad, b)
        ),
        a_shape,
    ),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(xp.multiply(grad, xp.divide(a, b)), b_shape),
)


def xlogy(input: Any, other: Any) -> Tensor:
    """``input * log(other)``, and 0 where ``input`` is 0 (NaN where ``other`` is NaN)."""
    return call(_xlogy, *real_tensors("xlogy", input, other, float_result=True))


_relu = operator(
    "relu",
    lambda xp, input: xp.maximum(input, 0),
    # The result shows where the input was positive, and the next layer has saved it anyway.
    # It is never negative; a NaN lets the gradient through.
    input=lambda xp, grad, result: xp.where(xp.not_equal(result, 0), grad, 0.0),
    elementwise=True,
)


def relu(input: Any) -> Tensor:
    """``max(input, 0)``; the gradient at 0 is 0.

    Raises:
        RuntimeError: the elements are boolean.
    """
    tensor = as_tensor_operand(input)
    if tensor._array.dtype.kind == "b":
        raise RuntimeError("Boolean inputs not supported for relu")
    if tensor._array.dtype.kind == "c":
        refuse_complex("relu", tensor)
    return _relu.run(tensor)  # type: ignore[no-any-return]
