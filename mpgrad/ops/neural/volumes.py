"""Convolution and pooling over volumes, made of those over images.

A volume is a stack of images: the batch and the depth become one batch, and the part of a kernel
along the depth becomes channels (convolution) or a second pool (pooling).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import index_select, narrow, take_along_axis
from mpgrad.ops.by_index.scattering import index_add
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.calling.dimensions import INTEGERS, is_given
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.neural.convolution import conv2d
from mpgrad.ops.neural.line_convolution import check_dims, conv_transpose2d
from mpgrad.ops.neural.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d, window_means
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import contiguous, flatten, permute, reshape, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

Triple = tuple[int, int, int]


def triple(value: Any) -> Triple:
    """``value`` for depth, height and width.

    Raises:
        RuntimeError: it is neither one number nor three.
    """
    if isinstance(value, INTEGERS):
        return (int(value),) * 3
    if len(value) == 1:
        return (int(value[0]),) * 3
    if len(value) != 3:
        raise RuntimeError(f"expected one number or three, but got {value}")
    return tuple(int(each) for each in value)  # type: ignore[return-value]


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Triple = 1,
    padding: int | Triple | str = 0,
    dilation: int | Triple = 1,
    groups: int = 1,
) -> Tensor:
    """Slide ``weight`` through ``input``.

    Args:
        input: (batch, in channels, depth, height, width), or without the batch.
        weight: (out channels, in channels / groups, kernel depth, height, width).
        bias: (out channels,) or None.
        stride: step between windows, one number or three.
        padding: zeros around the volume, ``"valid"`` for none, or ``"same"`` to keep its size.
        dilation: distance between the elements of a window.
        groups: groups of channels that do not see each other.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_dims("conv3d", input, weight, 5)
    if input.ndim == 4:
        options = (stride, padding, dilation, groups)
        return squeeze(conv3d(unsqueeze(input, 0), weight, bias, *options), 0)
    steps, spread = triple(stride), triple(dilation)
    if min(*steps, *spread, groups) < 1:
        raise RuntimeError(
            "conv3d: stride, dilation and groups should be greater than zero, but got "
            f"{steps}, {spread}, {groups}"
        )
    if input.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input"
            f"{list(input.shape)} to have {weight.shape[1] * groups} channels, but got "
            f"{input.shape[1]} channels instead"
        )
    input, around = _padded(input, weight, padding, steps, spread)
    kernel = weight.shape[2]
    depth = (input.shape[2] - spread[0] * (kernel - 1) - 1) // steps[0] + 1
    if depth < 1:
        raise RuntimeError(
            f"conv3d: Kernel size can't be greater than actual input size: {list(input.shape)} and "
            f"{list(weight.shape)}"
        )
    n, channels, (height, width) = input.shape[0], weight.shape[1], input.shape[3:]
    # Each image of the result sees the images under the kernel, as further channels of its group.
    seen = np.add.outer(np.arange(depth) * steps[0], np.arange(kernel) * spread[0]).reshape(-1)
    taps = index_select(permute(input, 0, 2, 1, 3, 4), 1, beside(input, seen))
    taps = reshape(taps, (n, depth, kernel, groups, channels, height, width))
    images = reshape(
        permute(taps, 0, 1, 3, 2, 4, 5, 6), (n * depth, groups * kernel * channels, height, width)
    )
    filters = reshape(
        permute(weight, 0, 2, 1, 3, 4), (weight.shape[0], kernel * channels, *weight.shape[3:])
    )
    out = conv2d(images, filters, bias, steps[1:], around, spread[1:], groups)
    return contiguous(permute(reshape(out, (n, depth, *out.shape[1:])), 0, 2, 1, 3, 4))


def _padded(
    input: Tensor, weight: Tensor, padding: Any, steps: Triple, spread: Triple
) -> tuple[Tensor, tuple[int, int]]:
    """``input`` with zeros along its depth, and the padding of height and width."""
    if padding == "same":
        if steps != (1, 1, 1):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        totals = [gap * (k - 1) for gap, k in zip(spread, weight.shape[2:], strict=True)]
        counts = [n for total in reversed(totals) for n in (total // 2, total - total // 2)]
        return pad(input, counts), (0, 0)
    deep, *around = (0, 0, 0) if padding == "valid" else triple(padding)
    if min(deep, *around) < 0:
        raise RuntimeError("negative padding is not supported")
    return (pad(input, (0, 0, 0, 0, deep, deep)) if deep else input), (around[0], around[1])


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Triple = 1,
    padding: int | Triple = 0,
    output_padding: int | Triple = 0,
    groups: int = 1,
    dilation: int | Triple = 1,
) -> Tensor:
    """The gradient of :func:`conv3d` for its input, as a layer.

    Args:
        input: (batch, in channels, depth, height, width), or without the batch.
        weight: (in channels, out channels / groups, kernel depth, height, width).
        bias: (out channels,) or None.
        stride: step between windows of the output.
        padding: removed from the border of the output.
        output_padding: more of it at the ends; less than stride or dilation.
        groups: groups of channels that do not see each other.
        dilation: distance between the elements of a window.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_dims("conv_transpose3d", input, weight, 5)
    if input.ndim == 4:
        options = (bias, stride, padding, output_padding, groups, dilation)
        return squeeze(conv_transpose3d(unsqueeze(input, 0), weight, *options), 0)
    steps, around, more, spread = (triple(x) for x in (stride, padding, output_padding, dilation))
    n, depth, kernel, channels = input.shape[0], input.shape[2], weight.shape[2], weight.shape[1]
    length = (depth - 1) * steps[0] - 2 * around[0] + spread[0] * (kernel - 1) + more[0] + 1
    if length < 1 or not 0 <= more[0] < max(steps[0], spread[0]):
        raise RuntimeError(
            f"conv_transpose3d: output padding {more} must be smaller than either stride {steps} "
            f"or dilation {spread}, and leave a depth of at least 1, not {length}"
        )
    images = reshape(permute(input, 0, 2, 1, 3, 4), (n * depth, input.shape[1], *input.shape[3:]))
    filters = reshape(
        permute(weight, 0, 2, 1, 3, 4), (weight.shape[0], kernel * channels, *weight.shape[3:])
    )
    out = conv_transpose2d(
        images, filters, None, steps[1:], around[1:], more[1:], groups, spread[1:]
    )
    size = tuple(out.shape[2:])
    taps = permute(reshape(out, (n, depth, groups, kernel, channels, *size)), 0, 2, 4, 1, 3, 5, 6)
    taps = reshape(taps, (n, groups * channels, depth * kernel, *size))
    places = np.add.outer(np.arange(depth) * steps[0], np.arange(kernel) * spread[0]).reshape(-1)
    whole = max(int(places.max(initial=0)) + 1, around[0] + length)
    empty = zeros((n, groups * channels, whole, *size), dtype=taps.dtype, device=taps.device)
    volume = narrow(index_add(empty, 2, beside(taps, places), taps), 2, around[0], length)
    if bias is None:
        return contiguous(volume)
    return add(volume, reshape(bias, (-1, 1, 1, 1)))


# --------------------------------------------------------------------------------------- pooling


def _images(input: Tensor) -> Tensor:
    n, channels, depth, height, width = input.shape
    return reshape(input, (n, channels * depth, height, width))


def _stacks(images: Tensor, input: Tensor) -> Tensor:
    """Pooled images, with the depth as height and the rest as width."""
    n, channels, depth = input.shape[:3]
    return reshape(images, (n, channels, depth, math.prod(images.shape[2:])))


def _check_volume(name: str, input: Tensor) -> None:
    if input.ndim not in (4, 5):
        raise RuntimeError(
            f"{name}: Expected 4D or 5D (batch mode) tensor, but got: {list(input.shape)}"
        )


def _steps(stride: Any, kernel: Triple) -> Triple:
    return triple(stride) if is_given(stride) else kernel


def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the first one wins a tie and gets the gradient.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        kernel_size: of a window, one number or three.
        stride: step between windows; by default ``kernel_size``.
        padding: around the volume, at most half a window; never chosen.
        dilation: distance between the elements of a window.
        ceil_mode: take windows that begin in the volume and end outside, too.
        return_indices: also return the positions in the flattened volume.

    Raises:
        RuntimeError: ``input`` has other dimensions, or a window does not fit.
    """
    _check_volume("max_pool3d", input)
    if 0 in input.shape[-4:]:
        raise RuntimeError(
            "max_pool3d: Expected input's non-batch dimensions to have positive length, but input "
            f"has a shape of {list(input.shape)}"
        )
    if input.ndim == 4:
        options = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        pooled = max_pool3d(unsqueeze(input, 0), *options)
        return tuple(squeeze(x, 0) for x in pooled) if return_indices else squeeze(pooled, 0)
    kernel, around, spread = triple(kernel_size), triple(padding), triple(dilation)
    steps = _steps(stride, kernel)
    flat, inside = max_pool2d(
        _images(input), kernel[1:], steps[1:], around[1:], spread[1:], ceil_mode, True
    )
    values, rows = max_pool2d(
        _stacks(flat, input),
        (kernel[0], 1),
        (steps[0], 1),
        (around[0], 0),
        (spread[0], 1),
        ceil_mode,
        True,
    )
    shape = (*input.shape[:2], values.shape[2], *flat.shape[2:])
    if not return_indices:
        return reshape(values, shape)
    # ``rows`` are places in the stack: depth times the images' elements, and which element.
    columns = math.prod(flat.shape[2:])
    places = (*input.shape[:2], input.shape[2] * math.prod(inside.shape[2:]))
    picked = take_along_axis(reshape(inside, places), flatten(rows, 2), 2)
    depth = flatten(rows, 2) // columns
    indices = add(depth * math.prod(input.shape[3:]), picked)
    return reshape(values, shape), reshape(indices, shape)


def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window; see ``avg_pool2d`` for the other arguments.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        kernel_size: of a window, one number or three.

    Raises:
        RuntimeError: ``input`` has other dimensions, a window does not fit, or the divisor is 0.
    """
    _check_volume("avg_pool3d", input)
    if input.ndim == 4:
        options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return squeeze(avg_pool3d(unsqueeze(input, 0), kernel_size, *options), 0)
    if divisor_override == 0:
        raise RuntimeError("avg_pool3d: divisor must be not zero")
    if input.dtype.kind in "iu":  # rounded once
        options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return cast(avg_pool3d(cast(input, np.float64), kernel_size, *options), input.dtype)
    kernel, around = triple(kernel_size), triple(padding)
    steps, one = _steps(stride, kernel), None if divisor_override is None else 1
    flat = avg_pool2d(
        _images(input), kernel[1:], steps[1:], around[1:], ceil_mode, count_include_pad, one
    )
    means = avg_pool2d(
        _stacks(flat, input),
        (kernel[0], 1),
        (steps[0], 1),
        (around[0], 0),
        ceil_mode,
        count_include_pad,
        divisor_override,
    )
    return reshape(means, (*input.shape[:2], means.shape[2], *flat.shape[2:]))


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows of nearly equal size that cover the volume.

    Args:
        input: (batch, channels, depth, height, width), or without the batch.
        output_size: how many windows there are, one number or three; None for as many as there are
            elements.

    Raises:
        ValueError: ``input`` has less than four dimensions.
        RuntimeError: it has more than five, or ``output_size`` is no such triple.
    """
    if input.ndim < 4:
        raise ValueError("adaptive_avg_pool3d: Input dimension should be at least 4")
    _check_volume("adaptive_avg_pool3d", input)
    sizes = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * 3
    if len(sizes) != 3:
        raise RuntimeError(f"adaptive_avg_pool3d: output_size must be 3, not {output_size}")
    depth = input.shape[-3] if sizes[0] is None else int(sizes[0])
    if min(depth, *(s for s in sizes[1:] if s is not None), 0) < 0:
        raise RuntimeError(
            "adaptive_avg_pool3d: elements of output_size must be greater than or equal to 0 but "
            f"received {sizes}"
        )
    images = reshape(input, (-1, *input.shape[-2:]))
    flat = reshape(
        adaptive_avg_pool2d(images, sizes[1:]),
        (
            *input.shape[:-2],
            *(n if s is None else s for s, n in zip(sizes[1:], input.shape[-2:], strict=True)),
        ),
    )
    return window_means(flat, -3, depth)
