"""Convolution and pooling on a GPU: columns of windows with cuBLAS, and mpgrad's kernels.

The same functions as ``arrays.cpu.cpu_windows``, with the same shapes and the same sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.arrays.cpu.cpu_windows import output_length

if TYPE_CHECKING:
    from mpgrad.arrays.cuda.cuda_backend import CudaBackend

Pair = tuple[int, int]


def conv2d(
    xp: CudaBackend,
    x: Any,
    weight: Any,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Any:
    """Cross-correlate ``x`` with ``weight`` of shape (out channels, in / groups, kernel)."""
    n, out_channels = x.shape[0], weight.shape[0]
    windows = _windows(xp, x, weight.shape[2:], stride, padding, dilation)
    height, width = windows.shape[-2:]
    columns = windows.reshape(n, groups, _per_group(weight.shape), height * width)
    filters = weight.reshape(groups, out_channels // groups, _per_group(weight.shape))
    return xp.matmul(filters, columns).reshape(n, out_channels, height, width)


def conv2d_input_grad(
    xp: CudaBackend,
    grad: Any,
    weight: Any,
    *,
    input_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Any:
    """The gradient of ``conv2d`` for its input, of shape ``input_shape``."""
    n, out_channels, height, width = grad.shape
    filters = weight.reshape(groups, out_channels // groups, _per_group(weight.shape))
    rows = grad.reshape(n, groups, out_channels // groups, height * width)
    columns = xp.matmul(filters.transpose(0, 2, 1), rows)
    sizes = (*input_shape[2:], height, width, *weight.shape[2:], *stride, *padding, *dilation)
    out = xp.empty(input_shape, grad.dtype)
    xp.kernels["mpgrad_columns_to_image"](columns, *sizes, out)
    return out


def conv2d_weight_grad(
    xp: CudaBackend,
    x: Any,
    grad: Any,
    *,
    weight_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Any:
    """The gradient of ``conv2d`` for its weight, of shape ``weight_shape``."""
    n, out_channels, height, width = grad.shape
    windows = _windows(xp, x, weight_shape[2:], stride, padding, dilation)
    grouped = windows.reshape(n, groups, weight_shape[1], *windows.shape[2:])
    columns = grouped.transpose(1, 0, 5, 6, 2, 3, 4).reshape(
        groups, height * width * n, _per_group(weight_shape)
    )
    by_image = grad.reshape(n, groups, out_channels // groups, height * width)
    rows = by_image.transpose(1, 2, 0, 3).reshape(
        groups, out_channels // groups, height * width * n
    )
    return xp.matmul(rows, columns).reshape(weight_shape)


def max_pool2d(
    xp: CudaBackend, x: Any, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Any, Any]:
    """The largest element of each window, and its position in the flattened image."""
    size = _size(x.shape, kernel, stride, padding, dilation)
    values = xp.empty((*x.shape[:2], *size), x.dtype)
    positions = xp.empty(values.shape, "int64")
    sizes = (*x.shape[2:], *size, *kernel, *stride, *padding, *dilation)
    xp.kernels["mpgrad_max_pool"](xp.ascontiguousarray(x), *sizes, values, positions)
    return values, positions


def max_pool2d_input_grad(
    xp: CudaBackend,
    grad: Any,
    positions: Any,
    *,
    input_shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Any:
    """The gradient of ``max_pool2d`` for its input, of shape ``input_shape``."""
    out = xp.empty(input_shape, grad.dtype)
    sizes = (*input_shape[2:], *grad.shape[2:], *kernel, *stride, *padding, *dilation)
    grad, positions = (xp.ascontiguousarray(each) for each in (grad, positions))
    xp.kernels["mpgrad_max_pool_grad"](grad, positions, *sizes, out)
    return out


def avg_pool2d(
    xp: CudaBackend, x: Any, *, kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool
) -> Any:
    """The mean of each window; padding counts as zeros, or not at all."""
    size = _size(x.shape, kernel, stride, padding)
    out = xp.empty((*x.shape[:2], *size), x.dtype)
    sizes = (*x.shape[2:], *size, *kernel, *stride, *padding)
    xp.kernels["mpgrad_avg_pool"](xp.ascontiguousarray(x), *sizes, count_include_pad, out)
    return out


def avg_pool2d_input_grad(
    xp: CudaBackend,
    grad: Any,
    *,
    input_shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
) -> Any:
    """The gradient of ``avg_pool2d`` for its input, of shape ``input_shape``."""
    if count_include_pad:
        shares = xp.divide(grad, kernel[0] * kernel[1])
    else:
        image = xp.arrays.ones((1, 1, *input_shape[2:]), grad.dtype)
        # The mean over whole windows of 1 inside the image and 0 around it.
        inside = avg_pool2d(
            xp, image, kernel=kernel, stride=stride, padding=padding, count_include_pad=True
        )
        counts = xp.rint(xp.multiply(inside, kernel[0] * kernel[1]))
        shares = xp.divide(grad, counts)
    out = xp.empty(input_shape, grad.dtype)
    sizes = (*input_shape[2:], *grad.shape[2:], *kernel, *stride, *padding)
    xp.kernels["mpgrad_avg_pool_grad"](shares, *sizes, out)
    return out


# ---------------------------------------------------------------------- windows


def _per_group(weight_shape: tuple[int, ...]) -> int:
    """Elements of a filter. Used where -1 would do, because there may be no images."""
    _, channels, height, width = weight_shape
    return channels * height * width


def _size(
    shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)
) -> Pair:
    height, width = (
        output_length(shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    return height, width


def _windows(
    xp: CudaBackend,
    x: Any,
    kernel: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Any:
    """A view of shape (batch, channels, *kernel, out height, out width)."""
    size = _size(x.shape, (kernel[0], kernel[1]), stride, padding, dilation)
    if padding != (0, 0):
        (top, left), (n, c, h, w) = padding, x.shape
        padded = xp.zeros((n, c, h + 2 * top, w + 2 * left), x.dtype)
        padded[:, :, top : top + h, left : left + w] = x
        x = padded
    sn, sc, sh, sw = x.strides
    return xp.arrays.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:2], *kernel, *size),
        (sn, sc, sh * dilation[0], sw * dilation[1], sh * stride[0], sw * stride[1]),
    )
