"""Activations that are made of other operators: hardtanh, selu, mish, prelu, glu and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.ops.by_index.indexing import chunk
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import require_numbers, stored
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, sub
from mpgrad.ops.elementwise.comparison import gt, isnan, le, lt
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import sigmoid, tanh
from mpgrad.ops.neural.activation import elu, softmax, softplus
from mpgrad.ops.shapes.shape import clone, reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

#: They keep mean 0 and variance 1 (Klambauer et al., "Self-normalizing neural networks", 2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _written(activation: Callable[[Tensor], Tensor], input: Tensor, inplace: bool) -> Tensor:
    """``activation`` of ``input``, with ``inplace`` written into it."""
    if not inplace:
        return activation(input)
    return input.copy_(activation(clone(input)))  # type: ignore[no-any-return]


_hardtanh = operator(
    "hardtanh",
    lambda xp, input, *, low, high: xp.minimum(xp.maximum(input, low), high),
    input=lambda xp, grad, input, low, high: xp.where(
        xp.logical_or(xp.less_equal(input, low), xp.greater_equal(input, high)), 0.0, grad
    ),
    elementwise=True,
)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``input`` between two bounds; the gradient at a bound is 0.

    Raises:
        ValueError: ``min_val`` is greater than ``max_val``.
    """
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    if input.dtype.kind in "iu":
        min_val, max_val = (stored(bound, input._array.dtype) for bound in (min_val, max_val))
    return _written(lambda x: call(_hardtanh, x, low=min_val, high=max_val), input, inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``input`` between 0 and 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``input`` where it is greater than ``threshold``, ``value`` elsewhere."""
    if input.dtype.kind in "iu":
        value = stored(value, input._array.dtype)
    return _written(lambda x: where(le(x, threshold), value, x), input, inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """``elu`` scaled so that mean 0 and variance 1 are kept (Klambauer et al., 2017)."""
    return _written(lambda x: mul(elu(x, _SELU_ALPHA), _SELU_SCALE), input, inplace)


def _celu_values(xp: Any, input: Any, alpha: float) -> Any:
    bent = xp.expm1(xp.divide(xp.minimum(input, 0), alpha))
    return xp.where(xp.less(input, 0), xp.multiply(bent, alpha), input)


def _celu_slope(xp: Any, grad: Any, input: Any, alpha: float) -> Any:
    powers = xp.exp(xp.divide(xp.minimum(input, 0), alpha))
    return xp.where(xp.less_equal(input, 0), xp.multiply(grad, powers), grad)


_celu = operator(
    "celu",
    lambda xp, input, *, alpha: _celu_values(xp, input, alpha),
    input=_celu_slope,
    elementwise=True,
)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input``, and ``alpha * (exp(input / alpha) - 1)`` where it is negative (Barron, 2017).

    Raises:
        RuntimeError: ``alpha`` is 0.
        NotImplementedError: the elements are not floating.
    """
    require_numbers("celu", alpha=alpha)
    if input.dtype.kind != "f":
        raise NotImplementedError(f"celu is not implemented for {input.dtype}")
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _written(lambda x: call(_celu, x, alpha=alpha), input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * tanh(softplus(input))`` (Misra, 2019)."""
    return _written(lambda x: mul(x, tanh(softplus(x))), input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """``input / 6 + 1 / 2`` between 0 and 1."""
    return _written(lambda x: div(relu6(add(x, 3)), 6), input, inplace)


def _hardswish_values(xp: Any, input: Any) -> Any:
    gate = xp.minimum(xp.maximum(xp.add(input, 3), 0), 6)
    return xp.divide(xp.multiply(input, gate), 6)


def _hardswish_slope(xp: Any, grad: Any, input: Any) -> Any:
    bent = xp.multiply(grad, xp.add(xp.divide(input, 3), 0.5))
    above = xp.where(xp.less(input, 3), bent, grad)
    return xp.where(xp.less_equal(input, -3), 0.0, above)


_hardswish = operator("hardswish", _hardswish_values, input=_hardswish_slope, elementwise=True)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * hardsigmoid(input)`` (Howard et al., "Searching for MobileNetV3", 2019).

    Raises:
        NotImplementedError: the elements are not floating.
    """
    if input.dtype.kind != "f":
        raise NotImplementedError(f"hardswish is not implemented for {input.dtype}")
    return _written(lambda x: call(_hardswish, x), input, inplace)


def softsign(input: Tensor) -> Tensor:
    """``input / (1 + |input|)``."""
    return div(input, add(absolute(input), 1))


def tanhshrink(input: Tensor) -> Tensor:
    """``input - tanh(input)``."""
    return sub(input, tanh(input))


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``input``, and 0 between ``-lambd`` and ``lambd``."""
    return where(le(absolute(input), lambd), 0.0, input)  # type: ignore[no-any-return]


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``input`` moved by ``lambd`` towards 0, and 0 between ``-lambd`` and ``lambd``.

    Raises:
        RuntimeError: ``lambd`` is negative.
    """
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    outside = where(gt(input, lambd), sub(input, lambd), where(isnan(input), input, 0.0))
    return where(lt(input, -lambd), add(input, lambd), outside)  # type: ignore[no-any-return]


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """``input``, multiplied by ``weight`` where it is negative (He et al., 2015).

    Args:
        input: (batch, channels, ...), or of any shape for one weight.
        weight: (channels,), (1,) or a number.

    Raises:
        RuntimeError: there are neither one weight nor as many as channels.
    """
    count = weight.numel()
    if weight.ndim > 1:
        raise RuntimeError(
            f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}"
        )
    if count != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if count != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{count} and channel size = {channels}."
            )
    shape = (count, *(1,) * (input.ndim - 2)) if input.ndim > 1 else (1,) * input.ndim
    is_positive = gt(input, 0)
    # Infinity that is not scaled must not reach the gradient of the weight.
    negative = where(is_positive, 0, input)
    return where(is_positive, input, mul(reshape(weight, shape), negative))  # type: ignore[no-any-return]


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along ``dim`` times ``sigmoid`` of the second (Dauphin et al., 2017).

    Raises:
        RuntimeError: there are no two halves.
    """
    if input.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    if input.shape[one_dim(dim, input.ndim)] % 2:
        raise RuntimeError(
            f"Halving dimension must be even, but dimension {dim % input.ndim} is size "
            f"{input.shape[dim]}"
        )
    value, gate = chunk(input, 2, dim)
    return mul(value, sigmoid(gate))


def softmin(input: Tensor, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """``softmax`` of ``-input``."""
    return softmax(neg(input), dim, dtype=dtype)
