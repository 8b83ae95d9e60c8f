"""Pools of other kinds: the largest of windows that cover everything, powers, and the way back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import pick, take_along_axis
from mpgrad.ops.by_index.scattering import scatter
from mpgrad.ops.calling.dimensions import INTEGERS
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import mul, neg
from mpgrad.ops.elementwise.arithmetic import pow as power
from mpgrad.ops.elementwise.comparison import gt, isnan
from mpgrad.ops.elementwise.complex_numbers import sgn
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import relu
from mpgrad.ops.neural.line_convolution import one
from mpgrad.ops.neural.line_pooling import avg_pool1d, max_pool1d
from mpgrad.ops.neural.pooling import avg_pool2d, max_pool2d, pair
from mpgrad.ops.neural.volumes import avg_pool3d, max_pool3d, triple
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import amax, argmax
from mpgrad.ops.shapes.shape import broadcast_to, reshape, squeeze
from mpgrad.recording.tensors.tensor import Tensor


def _window_maxima(input: Tensor, flat: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """The largest elements of ``count`` windows that cover ``dim``, and of ``flat`` those there.

    The first one wins a tie, and the last NaN wins against all.
    """
    dim, length = dim % input.ndim, input.shape[dim]
    starts = np.arange(count) * length // max(count, 1)
    stops = -(-(np.arange(count) + 1) * length // max(count, 1))
    offsets = np.arange(max(stops - starts, default=1))
    places = np.minimum(starts[:, None] + offsets, max(length - 1, 0))
    behind = (1,) * (input.ndim - dim - 1)
    inside = (offsets < (stops - starts)[:, None]).reshape(*places.shape, *behind)
    index = beside(input, places)
    picked = pick(input, dim, index)
    lowest = -np.inf if input.dtype.kind == "f" else np.iinfo(input.dtype).min
    candidates = where(beside(input, inside), picked.detach(), lowest)
    numbers = beside(input, (offsets + 1).reshape(-1, *behind))
    of_nans = where(isnan(candidates), numbers, 0)
    best = where(
        gt(amax(of_nans, dim + 1, keepdim=True), 0),
        argmax(of_nans, dim + 1, keepdim=True),
        argmax(candidates, dim + 1, keepdim=True),
    )
    values = squeeze(take_along_axis(picked, best, dim + 1), dim + 1)
    return values, squeeze(take_along_axis(pick(flat, dim, index), best, dim + 1), dim + 1)


def _adaptive_max(name: str, input: Tensor, output_size: Any, dims: int, indices: bool) -> Any:
    if input.ndim <= dims:
        raise ValueError(f"{name}: Input dimension should be at least {dims + 1}")
    if input.ndim > dims + 2:
        raise RuntimeError(
            f"{name}: Expected {dims + 1}D or {dims + 2}D tensor, but got {list(input.shape)}"
        )
    sizes = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * dims
    if len(sizes) != dims:
        raise RuntimeError(f"{name}: internal error: output_size.size() must be {dims}")
    image = input.shape[-dims:]
    sizes = tuple(n if s is None else int(s) for s, n in zip(sizes, image, strict=True))
    if min(sizes) < 0:
        raise RuntimeError(f"{name}: Trying to create tensor with negative dimension: {sizes}")
    if 0 in input.shape[1:]:
        raise RuntimeError(
            f"{name}: Expected input to have non-zero size for non-batch dimensions, but input has "
            f"sizes {list(input.shape)}"
        )
    places = np.arange(int(np.prod(image))).reshape(image)
    flat = broadcast_to(beside(input, places), input.shape)
    values = input
    for dim in range(-1, -dims - 1, -1):
        values, flat = _window_maxima(values, flat, dim, sizes[dim])
    return (values, flat) if indices else values


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest elements of ``output_size`` windows of nearly equal size.

    The first one wins a tie, and the last NaN wins against all.

    Args:
        input: (batch, channels, length), or without the batch.
        output_size: how many; None for as many as there are elements.
        return_indices: also return their positions.

    Raises:
        RuntimeError: ``input`` has other dimensions.
    """
    size = one(output_size) if isinstance(output_size, tuple | list) else output_size
    return _adaptive_max("adaptive_max_pool1d", input, (size,), 1, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """``adaptive_max_pool1d`` over images; positions are those in the flattened image."""
    return _adaptive_max("adaptive_max_pool2d", input, output_size, 2, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """``adaptive_max_pool1d`` over volumes; positions are those in the flattened volume."""
    return _adaptive_max("adaptive_max_pool3d", input, output_size, 3, return_indices)


# ---------------------------------------------------------------------------------------- powers


def _rooted(means: Tensor, elements: int, norm_type: float) -> Tensor:
    return power(mul(mul(sgn(means), relu(absolute(means))), elements), 1.0 / norm_type)


def _extremes(pool: Any, input: Tensor, norm_type: float, *windows: Any) -> Tensor:
    """The largest size in each window; for minus infinity the smallest."""
    kernel, stride, ceil_mode = windows
    sizes = absolute(input) if norm_type > 0 else neg(absolute(input))
    largest: Tensor = pool(sizes, kernel, stride, 0, 1, ceil_mode)
    return largest if norm_type > 0 else neg(largest)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """``(sum x ** norm_type) ** (1 / norm_type)`` of each window along (batch, channels, length).

    Raises:
        RuntimeError: ``input`` has other dimensions, or a window does not fit.
    """
    if math.isinf(norm_type):
        return _extremes(max_pool1d, input, norm_type, kernel_size, stride, ceil_mode)
    means = avg_pool1d(power(input, norm_type), kernel_size, stride, 0, ceil_mode)
    return _rooted(means, one(kernel_size), norm_type)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """``lp_pool1d`` over images."""
    if math.isinf(norm_type):
        return _extremes(max_pool2d, input, norm_type, kernel_size, stride, ceil_mode)
    height, width = pair(kernel_size)
    means = avg_pool2d(power(input, norm_type), (height, width), stride, 0, ceil_mode)
    return _rooted(means, height * width, norm_type)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """``lp_pool1d`` over volumes."""
    if math.isinf(norm_type):
        return _extremes(max_pool3d, input, norm_type, kernel_size, stride, ceil_mode)
    kernel = triple(kernel_size)
    means = avg_pool3d(power(input, norm_type), kernel, stride, 0, ceil_mode)
    return _rooted(means, kernel[0] * kernel[1] * kernel[2], norm_type)


# --------------------------------------------------------------------------------------- way back


def _unpooled(
    name: str,
    input: Tensor,
    indices: Tensor,
    windows: tuple[Any, Any, Any],
    output_size: Any,
    dims: int,
) -> Tensor:
    if input.shape != indices.shape or input.ndim not in (dims + 1, dims + 2):
        raise RuntimeError(
            f"{name}: input and indices must have one shape of {dims + 1} or {dims + 2} "
            f"dimensions, not {list(input.shape)} and {list(indices.shape)}"
        )
    kernel, stride, padding = (
        (value,) * dims if isinstance(value, INTEGERS) else tuple(value) for value in windows
    )
    usual = [
        (n - 1) * step - 2 * edge + k
        for n, k, step, edge in zip(input.shape[-dims:], kernel, stride, padding, strict=True)
    ]
    size = usual if output_size is None else list(output_size)[-dims:]
    for given, length, step in zip(size, usual, stride, strict=True):
        if not length - step < given < length + step:
            raise ValueError(
                f"invalid output_size {size} (dim must be between {length - step} and "
                f"{length + step})"
            )
    count = int(np.prod(size))
    lead = tuple(input.shape[:-dims])
    flat = zeros((*lead, count), dtype=input.dtype, device=input.device)
    row = (*lead, math.prod(input.shape[-dims:]))
    spread = scatter(flat, len(lead), reshape(indices, row), reshape(input, row))
    return reshape(spread, (*lead, *size))


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """The elements of ``input`` at the places that ``max_pool1d`` told, zeros between them.

    Args:
        input: (batch, channels, length), or without the batch.
        indices: of that shape, as ``max_pool1d`` gives them with ``return_indices``.
        kernel_size: as given there.
        stride: as given there.
        padding: as given there.
        output_size: which of the lengths that would give ``input``.

    Raises:
        RuntimeError: the shapes or the indices do not fit.
        ValueError: ``output_size`` is none of them.
    """
    windows = (kernel_size, kernel_size if stride is None else stride, padding)
    return _unpooled("max_unpool1d", input, indices, windows, output_size, 1)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """``max_unpool1d`` over images."""
    windows = (kernel_size, kernel_size if stride is None else stride, padding)
    return _unpooled("max_unpool2d", input, indices, windows, output_size, 2)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> Tensor:
    """``max_unpool1d`` over volumes."""
    windows = (kernel_size, kernel_size if stride is None else stride, padding)
    return _unpooled("max_unpool3d", input, indices, windows, output_size, 3)
