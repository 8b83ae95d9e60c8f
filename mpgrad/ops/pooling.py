"""Two-dimensional pooling: the largest element or the mean of each window."""

from __future__ import annotations

from typing import Any

from mpgrad.backends.cpu_windows import output_length
from mpgrad.dispatch import call
from mpgrad.ops.convolution import Pair, pair
from mpgrad.ops.registry import operator
from mpgrad.tensor import Tensor

_max_pool2d = operator(
    "max_pool2d",
    lambda xp, input, *, kernel, stride, padding, dilation: xp.max_pool2d(
        input, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    ),
    input=lambda xp, grad, results, input_shape, kernel, stride, padding, dilation: (
        xp.max_pool2d_input_grad(
            grad,
            results[1],
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
    *,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the first one wins a tie and gets the gradient.

    Args:
        input: (batch, channels, height, width).
        kernel_size: of a window, one number or (vertical, horizontal).
        stride: step between windows; by default ``kernel_size``.
        padding: around the image, at most half a window; never chosen.
        dilation: distance between the elements of a window.
        return_indices: also return the positions in the flattened image.

    Raises:
        RuntimeError: ``input`` is not 4-d, or a window does not fit.
    """
    kernel, around, spread = pair(kernel_size), pair(padding), pair(dilation)
    steps = kernel if stride is None else pair(stride)
    _check("max_pool2d", input, kernel, steps, around, spread)
    values, indices = call(
        _max_pool2d, input, kernel=kernel, stride=steps, padding=around, dilation=spread
    )
    return (values, indices) if return_indices else values


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
    *,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window.

    Args:
        input: (batch, channels, height, width).
        kernel_size: of a window, one number or (vertical, horizontal).
        stride: step between windows; by default ``kernel_size``.
        padding: zeros around the image, at most half a window.
        count_include_pad: padding counts as elements.

    Raises:
        RuntimeError: ``input`` is not 4-d, or a window does not fit.
    """
    kernel, around = pair(kernel_size), pair(padding)
    steps = kernel if stride is None else pair(stride)
    _check("avg_pool2d", input, kernel, steps, around, (1, 1))
    return call(
        _avg_pool2d,
        input,
        kernel=kernel,
        stride=steps,
        padding=around,
        count_include_pad=count_include_pad,
    )


def avg_pool2d_input_grad(output_grad: Tensor, **geometry: Any) -> Tensor:
    """The gradient of :func:`avg_pool2d`, itself differentiable."""
    return call(_avg_pool2d_input_grad, output_grad, **geometry)


def adaptive_avg_pool2d(input: Tensor, output_size: int | Pair) -> Tensor:
    """Average pooling to ``output_size``, which must divide the image's size.

    Raises:
        RuntimeError: it does not.
    """
    size = pair(output_size)
    if input.ndim != 4 or input.shape[2] % size[0] or input.shape[3] % size[1]:
        raise RuntimeError(
            f"adaptive_avg_pool2d: output_size {size} must divide the image of a 4D input, got "
            f"{list(input.shape)}; use avg_pool2d"
        )
    return avg_pool2d(input, (input.shape[2] // size[0], input.shape[3] // size[1]))


def _check(
    name: str, input: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    if input.ndim != 4:
        raise RuntimeError(f"{name}: Expected 4D input, but got size: {list(input.shape)}")
    for k in (0, 1):
        if padding[k] * 2 > dilation[k] * (kernel[k] - 1) + 1:
            raise RuntimeError(
                f"{name}: pad should be at most half of effective kernel size, but got "
                f"pad={padding[k]}, kernel_size={kernel[k]} and dilation={dilation[k]}"
            )
        if output_length(input.shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) < 1:
            raise RuntimeError(
                f"{name}: Output size is too small: input {list(input.shape)}, kernel {kernel}, "
                f"stride {stride}, padding {padding}"
            )
