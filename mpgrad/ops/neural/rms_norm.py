"""Normalisation by the root mean square, and by neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, div, mul, rsqrt, square
from mpgrad.ops.elementwise.arithmetic import pow as power
from mpgrad.ops.neural.pooling import avg_pool2d
from mpgrad.ops.neural.volumes import avg_pool3d
from mpgrad.ops.reductions.reduction import mean
from mpgrad.ops.shapes.shape import reshape, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``input / sqrt(mean(input ** 2) + eps) * weight`` over the last dimensions
    (Zhang and Sennrich, "Root mean square layer normalization", 2019).

    Args:
        input: (..., *normalized_shape).
        normalized_shape: the lengths of the last dimensions.
        weight: of that shape, or None.
        eps: by default the dtype's distance from 1 to the next number.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    size = tuple(normalized_shape)
    if not size or tuple(input.shape[input.ndim - len(size) :]) != size:
        raise RuntimeError(
            f"Given normalized_shape={list(size)}, expected input with shape [*, "
            f"{', '.join(map(str, size))}], but got input of size {list(input.shape)}"
        )
    if weight is not None and tuple(weight.shape) != size:
        raise RuntimeError(
            f"Expected weight to be of same shape as normalized_shape, but got {list(weight.shape)}"
        )
    # Squares of halves overflow soon.
    wide = cast(input, np.float32) if input.dtype == np.float16 else input
    least = float(np.finfo(wide.dtype).eps) if eps is None else eps
    mean_square = mean(square(wide), tuple(range(-len(size), 0)), keepdim=True)
    normal = cast(mul(wide, rsqrt(add(mean_square, least))), input.dtype)
    return normal if weight is None else mul(normal, weight)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """``input`` over a power of the mean square of ``size`` neighbouring channels
    (Krizhevsky, Sutskever and Hinton, "ImageNet classification", 2012).

    Args:
        input: (batch, channels, ...), at least three dimensions.
        size: how many channels.
        alpha: weight of the mean square.
        beta: the power.
        k: added to the mean square.

    Raises:
        ValueError: ``input`` has fewer dimensions.
    """
    if input.ndim < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)"
        )
    if input._array.size == 0:
        return input
    squares = unsqueeze(square(input), 1)
    before, after = size // 2, (size - 1) // 2
    if input.ndim == 3:
        padded = pad(squares, (0, 0, before, after))
        means = squeeze(avg_pool2d(padded, (size, 1), stride=1), 1)
    else:
        n, channels, height = input.shape[:3]
        flat = reshape(squares, (n, 1, channels, height, -1))
        padded = pad(flat, (0, 0, 0, 0, before, after))
        means = reshape(squeeze(avg_pool3d(padded, (size, 1, 1), stride=1), 1), input.shape)
    return div(input, power(add(mul(means, alpha), k), beta))
