"""Windows of images as columns, and columns as images again: ``unfold`` and ``fold``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import index_select, narrow
from mpgrad.ops.by_index.scattering import index_add
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.neural.convolution import pair
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import contiguous, reshape, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


def _patch_places(
    size: tuple[int, int], kernel: Any, dilation: Any, padding: Any, stride: Any
) -> tuple[Any, tuple[int, int]]:
    """The places in the flattened, padded image: (elements of a window, windows)."""
    if min(kernel) < 1 or min(dilation) < 1 or min(stride) < 1 or min(padding) < 0:
        raise RuntimeError(
            "kernel_size, dilation and stride should be greater than zero and padding at least "
            f"zero, but got {kernel}, {dilation}, {stride}, {padding}"
        )
    rows, counts, padded = [], [], []
    for n, k, gap, edge, step in zip(size, kernel, dilation, padding, stride, strict=True):
        count = (n + 2 * edge - gap * (k - 1) - 1) // step + 1
        if count < 1:
            raise RuntimeError(
                f"the image {size} with padding {padding} has no window of {kernel}, dilation "
                f"{dilation}"
            )
        rows.append(np.add.outer(np.arange(k) * gap, np.arange(count) * step))
        counts.append(count)
        padded.append(n + 2 * edge)
    vertical, horizontal = rows
    places = vertical[:, None, :, None] * padded[1] + horizontal[None, :, None, :]
    return places.reshape(kernel[0] * kernel[1], counts[0] * counts[1]), (padded[0], padded[1])


def unfold(
    input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """The windows of images as columns (``im2col``).

    Args:
        input: (batch, channels, height, width), or without the batch.
        kernel_size: of a window, one number or (vertical, horizontal); so are the others.
        dilation: distance between the elements of a window.
        padding: zeros around the image.
        stride: step between windows.

    Returns:
        (batch, channels * elements of a window, windows).

    Raises:
        RuntimeError: ``input`` has other dimensions, or no window fits.
    """
    if input.ndim == 3:
        return squeeze(unfold(unsqueeze(input, 0), kernel_size, dilation, padding, stride), 0)
    if input.ndim != 4:
        raise RuntimeError(
            f"unfold: Expected 3D or 4D (batch mode) tensor, but got: {list(input.shape)}"
        )
    kernel, gaps, edges, steps = (pair(x) for x in (kernel_size, dilation, padding, stride))
    n, channels, height, width = input.shape
    places, padded = _patch_places((height, width), kernel, gaps, edges, steps)
    around = pad(input, (edges[1], edges[1], edges[0], edges[0])) if any(edges) else input
    flat = reshape(around, (n, channels, padded[0] * padded[1]))
    columns = index_select(flat, 2, beside(input, places.reshape(-1)))
    return reshape(columns, (n, channels * places.shape[0], places.shape[1]))


def fold(
    input: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Tensor:
    """The sum of windows in their places: the adjoint of ``unfold``.

    Args:
        input: (batch, channels * elements of a window, windows), or without the batch.
        output_size: (height, width) of the images.
        kernel_size: see ``unfold``, as for the others.

    Returns:
        (batch, channels, height, width).

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if input.ndim == 2:
        return squeeze(
            fold(unsqueeze(input, 0), output_size, kernel_size, dilation, padding, stride), 0
        )
    size, kernel, gaps, edges, steps = (
        pair(x) for x in (output_size, kernel_size, dilation, padding, stride)
    )
    places, padded = _patch_places(size, kernel, gaps, edges, steps)
    if input.ndim != 3 or input.shape[1] % len(places) or input.shape[2] != places.shape[1]:
        raise RuntimeError(
            f"fold: Expected 2D or 3D (batch mode) tensor of {len(places)} elements times the "
            f"channels and {places.shape[1]} windows, but got: {list(input.shape)}"
        )
    n, channels = input.shape[0], input.shape[1] // len(places)
    empty = zeros((n, channels, padded[0] * padded[1]), dtype=input.dtype, device=input.device)
    columns = reshape(input, (n, channels, places.size))
    total = index_add(empty, 2, beside(input, places.reshape(-1)), columns)
    image = reshape(total, (n, channels, *padded))
    for dim, (edge, length) in enumerate(zip(edges, size, strict=True), 2):
        image = narrow(image, dim, edge, length) if edge else image
    return contiguous(image)
