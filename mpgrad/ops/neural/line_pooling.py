"""Pooling along a line, made of that of images."""

from __future__ import annotations

from typing import Any

from mpgrad.ops.calling.dimensions import is_given
from mpgrad.ops.neural.line_convolution import one
from mpgrad.ops.neural.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from mpgrad.ops.shapes.shape import squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


def _as_row(name: str, input: Tensor) -> Tensor:
    if input.ndim not in (2, 3):
        raise RuntimeError(f"{name}: Expected 2D or 3D input, but got size: {list(input.shape)}")
    return unsqueeze(input, -2)


def _stride(stride: Any, kernel_size: Any) -> tuple[int, int]:
    given = is_given(stride)
    return 1, one(stride if given else kernel_size)


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """:func:`max_pool2d` along (batch, channels, length), or without the batch.

    Raises:
        RuntimeError: ``input`` has other dimensions, or a window does not fit.
    """
    pooled = max_pool2d(
        _as_row("max_pool1d", input),
        (1, one(kernel_size)),
        _stride(stride, kernel_size),
        (0, one(padding)),
        (1, one(dilation)),
        ceil_mode,
        return_indices,
    )
    return tuple(squeeze(x, -2) for x in pooled) if return_indices else squeeze(pooled, -2)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """:func:`avg_pool2d` along (batch, channels, length), or without the batch.

    Raises:
        RuntimeError: ``input`` has other dimensions, or a window does not fit.
    """
    pooled = avg_pool2d(
        _as_row("avg_pool1d", input),
        (1, one(kernel_size)),
        _stride(stride, kernel_size),
        (0, one(padding)),
        ceil_mode,
        count_include_pad,
    )
    return squeeze(pooled, -2)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """:func:`adaptive_avg_pool2d` along (batch, channels, length), or without the batch.

    Raises:
        RuntimeError: ``input`` has other dimensions.
    """
    row = _as_row("adaptive_avg_pool1d", input)
    return squeeze(adaptive_avg_pool2d(row, (1, one(output_size))), -2)
