"""Activations that are more than one elementary function: softmax, GELU, SiLU and others.

``_<name>_values`` computes the forward, and ``_<name>_slope`` is the derivative formula;
both are run ``blockwise``.
"""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.calling.dimensions import either, one_dim
from mpgrad.ops.calling.promotion import (
    as_tensor_operand,
    cast,
    floating,
    refuse_complex,
    require_numbers,
)
from mpgrad.ops.elementwise.transcendental import exp
from mpgrad.ops.elementwise.transcendental import relu as _relu
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.dispatch.in_place import call_in_place
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import OPERATORS, Operator, operator
from mpgrad.recording.tensors.tensor import Tensor

Axes = tuple[int, ...]


def _shifted(xp: Any, axes: Axes, x: Any) -> Any:
    """``x`` minus its largest element, so that ``exp`` cannot overflow."""
    return xp.subtract(x, xp.max(x, axes, True))


def _softmax_values(xp: Any, axes: Axes, x: Any) -> Any:
    powers = xp.exp(_shifted(xp, axes, x))
    return xp.multiply(powers, xp.reciprocal(xp.sum(powers, axes, True)))


def _softmax_slope(xp: Any, axes: Axes, grad: Any, result: Any) -> Any:
    inner = xp.sum(xp.multiply(grad, result), axes, True)
    return xp.multiply(result, xp.subtract(grad, inner))


def _log_softmax_values(xp: Any, axes: Axes, x: Any) -> Any:
    shifted = _shifted(xp, axes, x)
    return xp.subtract(shifted, xp.log(xp.sum(xp.exp(shifted), axes, True)))


def _log_softmax_slope(xp: Any, axes: Axes, grad: Any, result: Any) -> Any:
    return xp.subtract(grad, xp.multiply(xp.exp(result), xp.sum(grad, axes, True)))


_softmax = operator(
    "softmax",
    lambda xp, input, *, dim: xp.blockwise(_softmax_values, input, axes=(dim,)),
    input=lambda xp, grad, result, dim: xp.blockwise(_softmax_slope, grad, result, axes=(dim,)),
)
_log_softmax = operator(
    "log_softmax",
    lambda xp, input, *, dim: xp.blockwise(_log_softmax_values, input, axes=(dim,)),
    input=lambda xp, grad, result, dim: xp.blockwise(_log_softmax_slope, grad, result, axes=(dim,)),
)


def softmax(
    input: Any, dim: int | None = None, *, dtype: Any = None, axis: int | None = None
) -> Tensor:
    """``exp(input)`` scaled to a sum of 1 along ``dim``.

    Args:
        input: any floating tensor.
        dim: must be given.
        dtype: to convert the elements to first.
        axis: another name of ``dim``.

    Raises:
        TypeError: ``dim`` is not given.
        NotImplementedError: the elements are integers or complex numbers.
    """
    return _along(_softmax, input, either("dim", dim, "axis", axis), dtype)


def log_softmax(
    input: Any, dim: int | None = None, *, dtype: Any = None, axis: int | None = None
) -> Tensor:
    """The logarithm of :func:`softmax`, exact where a probability underflows.

    Args:
        input: any floating tensor.
        dim: must be given.
        dtype: to convert the elements to first.
        axis: another name of ``dim``.

    Raises:
        TypeError: ``dim`` is not given.
        NotImplementedError: the elements are integers or complex numbers.
    """
    return _along(_log_softmax, input, either("dim", dim, "axis", axis), dtype)


def _along(scaled: Operator, input: Any, dim: Any, dtype: Any) -> Tensor:
    tensor = as_tensor_operand(input)
    tensor = tensor if dtype is None else cast(tensor, dtype)
    array = tensor._array
    if array.dtype.kind != "f":
        raise NotImplementedError(f"{scaled.name} is not implemented for {tensor.dtype}")
    dim = one_dim(dim, array.ndim)
    if array.ndim == 0:
        return reshape(call(scaled, reshape(tensor, (1,)), dim=0), ())
    # Of nothing, another function whose derivative has one: a maximum of nothing has none.
    return scaled.run(tensor, dim=dim) if array.size else exp(tensor)


def _elementwise(operator: Operator, input: Any, inplace: bool, **attributes: Any) -> Tensor:
    """``operator`` of a floating tensor, or with ``inplace`` written into it."""
    require_numbers(operator.name, **attributes)
    if inplace:
        refuse_complex(operator.name, input)
        return call_in_place(operator, input, **attributes)
    tensor = floating(input)
    refuse_complex(operator.name, tensor)
    return call(operator, tensor, **attributes)


# ---------------------------------------------------------------------- gates


def _gelu_values(xp: Any, x: Any) -> Any:
    half = xp.multiply(x, 0.5)
    return xp.add(xp.multiply(xp.erf(xp.multiply(x, math.sqrt(0.5))), half), half)


def _gelu_slope(xp: Any, grad: Any, input: Any) -> Any:
    share = xp.multiply(xp.add(xp.erf(xp.multiply(input, math.sqrt(0.5))), 1), 0.5)
    density = xp.exp(xp.multiply(xp.multiply(input, input), -0.5))
    slope = xp.multiply(xp.multiply(input, density), 1 / math.sqrt(2 * math.pi))
    return xp.multiply(grad, xp.add(share, slope))


#: ``sqrt(2 / pi) * (x + 0.044715 * x ** 3)`` is ``x * (_LINEAR + _CUBIC * x * x)``.
_LINEAR = math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715


def _gelu_tanh_values(xp: Any, x: Any) -> Any:
    inner = xp.multiply(x, xp.add(xp.multiply(xp.multiply(x, x), _CUBIC), _LINEAR))
    half = xp.multiply(x, 0.5)
    return xp.add(xp.multiply(xp.tanh(inner), half), half)


def _gelu_tanh_slope(xp: Any, grad: Any, input: Any) -> Any:
    square = xp.multiply(input, input)
    bent = xp.tanh(xp.multiply(input, xp.add(xp.multiply(square, _CUBIC), _LINEAR)))
    inner_slope = xp.add(xp.multiply(square, 3 * _CUBIC), _LINEAR)
    rising = xp.multiply(xp.subtract(1, xp.multiply(bent, bent)), xp.multiply(input, inner_slope))
    return xp.multiply(grad, xp.multiply(xp.add(xp.add(bent, 1), rising), 0.5))


_gelu = operator(
    "gelu",
    lambda xp, input: xp.blockwise(_gelu_values, input),
    input=_gelu_slope,
    elementwise=True,
)
_gelu_tanh = operator(
    "gelu_tanh",
    lambda xp, input: xp.blockwise(_gelu_tanh_values, input),
    input=_gelu_tanh_slope,
    elementwise=True,
)


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """``input * P(X <= input)`` for a standard normal X (Hendrycks and Gimpel, 2016).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the approximation of that paper.

    Raises:
        RuntimeError: another ``approximate``.
    """
    tensor = floating(input)
    refuse_complex("gelu", tensor)
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return call(_gelu_tanh if approximate == "tanh" else _gelu, tensor)


def _silu_values(xp: Any, x: Any) -> Any:
    return xp.multiply(x, xp.sigmoid(x))


def _silu_slope(xp: Any, grad: Any, input: Any) -> Any:
    share = xp.sigmoid(input)
    rising = xp.multiply(input, xp.subtract(1, share))
    return xp.multiply(grad, xp.multiply(share, xp.add(rising, 1)))


_silu = operator(
    "silu",
    lambda xp, input: xp.blockwise(_silu_values, input),
    input=_silu_slope,
    elementwise=True,
)


def silu(input: Any, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)`` (Elfwing, Uchibe and Doya, 2017)."""
    if not inplace:  # also of complex numbers
        return call(_silu, floating(input))
    return _elementwise(_silu, input, inplace)


# ---------------------------------------------------------------------- bent lines


def _leaky_relu_values(xp: Any, x: Any, negative_slope: float) -> Any:
    return xp.where(xp.greater(x, 0), x, xp.multiply(x, negative_slope))


def _leaky_relu_slope(xp: Any, grad: Any, input: Any, negative_slope: float) -> Any:
    return xp.where(xp.greater(input, 0), grad, xp.multiply(grad, negative_slope))


_leaky_relu = operator(
    "leaky_relu",
    lambda xp, input, *, negative_slope: xp.blockwise(_leaky_relu_values, input, negative_slope),
    input=_leaky_relu_slope,
    elementwise=True,
)


def relu(input: Any, inplace: bool = False) -> Tensor:
    """``max(input, 0)``; the gradient at 0 is 0."""
    return _elementwise(OPERATORS["relu"], input, inplace) if inplace else _relu(input)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``input``, multiplied by ``negative_slope`` where it is negative."""
    return _elementwise(_leaky_relu, input, inplace, negative_slope=negative_slope)


def _elu_values(xp: Any, x: Any, alpha: float) -> Any:
    return xp.where(xp.less(x, 0), xp.multiply(xp.expm1(xp.minimum(x, 0)), alpha), x)


def _elu_slope(xp: Any, grad: Any, input: Any, alpha: float) -> Any:
    bent = xp.less_equal(input, 0)
    powers = xp.exp(xp.where(bent, input, 0.0))
    return xp.multiply(grad, xp.where(bent, xp.multiply(powers, alpha), 1.0))


_elu = operator(
    "elu",
    lambda xp, input, *, alpha: xp.blockwise(_elu_values, input, alpha),
    input=_elu_slope,
    elementwise=True,
)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input``, and ``alpha * (exp(input) - 1)`` where it is negative."""
    return _elementwise(_elu, input, inplace, alpha=alpha)


def _softened(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, which cannot overflow."""
    return xp.add(xp.maximum(x, 0), xp.log1p(xp.exp(xp.negative(xp.absolute(x)))))


def _softplus_values(xp: Any, x: Any, beta: float, inverse: float, threshold: float) -> Any:
    scaled = xp.multiply(x, beta)
    soft = xp.multiply(_softened(xp, scaled), inverse)
    return xp.where(xp.greater(scaled, threshold), x, soft)


def _softplus_slope(xp: Any, grad: Any, input: Any, beta: float, threshold: float) -> Any:
    scaled = xp.multiply(input, beta)
    soft = xp.multiply(grad, xp.sigmoid(scaled))
    return xp.where(xp.greater(scaled, threshold), grad, soft)


_softplus = operator(
    "softplus",
    lambda xp, input, *, beta, threshold: xp.blockwise(
        _softplus_values, input, beta, 1 / beta, threshold
    ),
    input=_softplus_slope,
    elementwise=True,
)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; ``input`` itself above ``threshold / beta``."""
    tensor = floating(input)
    refuse_complex("softplus", tensor)
    require_numbers("softplus", beta=beta, threshold=threshold)
    return call(_softplus, tensor, beta=beta, threshold=threshold)


_logsigmoid = operator(
    "logsigmoid",
    lambda xp, input: xp.blockwise(_logsigmoid_values, input),
    input=lambda xp, grad, input: xp.multiply(grad, xp.sigmoid(xp.negative(input))),
    elementwise=True,
)


def _logsigmoid_values(xp: Any, x: Any) -> Any:
    return xp.negative(_softened(xp, xp.negative(x)))


def logsigmoid(input: Any) -> Tensor:
    """``log(1 / (1 + exp(-input)))``, exact where the logistic function underflows."""
    tensor = floating(input)
    refuse_complex("logsigmoid", tensor)
    return call(_logsigmoid, tensor)
