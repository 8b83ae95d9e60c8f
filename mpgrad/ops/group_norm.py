"""Normalisations of each sample, made of :func:`layer_norm` and :func:`batch_norm`."""

from __future__ import annotations

import math

from mpgrad.ops.arithmetic import add, mul
from mpgrad.ops.normalization import batch_norm, layer_norm, narrow, wide
from mpgrad.ops.reduction import mean
from mpgrad.ops.shape import repeat, reshape
from mpgrad.tensors.tensor import Tensor


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
        RuntimeError: ``input`` has no channels, or they cannot be divided so.
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
    grouped = reshape(wide(input), (batch, num_groups, members))
    out = reshape(layer_norm(grouped, (members,), eps=eps), tuple(input.shape))
    shape = (channels, *(1,) * len(rest))
    out = out if weight is None else mul(out, reshape(weight, shape))
    return narrow(out if bias is None else add(out, reshape(bias, shape)), input)


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
        None if running is None else repeat(running.detach(), batch)
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
