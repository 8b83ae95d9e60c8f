"""Two-dimensional pooling: the largest element or the mean of each window."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.cpu_windows import output_length
from mpgrad.ops.by_index.indexing import pick
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.calling.dimensions import is_given
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, div, mul
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.rounding import floor_divide, remainder
from mpgrad.ops.neural.convolution import Pair, pair
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import squeeze, unsqueeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

_max_pool2d = operator(
    "max_pool2d",
    lambda xp, input, *, kernel, stride, padding, dilation: xp.max_pool2d(
        input, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    ),
    input=lambda xp, grad, last_result, input_shape, kernel, stride, padding, dilation: (
        xp.max_pool2d_input_grad(
            grad,
            last_result,
            input_shape=input_shape,
            kernel=kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
        )
    ),
)


def max_pool2d(
    input: Tensor,
    kernel_size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the first one wins a tie and gets the gradient.

    Args:
        input: (batch, channels, height, width), or without the batch.
        kernel_size: of a window, one number or (vertical, horizontal).
        stride: step between windows; by default ``kernel_size``.
        padding: around the image, at most half a window; never chosen.
        dilation: distance between the elements of a window.
        ceil_mode: take windows that begin in the image and end outside, too.
        return_indices: also return the positions in the flattened image.

    Raises:
        RuntimeError: ``input`` has other dimensions, or a window does not fit.
    """
    if input.ndim == 3:
        options = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        pooled = max_pool2d(unsqueeze(input, 0), *options)
        return tuple(squeeze(x, 0) for x in pooled) if return_indices else squeeze(pooled, 0)
    windows = _windows("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    width = input.shape[3]
    image = _extended(input, windows, -math.inf if input.dtype.kind == "f" else _least(input))
    values, indices = call(
        _max_pool2d,
        image,
        kernel=windows.kernel,
        stride=windows.stride,
        padding=windows.padding,
        dilation=windows.dilation,
    )
    if not return_indices:
        return values
    if image.shape[3] != width:
        rows, columns = (f(indices, image.shape[3]) for f in (floor_divide, remainder))
        indices = add(mul(rows, width), columns)
    return values, indices


def _least(input: Tensor) -> int:
    return int(np.iinfo(input.dtype).min)


class _Windows(NamedTuple):
    """Where windows lie in an image; all are (vertical, horizontal)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    #: How many windows there are.
    size: Pair
    #: The length by which the last window exceeds the image and its padding.
    excess: Pair


def _windows(
    name: str,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> _Windows:
    """The windows over ``input``.

    Raises:
        RuntimeError: its dimensions are others than (batch, channels, height, width), or a window
            does not fit.
    """
    if input.ndim != 4:
        raise RuntimeError(
            f"{name}: Expected 3D (unbatched) or 4D input, but got size: {list(input.shape)}"
        )
    if 0 in input.shape[-3:]:
        raise RuntimeError(
            f"{name}: Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for "
            f"input, but got:{list(input.shape)}"
        )
    kernel, around, spread = pair(kernel_size), pair(padding), pair(dilation)
    steps = pair(stride) if is_given(stride) else kernel
    size, excess = [], []
    for length, k, step, edge, gap in zip(
        input.shape[2:], kernel, steps, around, spread, strict=True
    ):
        if step < 1 or k < 1 or gap < 1:
            raise RuntimeError(
                f"{name}: kernel_size, stride and dilation should be greater than zero, but got "
                f"{kernel}, {steps}, {spread}"
            )
        if edge < 0 or edge * 2 > gap * (k - 1) + 1:
            raise RuntimeError(
                f"{name}: pad should be at least zero and at most half of effective kernel size, "
                f"but got pad={edge}, kernel_size={k} and dilation={gap}"
            )
        count = output_length(length + (step - 1 if ceil_mode else 0), k, step, edge, gap)
        if ceil_mode and (count - 1) * step >= length + edge:
            count -= 1  # it would begin after the image
        if count < 1:
            raise RuntimeError(
                f"{name}: Output size is too small: input {list(input.shape)}, kernel {kernel}, "
                f"stride {steps}, padding {around}"
            )
        size.append(count)
        excess.append(max((count - 1) * step + gap * (k - 1) + 1 - (length + 2 * edge), 0))
    return _Windows(kernel, steps, around, spread, tuple(size), tuple(excess))  # type: ignore[arg-type]


def _extended(input: Tensor, windows: _Windows, value: Any) -> Tensor:
    """``input`` with ``value`` where windows exceed it."""
    below, right = windows.excess
    return pad(input, (0, right, 0, below), value=value) if below or right else input


_avg_pool2d = operator(
    "avg_pool2d",
    lambda xp, input, *, kernel, stride, padding, count_include_pad: xp.avg_pool2d(
        input,
        kernel=kernel,
        stride=stride,
        padding=padding,
        count_include_pad=count_include_pad,
    ),
    input=lambda xp, grad, input_shape, kernel, stride, padding, count_include_pad: (
        xp.avg_pool2d_input_grad(
            grad,
            input_shape=input_shape,
            kernel=kernel,
            stride=stride,
            padding=padding,
            count_include_pad=count_include_pad,
        )
    ),
)

_avg_pool2d_input_grad = operator(
    "avg_pool2d_input_grad",
    lambda xp, output_grad, *, input_shape, kernel, stride, padding, count_include_pad: (
        xp.avg_pool2d_input_grad(
            output_grad,
            input_shape=input_shape,
            kernel=kernel,
            stride=stride,
            padding=padding,
            count_include_pad=count_include_pad,
        )
    ),
    output_grad=lambda xp, grad, kernel, stride, padding, count_include_pad: xp.avg_pool2d(
        grad,
        kernel=kernel,
        stride=stride,
        padding=padding,
        count_include_pad=count_include_pad,
    ),
)


def avg_pool2d(
    input: Tensor,
    kernel_size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window.

    Args:
        input: (batch, channels, height, width), or without the batch.
        kernel_size: of a window, one number or (vertical, horizontal).
        stride: step between windows; by default ``kernel_size``.
        padding: zeros around the image, at most half a window.
        ceil_mode: take windows that begin in the image and end outside, too.
        count_include_pad: padding counts as elements.
        divisor_override: what sums are divided by, instead of the number of elements.

    Raises:
        RuntimeError: ``input`` has other dimensions, a window does not fit, or the divisor is 0.
    """
    if divisor_override == 0:
        raise RuntimeError("avg_pool2d: divisor must be not zero")
    if input.ndim == 3:
        options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return squeeze(avg_pool2d(unsqueeze(input, 0), kernel_size, *options), 0)
    if input.dtype.kind in "iu" or input.dtype == np.float16:
        exact = np.float32 if input.dtype.kind == "f" else np.float64
        options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
        return cast(avg_pool2d(cast(input, exact), kernel_size, *options), input.dtype)
    windows = _windows("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    plain = not any(windows.excess) and divisor_override is None
    means = call(
        _avg_pool2d,
        _extended(input, windows, 0),
        kernel=windows.kernel,
        stride=windows.stride,
        padding=windows.padding,
        count_include_pad=count_include_pad if plain else True,
    )
    if plain:
        return means
    elements = math.prod(windows.kernel)
    if divisor_override is not None:
        return mul(means, elements / divisor_override)
    counts = _counts(windows, input.shape[2:], count_include_pad)
    return mul(means, beside(means, (elements / counts).astype(means.dtype)))


def _counts(windows: _Windows, image: tuple[int, ...], with_padding: bool) -> Any:
    """How many elements each window has in the image, or in it and its padding."""
    lengths = []
    for k, step, edge, count, length in zip(
        windows.kernel, windows.stride, windows.padding, windows.size, image, strict=True
    ):
        starts = np.arange(count) * step - edge
        stops = np.minimum(starts + k, length + (edge if with_padding else 0))
        lengths.append(stops - (starts if with_padding else np.maximum(starts, 0)))
    return np.multiply.outer(*lengths)


def avg_pool2d_input_grad(output_grad: Tensor, **geometry: Any) -> Tensor:
    """The gradient of :func:`avg_pool2d`, itself differentiable."""
    return call(_avg_pool2d_input_grad, output_grad, **geometry)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows of nearly equal size that cover the image.

    Args:
        input: (batch, channels, height, width), or without the batch.
        output_size: how many windows there are, one number or (vertical, horizontal); None for as
            many as there are elements.

    Raises:
        ValueError: ``input`` has less than three dimensions.
        RuntimeError: it has more than four, or ``output_size`` is no such pair.
    """
    if input.ndim < 3:
        raise ValueError("adaptive_avg_pool2d: Input dimension should be at least 3")
    sizes = output_size if isinstance(output_size, tuple | list) else (output_size,) * 2
    if len(sizes) != 2 or input.ndim > 4:
        raise RuntimeError(
            "adaptive_avg_pool2d: output_size must be 2 numbers and the input 3D or 4D, not "
            f"{output_size} and {list(input.shape)}"
        )
    image = input.shape[-2:]
    size = tuple(n if s is None else int(s) for s, n in zip(sizes, image, strict=True))
    if any(s < 0 for s in size):
        raise RuntimeError(
            "adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 but "
            f"received {size}"
        )
    if input.numel() == 0 and 0 in image:
        raise RuntimeError(
            "adaptive_avg_pool2d(): Expected input to have non-zero size for non-batch dimensions, "
            f"but input has sizes {list(input.shape)}"
        )
    if input.numel() and all(size) and not (image[0] % size[0] or image[1] % size[1]):
        return avg_pool2d(input, (image[0] // size[0], image[1] // size[1]))
    means = window_means(window_means(input, -1, size[1]), -2, size[0])
    return means if means.numel() else cast(means, input.dtype)


def window_means(input: Tensor, dim: int, count: int) -> Tensor:
    """The means of ``count`` windows that cover ``dim``, as equal as whole numbers allow."""
    dim, length = dim % input.ndim, input.shape[dim]
    starts = np.arange(count) * length // max(count, 1)
    stops = -(-(np.arange(count) + 1) * length // max(count, 1))
    offsets = np.arange(max(stops - starts, default=0))
    places = np.minimum(starts[:, None] + offsets, max(length - 1, 0))
    inside = offsets < (stops - starts)[:, None]
    after = (1,) * (input.ndim - dim - 1)
    picked = pick(input, dim, beside(input, places))
    picked = where(beside(input, inside.reshape(*inside.shape, *after)), picked, 0.0)
    lengths = np.maximum(stops - starts, 1).reshape(-1, *after).astype(input.dtype)
    return div(sum_over(picked, dim + 1), beside(input, lengths))
