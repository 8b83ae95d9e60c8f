"""Normalisations of each sample: ``group_norm``, and ``instance_norm`` made of ``batch_norm``."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.calling.promotion import refuse_complex
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.neural.normalization import (
    batch_norm,
    centered,
    layer_input_slope,
    layer_values,
    narrow,
    needed_grads,
    share_of_one,
    wide,
)
from mpgrad.ops.reductions.reduction import mean
from mpgrad.ops.shapes.shape import repeat, reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

#: Of (batch, groups, channels of a group, all else): what means are taken over.
_MEMBERS = (2, 3)
_PIXELS, _CHANNELS, _BATCH = (3,), (2,), (0,)


def _group_slopes(
    xp: Any, axes: Any, grad: Any, x: Any, weight: Any, eps: float, share: float
) -> tuple[Any, Any, Any]:
    """The gradients of input, weight and bias, which are shared over batch and pixels."""
    base, inverse, _, _ = centered(xp, axes, x, eps, share)
    total = xp.sum(grad, _PIXELS, True)
    product = xp.sum(xp.multiply(grad, base), _PIXELS, True)
    for_weight = xp.sum(xp.multiply(product, inverse), _BATCH, True)
    for_bias = xp.sum(total, _BATCH, True)
    scale = inverse
    if weight is not None:
        total, product = xp.multiply(total, weight), xp.multiply(product, weight)
        scale = xp.multiply(inverse, weight)
    factor = xp.multiply(inverse, share)
    mean = xp.multiply(xp.sum(total, _CHANNELS, True), factor)
    slope = xp.multiply(xp.sum(product, _CHANNELS, True), factor)
    slope = xp.multiply(xp.multiply(slope, inverse), inverse)
    rest = xp.subtract(xp.multiply(grad, scale), xp.multiply(base, slope))
    return xp.subtract(rest, mean), for_weight, for_bias


def _group_input_slope(xp: Any, *given: Any) -> Any:
    return _group_slopes(xp, *given)[0]


def _grouped(x: Any, groups: int) -> tuple[int, ...]:
    """The shape of ``x`` with groups."""
    batch, channels, *rest = x.shape
    return (batch, groups, channels // groups, math.prod(rest))


def _group_norm_forward(
    xp: Any, input: Any, weight: Any, bias: Any, *, groups: int, eps: float
) -> Any:
    x = xp.reshape(input, _grouped(input, groups))
    shape = (1, *x.shape[1:3], 1)
    weight, bias = (None if each is None else xp.reshape(each, shape) for each in (weight, bias))
    share = share_of_one(x, _MEMBERS)
    out = xp.blockwise(layer_values, x, weight, bias, eps, share, axes=_MEMBERS)
    return xp.reshape(out, input.shape)


def _group_norm_grads(
    xp: Any,
    grad: Any,
    input: Any,
    weight: Any,
    groups: int,
    eps: float,
    needs: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    shape = _grouped(input, groups)
    grad, x = xp.reshape(grad, shape), xp.reshape(input, shape)
    # Without a weight, no operand tells a group's channels from its pixels: blockwise joins them.
    alone = layer_input_slope if weight is None else _group_input_slope
    slopes = (_group_slopes, alone)
    shapes = (input.shape[1],), (1, *shape[1:3], 1)
    found, *others = needed_grads(xp, slopes, _MEMBERS, grad, x, weight, eps, needs, shapes)
    return (None if found is None else xp.reshape(found, input.shape), *others)


_group_norm = operator("group_norm", _group_norm_forward, joint=_group_norm_grads)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise groups of channels of each sample (Wu and He, 2018).

    Args:
        input: (batch, channels, ...).
        num_groups: how many groups the channels are divided into.
        weight: (channels,) or None.
        bias: (channels,) or None.
        eps: added to the variance.

    Raises:
        RuntimeError: ``input`` has no channels, or they cannot be divided so; ``weight`` or
            ``bias`` has not one element for each.
        ValueError: each group has one value in the whole batch.
    """
    if input.ndim < 2:
        raise RuntimeError(
            f"Expected at least 2 dimensions for input tensor but received {input.ndim}"
        )
    batch, channels, *rest = input.shape
    if num_groups < 1 or channels % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={num_groups}"
        )
    members = channels // num_groups * math.prod(rest)
    if batch * members == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{list(input.shape)}"
        )
    for name, one_each in (("weight", weight), ("bias", bias)):
        if one_each is not None and one_each.shape != (channels,):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, "
                f"but got {name} of shape {list(one_each.shape)} and input of shape "
                f"{list(input.shape)}"
            )
    refuse_complex("group_norm", input)
    out = call(_group_norm, *map(wide, (input, weight, bias)), groups=num_groups, eps=eps)
    return narrow(out, input)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise each channel of each sample (Ulyanov et al., 2016).

    Args:
        input: (batch, channels, ...).
        running_mean: (channels,), updated in place with ``use_input_stats``, used otherwise.
        running_var: likewise.
        weight: (channels,) or None.
        bias: (channels,) or None.
        use_input_stats: take the statistics from ``input``.
        momentum: weight of ``input`` in the running statistics.
        eps: added to the variance.

    Raises:
        ValueError: there is one value for each channel.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(
            "Expected more than 1 spatial element when training, got input size "
            f"{list(input.shape)}"
        )
    batch, channels, *rest = input.shape
    # Each sample's channels as channels of one sample.
    means, variances = (
        None if running is None else wide(repeat(running.detach(), batch))
        for running in (running_mean, running_var)
    )
    rows = reshape(wide(input), (1, batch * channels, *rest))
    out = batch_norm(rows, means, variances, None, None, True, momentum, eps)
    out = reshape(out, tuple(input.shape))
    for running, updated in ((running_mean, means), (running_var, variances)):
        if running is not None and updated is not None:
            running.detach().copy_(mean(reshape(updated, (batch, channels)), 0))
    shape = (channels, *(1,) * len(rest))
    out = out if weight is None else mul(out, reshape(weight, shape))
    return narrow(out if bias is None else add(out, reshape(bias, shape)), input)
