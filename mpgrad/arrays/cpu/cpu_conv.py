"""Convolution on NumPy: products with columns, a few images at a time.

Arrays are (batch, channels, height, width). Pairs such as ``stride`` are (vertical, horizontal).
The three functions are the three partial applications of one trilinear form, so each is the
derivative of the others (Dumoulin and Visin, "A guide to convolution arithmetic for deep learning",
2016).

Columns are the elements of each window, copied side by side, so that a convolution is one product
(Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
processing", 2006). They take the memory of the images times the number of elements of a kernel. The
columns of a few images stay in the cache, and the next ones use the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mpgrad.arrays.cpu.cpu_products import cpu_features, product
from mpgrad.arrays.cpu.cpu_windows import (
    Array,
    Pair,
    copy_rows,
    each_tap,
    output_length,
    pad,
    padded_zeros,
    without_padding,
)

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

#: The bytes of the columns of a few images, which should stay in a core's own cache. (More if the
#: weight is larger, because each product reads it once.)
BLOCK_BYTES = 2 * 2**20

#: With at least this many channels per group the gradient of the input is summed with channels
#: last: all channels of a pixel at once, instead of a few elements of a row of one channel.
CHANNELS_MIN = 16

#: The columns of images up to this width have channels last, too (docs/profiles.md, "The digits
#: CNN").
NARROW_MAX = 16

#: Products of at most this many multiplications are faster for each image alone: with AVX-512,
#: OpenBLAS does not copy the operands of products up to 100 x 100 x 100. 64 images of 16 x 4 x 4,
#: 32 channels: 87 us instead of 119; with AVX2 137 us instead of 115.
SMALL_PRODUCT = 1_000_000 if "AVX512_SKX" in cpu_features() else 0

#: The gradient of a weight for at most this many channels takes columns with channels first: 64
#: images of 1 x 8 x 8, 16 channels: 66 us instead of 116; with 3 channels it depends on the sizes.
FEW_CHANNELS = 2

#: Orders of the axes (batch, group, channel, kernel, kernel, out height, out width) in columns.
_CHANNELS_FIRST = (1, 2, 3, 4, 0, 5, 6)
_CHANNELS_LAST = (1, 0, 5, 6, 3, 4, 2)


def conv2d(
    xp: CpuBackend,
    x: Array,
    weight: Array,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    """Cross-correlate ``x`` with ``weight`` of shape (out channels, in / groups, kernel)."""
    is_last = _has_narrow_images(x, weight) and not _has_one_tap(weight)
    padded = _with_channels_last(x, padding) if is_last else pad(x, padding, 0)
    windows = _windows(padded, weight.shape[2:], stride, dilation, groups)
    n, out_channels, (height, width) = x.shape[0], weight.shape[0], windows.shape[-2:]
    filters = weight.reshape(groups, out_channels // groups, *weight.shape[1:])
    out = xp.empty((n, out_channels, height, width), x.dtype)
    if not out.size:
        return out
    pieces = out.reshape(n, groups, out_channels // groups, height * width)
    if is_last:
        by_tap = filters.transpose(0, 3, 4, 2, 1).reshape(groups, -1, filters.shape[1])
        is_small = math.prod(by_tap.shape[1:]) * height * width <= SMALL_PRODUCT
        for images, columns in _blocks(windows, _CHANNELS_LAST, weight.nbytes):
            if is_small:
                of_image = columns.reshape(groups, -1, height * width, by_tap.shape[1])
                taps = by_tap.transpose(0, 2, 1)
                product(taps, of_image.transpose(1, 0, 3, 2), out=pieces[images])
                continue
            found = product(columns.reshape(groups, -1, by_tap.shape[1]), by_tap)
            by_image = found.reshape(groups, -1, height * width, filters.shape[1])
            pieces[images] = by_image.transpose(1, 0, 3, 2)
        return out
    filters = filters.reshape(*filters.shape[:2], -1)
    if _has_one_tap(weight):
        product(filters, windows.reshape(n, groups, -1, height * width), out=pieces)
        return out
    for images, columns in _blocks(windows, _CHANNELS_FIRST, weight.nbytes):
        found = product(filters, columns.reshape(groups, filters.shape[2], -1))
        by_image = found.reshape(groups, out_channels // groups, -1, height * width)
        pieces[images] = by_image.transpose(2, 0, 1, 3)
    return out


def conv2d_weight_grad(
    xp: CpuBackend,
    x: Array,
    grad: Array,
    *,
    weight_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    """The gradient of ``conv2d`` for its weight, of shape ``weight_shape``."""
    out = xp.empty(weight_shape, grad.dtype)
    if not grad.size:
        out.fill(0)
        return out
    is_last = not _has_one_tap(out) and weight_shape[1] > FEW_CHANNELS
    padded = _with_channels_last(x, padding) if is_last else pad(x, padding, 0)
    windows = _windows(padded, weight_shape[2:], stride, dilation, groups)
    order = _CHANNELS_LAST if is_last else _CHANNELS_FIRST
    n, out_channels, *size = grad.shape
    by_image = grad.reshape(n, groups, out_channels // groups, math.prod(size))
    total = None
    for images, columns in _blocks(windows, order, 2 * out.nbytes):
        rows = by_image[images].transpose(1, 2, 0, 3).reshape(groups, by_image.shape[2], -1)
        length = rows.shape[2]
        found = product(
            rows,
            columns.reshape(groups, length, -1)
            if is_last
            else columns.reshape(groups, -1, length).transpose(0, 2, 1),
        )
        total = found if total is None else np.add(total, found, out=total)
    assert total is not None
    channels, *kernel = weight_shape[1:]
    if is_last:
        total = total.reshape(out_channels, *kernel, channels).transpose(0, 3, 1, 2)
    out[...] = total.reshape(weight_shape)
    return out


def conv2d_input_grad(
    xp: CpuBackend,
    grad: Array,
    weight: Array,
    *,
    input_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    """The gradient of ``conv2d`` for its input, of shape ``input_shape``."""
    if _has_one_tap(weight) or weight.shape[1] < CHANNELS_MIN:
        return _input_grad_at_once(xp, grad, weight, input_shape, stride, padding, dilation, groups)
    n, out_channels, *size = grad.shape
    channels, *kernel = weight.shape[1:]
    around = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    if stride == (1, 1) and min(around) >= 0:
        # Windows of the gradient, without gaps, give the same: nothing is added to what was read.
        by_input = weight.reshape(groups, -1, channels, *kernel).swapaxes(1, 2)[..., ::-1, ::-1]
        return conv2d(
            xp,
            grad,
            by_input.reshape(-1, out_channels // groups, *kernel),
            stride=stride,
            padding=(around[0], around[1]),
            dilation=dilation,
            groups=groups,
        )
    filters = weight.reshape(groups, out_channels // groups, channels, *kernel)
    by_tap = filters.transpose(0, 1, 3, 4, 2).reshape(groups, out_channels // groups, -1)
    by_image = grad.reshape(n, groups, out_channels // groups, *size)
    out = xp.empty(input_shape, grad.dtype)
    per_image = math.prod((*size, *weight.shape[1:], groups)) * grad.itemsize
    for images in _slices(n, per_image, weight.nbytes):
        pixels = by_image[images].transpose(1, 0, 3, 4, 2)
        columns = product(pixels.reshape(groups, -1, pixels.shape[4]), by_tap)
        of_taps = columns.reshape(*pixels.shape[:4], *kernel, channels).transpose(
            1, 0, 6, 4, 5, 2, 3
        )
        padded = _zeros_with_channels_last(out[images].shape, padding, grad.dtype)
        split = padded.reshape(-1, groups, channels, *padded.shape[2:])
        for i, j, view in each_tap(split, tuple(kernel), stride, dilation, tuple(size)):
            view += of_taps[:, :, :, i, j]
        out[images] = without_padding(padded, input_shape, padding)
    return out


def _input_grad_at_once(
    xp: CpuBackend,
    grad: Array,
    weight: Array,
    input_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    """The same with images in their own order, for few channels."""
    n, out_channels, height, width = grad.shape
    filters = weight.reshape(groups, out_channels // groups, -1)
    rows = grad.reshape(n, groups, out_channels // groups, height * width)
    columns = product(filters.transpose(0, 2, 1), rows)
    of_taps = columns.reshape(n, input_shape[1], *weight.shape[2:], height, width)
    padded = padded_zeros(input_shape, padding, grad.dtype)
    for i, j, view in each_tap(padded, weight.shape[2:], stride, dilation, (height, width)):
        view += of_taps[:, :, i, j]
    return xp.copy(without_padding(padded, input_shape, padding))


# ---------------------------------------------------------------------- columns


def _has_narrow_images(x: Array, weight: Array) -> bool:
    """Whether their rows are so short that the elements of a pixel are copied faster."""
    return x.shape[3] <= NARROW_MAX and weight.shape[1] >= CHANNELS_MIN


def _has_one_tap(weight: Array) -> bool:
    """Whether a kernel has one element: then images are already columns."""
    return weight.shape[2:] == (1, 1)


def _windows(
    padded: Array, kernel: tuple[int, ...], stride: Pair, dilation: Pair, groups: int
) -> Array:
    """A read-only view: (batch, group, channel, kernel, kernel, out height, out width)."""
    n, channels, *lengths = padded.shape
    size = [output_length(lengths[k], kernel[k], stride[k], 0, dilation[k]) for k in (0, 1)]
    sn, sc, sh, sw = padded.strides
    per_group = channels // groups
    return as_strided(
        padded,
        (n, groups, per_group, *kernel, *size),
        (
            sn,
            sc * per_group,
            sc,
            sh * dilation[0],
            sw * dilation[1],
            sh * stride[0],
            sw * stride[1],
        ),
        writeable=False,
    )


def _with_channels_last(x: Array, padding: Pair) -> Array:
    """``x`` with padding, in memory with all channels of a pixel side by side."""
    padded = _zeros_with_channels_last(x.shape, padding, x.dtype)
    without_padding(padded, x.shape, padding)[...] = x
    return padded


def _zeros_with_channels_last(shape: tuple[int, ...], padding: Pair, dtype: Any) -> Array:
    """Zeros for images of ``shape`` with padding, in such memory."""
    (n, channels, height, width), (top, left) = shape, padding
    memory = np.zeros((n, height + 2 * top, width + 2 * left, channels), dtype)
    return memory.transpose(0, 3, 1, 2)


def _blocks(
    windows: Array, order: tuple[int, ...], bytes_min: int
) -> Iterator[tuple[slice, Array]]:
    """The columns of a few images at a time, in the same memory: a slice of images, and a copy."""
    per_image = math.prod(windows.shape[1:])
    memory = None
    for images in _slices(windows.shape[0], per_image * windows.itemsize, bytes_min):
        block = windows[images].transpose(order)
        if memory is None:
            memory = np.empty(block.size, block.dtype)
        columns = memory[: block.size].reshape(block.shape)
        if block.strides[-2] == block.shape[-1] * block.strides[-1]:
            # All channels of the taps in a row lie side by side.
            joined = (*block.shape[:-2], block.shape[-2] * block.shape[-1])
            copy_rows(columns.reshape(joined), block.reshape(joined))
        else:
            copy_rows(columns, block)
        yield images, columns


def _slices(n: int, bytes_per_image: int, bytes_min: int) -> Iterator[slice]:
    """The images that are processed together."""
    together = max(1, max(BLOCK_BYTES, bytes_min) // max(bytes_per_image, 1))
    for first in range(0, n, together):
        yield slice(first, min(first + together, n))
