"""Normalisation over a batch or over features: ``batch_norm`` and ``layer_norm``.

The formulas compute mean and deviation again from the saved input instead of saving them: a second
derivative needs to see how both depend on the input, and recomputing costs two cheap reductions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpgrad.dispatch import call
from mpgrad.ops.arithmetic import add, mul, rsqrt, sub
from mpgrad.ops.promotion import refuse_complex
from mpgrad.ops.registry import operator
from mpgrad.ops.shape import reshape
from mpgrad.tensor import Tensor

Dims = tuple[int, ...]


def _mean(xp: Any, x: Any, dims: Dims) -> Any:
    return xp.divide(xp.sum(x, dims, True), math.prod(x.shape[d] for d in dims))


def _standardized(xp: Any, x: Any, dims: Dims, eps: float) -> tuple[Any, Any, Any, Any]:
    """``x`` with mean 0 and variance 1 over ``dims``, 1 / deviation, mean and variance."""
    mean = _mean(xp, x, dims)
    centered = xp.subtract(x, mean)
    variance = _mean(xp, xp.square(centered), dims)
    inverse = xp.reciprocal(xp.sqrt(xp.add(variance, eps)))
    return xp.multiply(centered, inverse), inverse, mean, variance


def _affine(xp: Any, x: Any, weight: Any, bias: Any, shape: tuple[int, ...]) -> Any:
    if weight is not None:
        x = xp.multiply(x, xp.reshape(weight, shape))
    return x if bias is None else xp.add(x, xp.reshape(bias, shape))


def _grads(
    xp: Any, grad: Any, input: Any, weight: Any, eps: float, needs: Any, dims: Dims, rest: Dims
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias (Ioffe and Szegedy, "Batch normalization", 2015, sec. 3).

    Args:
        dims: what the statistics are taken over; ``rest``: what the parameters are shared over.
    """
    normal, inverse, _, _ = _standardized(xp, input, dims, eps)
    shape = tuple(1 if d in rest else n for d, n in enumerate(input.shape))
    flat = tuple(n for d, n in enumerate(input.shape) if d not in rest)
    for_input = for_weight = for_bias = None
    if needs[2]:
        for_bias = xp.reshape(xp.sum(grad, rest, True), flat)
    if needs[1]:
        for_weight = xp.reshape(xp.sum(xp.multiply(grad, normal), rest, True), flat)
    if needs[0]:
        inner = grad if weight is None else xp.multiply(grad, xp.reshape(weight, shape))
        slope = xp.multiply(normal, _mean(xp, xp.multiply(inner, normal), dims))
        centered = xp.subtract(xp.subtract(inner, _mean(xp, inner, dims)), slope)
        for_input = xp.multiply(centered, inverse)
    return for_input, for_weight, for_bias


def _batch_dims(x: Any) -> Dims:
    """All dimensions but the channels."""
    return (0, *range(2, len(x.shape)))


def _channel_shape(x: Any) -> tuple[int, ...]:
    return (1, x.shape[1], *(1,) * (len(x.shape) - 2))


def _batch_norm_forward(
    xp: Any, input: Any, weight: Any, bias: Any, *, eps: float
) -> tuple[Any, Any, Any]:
    normal, _, mean, variance = _standardized(xp, input, _batch_dims(input), eps)
    channels = (input.shape[1],)
    out = _affine(xp, normal, weight, bias, _channel_shape(input))
    return out, xp.reshape(mean, channels), xp.reshape(variance, channels)


_batch_norm = operator(
    "batch_norm",
    _batch_norm_forward,
    joint=lambda xp, grad, input, weight, eps, needs: _grads(
        xp, grad, input, weight, eps, needs, _batch_dims(input), _batch_dims(input)
    ),
)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise each channel, then scale and shift it (Ioffe and Szegedy, 2015).

    Args:
        input: (batch, channels) or (batch, channels, ...).
        running_mean: (channels,), updated in place when ``training``, used otherwise.
        running_var: likewise; the update takes the unbiased variance.
        weight: (channels,) or None.
        bias: (channels,) or None.
        training: take the statistics from this batch.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.

    Raises:
        ValueError: training with a single value per channel.
        RuntimeError: no running statistics outside training, or ``input`` has no channels.
    """
    if input.ndim < 2:
        raise RuntimeError(f"batch_norm: expected at least 2D input (got {input.ndim}D input)")
    refuse_complex("batch_norm", input)
    if not training:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    values = math.prod(input.shape) // max(input.shape[1], 1)
    if values <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {input.shape}"
        )
    out, mean, variance = call(_batch_norm, input, weight, bias, eps=eps)
    _update(running_mean, mean, momentum, 1.0)
    _update(running_var, variance, momentum, values / (values - 1))
    return out  # type: ignore[no-any-return]


def _update(running: Tensor | None, batch: Tensor, momentum: float, scale: float) -> None:
    if running is None:
        return
    array = running._array
    array *= 1 - momentum
    array += batch._array * (momentum * scale)
    running._version_counter.count()


def _with_running(
    input: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is None or variance is None:
        raise RuntimeError("batch_norm: expected running_mean and running_var outside training")
    shape = _channel_shape(input)
    scale = rsqrt(add(variance, eps))
    scale = scale if weight is None else mul(scale, weight)
    out = mul(sub(input, reshape(mean, shape)), reshape(scale, shape))
    return out if bias is None else add(out, reshape(bias, shape))


def _feature_dims(x: Any, features: int) -> tuple[Dims, Dims]:
    """The last ``features`` dimensions, and those before them."""
    first = len(x.shape) - features
    return tuple(range(first, len(x.shape))), tuple(range(first))


def _layer_norm_forward(
    xp: Any, input: Any, weight: Any, bias: Any, *, features: int, eps: float
) -> Any:
    dims, _ = _feature_dims(input, features)
    normal = _standardized(xp, input, dims, eps)[0]
    return _affine(xp, normal, weight, bias, tuple(input.shape[d] for d in dims))


_layer_norm = operator(
    "layer_norm",
    _layer_norm_forward,
    joint=lambda xp, grad, input, weight, features, eps, needs: _grads(
        xp, grad, input, weight, eps, needs, *_feature_dims(input, features)
    ),
)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise over the last dimensions, then scale and shift (Ba, Kiros and Hinton, 2016).

    Args:
        input: (..., *normalized_shape).
        normalized_shape: the lengths of the last dimensions.
        weight: of ``normalized_shape``, or None.
        bias: of ``normalized_shape``, or None.
        eps: added to the variance.

    Raises:
        RuntimeError: ``input`` does not end in ``normalized_shape``.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, "
            f"{', '.join(map(str, shape))}], but got input of size {list(input.shape)}"
        )
    refuse_complex("layer_norm", input)
    return call(_layer_norm, input, weight, bias, features=len(shape), eps=eps)
