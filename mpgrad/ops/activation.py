"""Activations that are more than one elementary function: softmax, GELU, SiLU and others."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops.arithmetic import add, mul, neg, square, where
from mpgrad.ops.comparison import gt
from mpgrad.ops.dimensions import either, one_dim
from mpgrad.ops.promotion import floating, refuse_complex
from mpgrad.ops.registry import operator
from mpgrad.ops.transcendental import erf, exp, expm1, log1p, logaddexp, sigmoid, tanh
from mpgrad.tensor import Tensor


def _shifted(xp: Any, input: Any, dim: int) -> Any:
    """``input`` minus its largest element, so that ``exp`` cannot overflow."""
    return xp.subtract(input, xp.max(input, dim, True))


def _softmax_forward(xp: Any, input: Any, *, dim: int) -> Any:
    powers = xp.exp(_shifted(xp, input, dim))
    return xp.divide(powers, xp.sum(powers, dim, True))


def _softmax_grad(xp: Any, grad: Any, result: Any, dim: int) -> Any:
    inner = xp.sum(xp.multiply(grad, result), dim, True)
    return xp.multiply(result, xp.subtract(grad, inner))


def _log_softmax_forward(xp: Any, input: Any, *, dim: int) -> Any:
    shifted = _shifted(xp, input, dim)
    return xp.subtract(shifted, xp.log(xp.sum(xp.exp(shifted), dim, True)))


def _log_softmax_grad(xp: Any, grad: Any, result: Any, dim: int) -> Any:
    return xp.subtract(grad, xp.multiply(xp.exp(result), xp.sum(grad, dim, True)))


_softmax = operator("softmax", _softmax_forward, input=_softmax_grad)
_log_softmax = operator("log_softmax", _log_softmax_forward, input=_log_softmax_grad)


def softmax(input: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """``exp(input)`` scaled to a sum of 1 along ``dim``.

    Raises:
        TypeError: ``dim`` is not given.
    """
    tensor = floating(input)
    refuse_complex("softmax", tensor)
    return call(_softmax, tensor, dim=one_dim(either("dim", dim, "axis", axis), tensor.ndim))


def log_softmax(input: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """The logarithm of :func:`softmax`, exact where a probability underflows.

    Raises:
        TypeError: ``dim`` is not given.
    """
    tensor = floating(input)
    refuse_complex("log_softmax", tensor)
    return call(_log_softmax, tensor, dim=one_dim(either("dim", dim, "axis", axis), tensor.ndim))


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """``input * P(X <= input)`` for a standard normal X (Hendrycks and Gimpel, 2016).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the approximation of that paper.

    Raises:
        RuntimeError: another ``approximate``.
    """
    tensor = floating(input)
    if approximate == "tanh":
        cubic = mul(add(mul(square(tensor), 0.044715), 1.0), tensor)
        return mul(mul(tensor, 0.5), add(tanh(mul(cubic, math.sqrt(2 / math.pi))), 1.0))
    if approximate != "none":
        raise RuntimeError("approximate argument must be either none or tanh.")
    return mul(mul(tensor, 0.5), add(erf(mul(tensor, math.sqrt(0.5))), 1.0))


def logsigmoid(input: Any) -> Tensor:
    """``log(1 / (1 + exp(-input)))``, exact where the logistic function underflows."""
    return neg(logaddexp(neg(floating(input)), 0))


def silu(input: Any) -> Tensor:
    """``input * sigmoid(input)`` (Elfwing, Uchibe and Doya, 2017)."""
    tensor = floating(input)
    return mul(tensor, sigmoid(tensor))


def leaky_relu(input: Any, negative_slope: float = 0.01) -> Tensor:
    """``input``, multiplied by ``negative_slope`` where it is negative."""
    tensor = floating(input)
    return where(gt(tensor, 0), tensor, mul(tensor, negative_slope))


def elu(input: Any, alpha: float = 1.0) -> Tensor:
    """``input``, and ``alpha * (exp(input) - 1)`` where it is negative."""
    tensor = floating(input)
    positive = gt(tensor, 0)
    return where(positive, tensor, mul(expm1(where(positive, 0.0, tensor)), alpha))


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; ``input`` itself above ``threshold / beta``."""
    tensor = floating(input)
    scaled = mul(tensor, beta)
    large = gt(scaled, threshold)
    return where(large, tensor, mul(log1p(exp(where(large, 0.0, scaled))), 1 / beta))
