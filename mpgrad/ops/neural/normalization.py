"""Normalisation over a batch or over features: ``batch_norm`` and ``layer_norm``.

The formulas compute mean and deviation again from the saved input instead of saving them: a second
derivative needs to see how both depend on the input, and recomputing costs two cheap reductions.
What forward computes stands in ``_values``, the derivatives in ``_..._slopes``; all of it is run
``blockwise``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on
from mpgrad.ops.calling.dimensions import as_tuple
from mpgrad.ops.calling.promotion import cast, refuse_complex
from mpgrad.ops.elementwise.arithmetic import add, mul, rsqrt, sub
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import Formula, operator
from mpgrad.recording.tensors.tensor import Tensor

Dims = tuple[int, ...]


def centered(xp: Any, axes: Dims, x: Any, eps: float, share: float) -> Any:
    """``x`` with mean 0 over ``axes``, 1 / deviation, mean and variance."""
    mean = xp.multiply(xp.sum(x, axes, True), share)
    base = xp.subtract(x, mean)
    variance = xp.multiply(xp.sum(xp.multiply(base, base), axes, True), share)
    inverse = xp.reciprocal(xp.sqrt(xp.add(variance, eps)))
    return base, inverse, mean, variance


def _standardized(xp: Any, axes: Dims, x: Any, eps: float, share: float) -> tuple[Any, Any]:
    """``x`` with mean 0 and variance 1 over ``axes``, and 1 / deviation."""
    base, inverse, _, _ = centered(xp, axes, x, eps, share)
    return xp.multiply(base, inverse), inverse


def _batch_values(
    xp: Any, axes: Dims, x: Any, weight: Any, bias: Any, eps: float, share: float
) -> tuple[Any, Any, Any]:
    """The result, mean and variance; ``share`` is 1 / the number of elements of a mean.

    Weight and bias are shared over what means are taken over.
    """
    base, inverse, mean, variance = centered(xp, axes, x, eps, share)
    scaled = xp.multiply(base, inverse if weight is None else xp.multiply(inverse, weight))
    return scaled if bias is None else xp.add(scaled, bias), mean, variance


def layer_values(
    xp: Any, axes: Dims, x: Any, weight: Any, bias: Any, eps: float, share: float
) -> Any:
    normal, _ = _standardized(xp, axes, x, eps, share)
    if weight is not None:
        normal = xp.multiply(normal, weight)
    return normal if bias is None else xp.add(normal, bias)


def _through(xp: Any, inner: Any, mean: Any, base: Any, slope: Any, scale: Any) -> Any:
    """The input's gradient (Ioffe and Szegedy, "Batch normalization", 2015, sec. 3).

    Args:
        inner: a gradient, and ``mean`` its mean.
        base: the input, standardised or at least with mean 0; ``slope`` times it is the part of
            ``inner`` that changes the deviation.
        scale: the rest's factor.
    """
    rest = xp.subtract(inner, xp.multiply(base, slope))
    return xp.multiply(xp.subtract(rest, mean), scale)


def _batch_slopes(
    xp: Any, axes: Dims, grad: Any, x: Any, weight: Any, eps: float, share: float
) -> tuple[Any, Any, Any]:
    """The gradients of input, weight and bias, which are shared over what means are taken over."""
    base, inverse, _, _ = centered(xp, axes, x, eps, share)
    total = xp.sum(grad, axes, True)
    product = xp.sum(xp.multiply(grad, base), axes, True)
    for_weight = xp.multiply(product, inverse)
    slope = xp.multiply(xp.multiply(for_weight, inverse), share)
    scale = inverse if weight is None else xp.multiply(inverse, weight)
    mean = xp.multiply(total, share)
    return _through(xp, grad, mean, base, slope, scale), for_weight, total


def _batch_input_slope(xp: Any, *given: Any) -> Any:
    return _batch_slopes(xp, *given)[0]


def layer_input_slope(
    xp: Any, axes: Dims, grad: Any, x: Any, weight: Any, eps: float, share: float
) -> Any:
    normal, inverse = _standardized(xp, axes, x, eps, share)
    return _layer_through(xp, axes, grad, normal, inverse, weight, share)


def _layer_through(
    xp: Any, axes: Dims, grad: Any, normal: Any, inverse: Any, weight: Any, share: float
) -> Any:
    inner = grad if weight is None else xp.multiply(grad, weight)
    mean = xp.multiply(xp.sum(inner, axes, True), share)
    slope = xp.multiply(xp.sum(xp.multiply(inner, normal), axes, True), share)
    return _through(xp, inner, mean, normal, slope, inverse)


def _layer_slopes(
    xp: Any, axes: Dims, grad: Any, x: Any, weight: Any, eps: float, share: float
) -> tuple[Any, Any, Any]:
    """The gradients of input, weight and bias, which are shared over all other dimensions."""
    others = tuple(range(axes[0]))
    normal, inverse = _standardized(xp, axes, x, eps, share)
    for_weight = xp.sum(xp.multiply(grad, normal), others, True)
    for_bias = xp.sum(grad, others, True)
    return _layer_through(xp, axes, grad, normal, inverse, weight, share), for_weight, for_bias


def needed_grads(
    xp: Any,
    slopes: tuple[Formula, Formula],
    axes: Dims,
    grad: Any,
    input: Any,
    weight: Any,
    eps: float,
    needs: tuple[bool, ...],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Any, Any, Any]:
    """The needed gradients of input, weight and bias.

    Args:
        slopes: the first gives all three, the second that of the input.
        axes: what means are taken over.
        shapes: of weight and bias: their own, and those that broadcast to ``input``.
    """
    share = share_of_one(input, axes)
    own, broadcast = shapes
    weight = None if weight is None else xp.reshape(weight, broadcast)
    operands = (grad, input, weight, eps, share)
    if not (needs[1] or needs[2]):
        return xp.blockwise(slopes[1], *operands, axes=axes), None, None
    for_input, for_weight, for_bias = xp.blockwise(slopes[0], *operands, axes=axes)
    return (
        for_input if needs[0] else None,
        xp.reshape(for_weight, own) if needs[1] else None,
        xp.reshape(for_bias, own) if needs[2] else None,
    )


def share_of_one(x: Any, axes: Dims) -> float:
    """Of one element in a mean over ``axes``."""
    return 1 / max(math.prod(x.shape[d] for d in axes), 1)


def _batch_dims(x: Any) -> Dims:
    """All dimensions but the channels."""
    return (0, *range(2, len(x.shape)))


def _channel_shape(x: Any) -> tuple[int, ...]:
    return (1, x.shape[1], *(1,) * (len(x.shape) - 2))


def _batch_norm_forward(
    xp: Any, input: Any, weight: Any, bias: Any, *, eps: float
) -> tuple[Any, Any, Any]:
    axes, shape, channels = _batch_dims(input), _channel_shape(input), (input.shape[1],)
    weight, bias = (None if x is None else xp.reshape(x, shape) for x in (weight, bias))
    out, mean, variance = xp.blockwise(
        _batch_values, input, weight, bias, eps, share_of_one(input, axes), axes=axes
    )
    return out, xp.reshape(mean, channels), xp.reshape(variance, channels)


_batch_norm = operator(
    "batch_norm",
    _batch_norm_forward,
    joint=lambda xp, grad, input, weight, eps, needs: needed_grads(
        xp,
        (_batch_slopes, _batch_input_slope),
        _batch_dims(input),
        grad,
        input,
        weight,
        eps,
        needs,
        ((input.shape[1],), _channel_shape(input)),
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
        ValueError: training with a single value per channel, or with ``eps`` not positive.
        RuntimeError: no running statistics outside training, ``input`` has no channels, or the
            others not one element for each, or other dtypes.
        NotImplementedError: the elements of ``input`` are not floating.
    """
    if input.ndim < 2:
        raise RuntimeError(f"batch_norm: expected at least 2D input (got {input.ndim}D input)")
    if input.dtype.kind != "f":
        raise NotImplementedError(f"batch_norm is not implemented for {input.dtype}")
    channels = input.shape[1]
    for name, one_each in (
        ("running_mean", running_mean),
        ("running_var", running_var),
        ("weight", weight),
        ("bias", bias),
    ):
        if one_each is not None and one_each.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {one_each.numel()}")
    given = [x for x in (running_mean, running_var, weight, bias) if x is not None]
    dtypes = {x.dtype for x in given}
    allowed = (np.float16, np.float32) if input.dtype == np.float16 else (input.dtype,)
    if len(dtypes) > 1 or any(dtype not in allowed for dtype in dtypes):
        raise RuntimeError(
            "batch_norm: mixed dtype: expected statistics and parameters of one dtype, "
            f"{' or '.join(str(np.dtype(dtype)) for dtype in allowed)}, for an input of "
            f"{input.dtype}, but got {', '.join(str(x.dtype) for x in given)}"
        )
    if training and eps <= 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if not training:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    values = math.prod(input.shape) // max(input.shape[1], 1)
    if values == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {input.shape}"
        )
    out, mean, variance = call(_batch_norm, *map(wide, (input, weight, bias)), eps=eps)
    if values:
        _update(running_mean, mean, momentum, 1.0)
        _update(running_var, variance, momentum, values / (values - 1))
    return narrow(out, input)


def wide(x: Any) -> Any:
    """``x`` (a Tensor or None) in float32 if it is of float16: sums of halves have few digits."""
    return x if x is None or x.dtype != np.float16 else cast(x, np.float32)


def narrow(out: Tensor, input: Tensor) -> Tensor:
    """The result of ``wide(input)``: in float16 if ``input`` is."""
    return cast(out, np.float16) if input.dtype == np.float16 else out


def _update(running: Tensor | None, batch: Tensor, momentum: float, scale: float) -> None:
    if running is None:
        return
    array = running._array
    with on(running.device):
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
    return narrow(out if bias is None else add(out, reshape(bias, shape)), input)


def _feature_dims(x: Any, features: int) -> Dims:
    """The last ``features`` dimensions."""
    return tuple(range(len(x.shape) - features, len(x.shape)))


def _layer_norm_forward(
    xp: Any, input: Any, weight: Any, bias: Any, *, features: int, eps: float
) -> Any:
    axes = _feature_dims(input, features)
    share = share_of_one(input, axes)
    return xp.blockwise(layer_values, input, weight, bias, eps, share, axes=axes)


_layer_norm = operator(
    "layer_norm",
    _layer_norm_forward,
    joint=lambda xp, grad, input, weight, features, eps, needs: needed_grads(
        xp,
        (_layer_slopes, layer_input_slope),
        _feature_dims(input, features),
        grad,
        input,
        weight,
        eps,
        needs,
        (input.shape[-features:],) * 2,
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
    shape = as_tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, "
            f"{', '.join(map(str, shape))}], but got input of size {list(input.shape)}"
        )
    for name, factor in (("weight", weight), ("bias", bias)):
        if factor is not None and factor.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(factor.shape)} and normalized_shape = {list(shape)}"
            )
    refuse_complex("layer_norm", input)
    out = call(_layer_norm, *map(wide, (input, weight, bias)), features=len(shape), eps=eps)
    return narrow(out, input)
