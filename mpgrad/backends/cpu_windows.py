"""Convolution and pooling on NumPy: strided window views, matrix products, and loops over taps.

Arrays are (batch, channels, height, width). Pairs such as ``stride`` are (vertical, horizontal).
The three convolution functions are the three partial applications of one trilinear form, so each
is the derivative of the others (Dumoulin and Visin, "A guide to convolution arithmetic for deep
learning", 2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from mpgrad.backends.cpu import CpuBackend

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]


def output_length(length: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """How many windows fit along one axis."""
    return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


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
    n, out_channels = x.shape[0], weight.shape[0]
    windows = _windows(x, weight.shape[2:], stride, padding, dilation)
    height, width = windows.shape[-2:]
    columns = windows.reshape(n, groups, -1, height * width)
    filters = weight.reshape(groups, out_channels // groups, -1)
    out = xp.empty((n, out_channels, height, width), x.dtype)
    pieces = out.reshape(n, groups, out_channels // groups, height * width)
    np.matmul(filters, columns, out=pieces)
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
    n, out_channels, height, width = grad.shape
    filters = weight.reshape(groups, out_channels // groups, -1)
    rows = grad.reshape(n, groups, out_channels // groups, height * width)
    columns = np.matmul(filters.transpose(0, 2, 1), rows)
    taps = columns.reshape(n, input_shape[1], *weight.shape[2:], height, width)
    padded = _padded_zeros(input_shape, padding, grad.dtype)
    for i, j, view in _taps(padded, weight.shape[2:], stride, dilation, (height, width)):
        view += taps[:, :, i, j]
    return _inside(xp, padded, input_shape, padding)


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
    n, out_channels = grad.shape[:2]
    windows = _windows(x, weight_shape[2:], stride, padding, dilation)
    grouped = windows.reshape(n, groups, weight_shape[1], *windows.shape[2:])
    columns = grouped.transpose(1, 0, 5, 6, 2, 3, 4).reshape(
        groups, grad.shape[2] * grad.shape[3] * n, -1
    )
    by_image = grad.reshape(n, groups, out_channels // groups, -1)
    rows = by_image.transpose(1, 2, 0, 3).reshape(groups, out_channels // groups, -1)
    out = xp.empty(weight_shape, grad.dtype)
    np.matmul(rows, columns, out=out.reshape(groups, out_channels // groups, columns.shape[2]))
    return out


def max_pool2d(
    xp: CpuBackend, x: Array, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array, Array]:
    """The largest element of each window, and its position in the flattened image.

    The first one wins a tie, as in PyTorch; a NaN wins always.
    """
    size = tuple(
        output_length(x.shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    padded = _pad(x, padding, _lowest(x.dtype))
    taps = [tap for _, _, tap in _taps(padded, kernel, stride, dilation, size)]
    values = xp.empty((*x.shape[:2], *size), x.dtype)
    np.copyto(values, taps[0])
    for tap in taps[1:]:
        np.maximum(values, tap, out=values)
    winners = _first_equal(taps, values, _taps_inside(x.shape, kernel, stride, padding, dilation))
    return values, _flat_positions(xp, winners, x.shape, kernel, stride, padding, dilation)


def _first_equal(taps: list[Array], values: Array, inside: list[Array]) -> Array:
    """For each window the number of the first tap that equals its value, without branches."""
    missed = np.ones(values.shape, bool)
    number = np.zeros(values.shape, np.int64)
    for tap, valid in zip(taps[:-1], inside, strict=False):
        hit = tap == values
        hit |= tap != tap
        hit &= valid
        missed &= ~hit
        number += missed
    return number


def _taps_inside(
    shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> list[Array]:
    """For each tap, in which windows it lies in the image and not in the padding."""
    size = tuple(
        output_length(shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    image = _pad(np.ones((1, 1, *shape[2:]), bool), padding, False)
    return [tap for _, _, tap in _taps(image, kernel, stride, dilation, size)]


def _flat_positions(
    xp: CpuBackend,
    number: Array,
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Array:
    """Where tap ``number`` of each window lies in the flattened image."""
    width = shape[3]
    rows = (np.arange(number.shape[2]) * stride[0] - padding[0]) * width
    columns = np.arange(number.shape[3]) * stride[1] - padding[1]
    offsets = np.add.outer(
        np.arange(kernel[0]) * dilation[0] * width, np.arange(kernel[1]) * dilation[1]
    )
    out = np.take(offsets.ravel(), number, out=xp.empty(number.shape, np.int64), mode="clip")
    return np.add(out, np.add.outer(rows, columns), out=out)


def avg_pool2d(
    xp: CpuBackend, x: Array, *, kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool
) -> Array:
    """The mean of each window; padding counts as zeros, or not at all."""
    size = tuple(output_length(x.shape[2 + k], kernel[k], stride[k], padding[k]) for k in (0, 1))
    out = xp.empty((*x.shape[:2], *size), x.dtype)
    out.fill(0)
    for _, _, tap in _taps(_pad(x, padding, 0), kernel, stride, (1, 1), size):
        out += tap
    out /= _window_counts(x.shape, kernel, stride, padding, count_include_pad, x.dtype)
    return out


def avg_pool2d_input_grad(
    xp: CpuBackend,
    grad: Array,
    *,
    input_shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
) -> Array:
    """The gradient of ``avg_pool2d`` for its input, of shape ``input_shape``."""
    counts = _window_counts(input_shape, kernel, stride, padding, count_include_pad, grad.dtype)
    share = grad / counts
    padded = _padded_zeros(input_shape, padding, grad.dtype)
    for _, _, view in _taps(padded, kernel, stride, (1, 1), grad.shape[2:]):
        view += share
    return _inside(xp, padded, input_shape, padding)


# ---------------------------------------------------------------------- windows


def _windows(
    x: Array, kernel: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair
) -> Array:
    """A read-only view of shape (batch, channels, *kernel, out height, out width)."""
    size = tuple(
        output_length(x.shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    x = _pad(x, padding, 0)
    sn, sc, sh, sw = x.strides
    return as_strided(
        x,
        (*x.shape[:2], *kernel, *size),
        (sn, sc, sh * dilation[0], sw * dilation[1], sh * stride[0], sw * stride[1]),
        writeable=False,
    )


def _taps(
    padded: Array,
    kernel: tuple[int, ...],
    stride: Pair,
    dilation: Pair,
    size: tuple[int, ...],
) -> Iterator[tuple[int, int, Array]]:
    """For each kernel position (i, j): the view of what it meets in all windows."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            yield (
                i,
                j,
                padded[
                    :,
                    :,
                    top : top + stride[0] * (size[0] - 1) + 1 : stride[0],
                    left : left + stride[1] * (size[1] - 1) + 1 : stride[1],
                ],
            )


def _pad(x: Array, padding: Pair, value: Any) -> Array:
    if padding == (0, 0):
        return x
    (top, left), (n, c, h, w) = padding, x.shape
    padded = np.full((n, c, h + 2 * top, w + 2 * left), value, x.dtype)
    padded[:, :, top : top + h, left : left + w] = x
    return padded


def _padded_zeros(shape: tuple[int, ...], padding: Pair, dtype: Any) -> Array:
    n, c, h, w = shape
    return np.zeros((n, c, h + 2 * padding[0], w + 2 * padding[1]), dtype)


def _inside(xp: CpuBackend, padded: Array, shape: tuple[int, ...], padding: Pair) -> Array:
    """``padded`` without its padding, where the caller wants it."""
    top, left = padding
    return xp.copy(padded[:, :, top : top + shape[2], left : left + shape[3]])


def _window_counts(
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
    dtype: Any,
) -> Array:
    """How many elements each window averages over, broadcastable to the output."""
    size = tuple(output_length(shape[2 + k], kernel[k], stride[k], padding[k]) for k in (0, 1))
    if count_include_pad:
        return np.full((1, 1, 1, 1), kernel[0] * kernel[1], dtype)
    inside = _pad(np.ones((1, 1, *shape[2:]), dtype), padding, 0)
    counts = np.zeros((1, 1, *size), dtype)
    for _, _, tap in _taps(inside, kernel, stride, (1, 1), size):
        counts += tap
    return counts


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
