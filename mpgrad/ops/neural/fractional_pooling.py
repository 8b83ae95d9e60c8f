"""Pools whose windows lie at random places: ``fractional_max_pool2d`` and ``3d`` (Graham,
"Fractional max-pooling", 2014)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import take_along_axis
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import rand
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.tensors.tensor import Tensor


def _starts(samples: Any, length: int, windows: int, kernel: int) -> Any:
    """Where the windows begin: (..., windows), for each uniform number of ``samples``."""
    if windows == 1:
        return np.full((*samples.shape, 1), length - kernel)
    step = samples.dtype.type(length - kernel) / samples.dtype.type(windows - 1)
    numbers = np.arange(windows, dtype=samples.dtype)
    shifted = ((numbers + samples[..., None]) * step).astype(np.int64)
    starts = shifted - (samples * step).astype(np.int64)[..., None]
    starts[..., -1] = length - kernel
    return starts


def _fractional(
    name: str,
    input: Tensor,
    kernel_size: Any,
    output_size: Any,
    output_ratio: Any,
    return_indices: bool,
    samples: Tensor | None,
    dims: int,
) -> Any:
    kernel = _several(kernel_size, dims)
    if input.ndim not in (dims + 1, dims + 2) or 0 in input.shape[-dims - 1 :]:
        raise RuntimeError(
            f"{name}(): Expected a non-empty {dims + 1}D or {dims + 2}D input, but got "
            f"{list(input.shape)}"
        )
    image = input.shape[-dims:]
    if output_size is None:
        if output_ratio is None:
            raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
        ratios = _several(output_ratio, dims)
        output_size = [int(n * ratio) for n, ratio in zip(image, ratios, strict=True)]
    sizes = _several(output_size, dims)
    for n, k, count in zip(image, kernel, sizes, strict=True):
        if k < 1 or count < 1 or count + k - 1 > n:
            raise RuntimeError(
                f"{name}(): windows of {list(kernel)} do not fit {list(sizes)} times into "
                f"{list(image)}"
            )
    whole = input if input.ndim == dims + 2 else reshape(input, (1, *input.shape))
    batch, channels = whole.shape[:2]
    if samples is None:
        samples = rand((batch, channels, dims), dtype=input.dtype, device=input.device)
    elif input.ndim == dims + 1:
        samples = samples[:1]
    if tuple(samples.shape) != (batch, channels, dims):
        raise RuntimeError(
            f"{name}(): Expect _random_samples to have the shape {[batch, channels, dims]}, but "
            f"got {list(samples.shape)}"
        )
    places = _maxima(on_host(whole._array), on_host(samples._array), kernel, sizes)
    flat = reshape(whole, (batch, channels, math.prod(image)))
    indices = beside(input, places.reshape(batch, channels, math.prod(sizes)))
    shape = (*input.shape[:-dims], *sizes)
    values = reshape(take_along_axis(flat, indices, 2), shape)
    return (values, reshape(indices, shape)) if return_indices else values


def _several(value: Any, dims: int) -> tuple[Any, ...]:
    """One for each dimension.

    Raises:
        RuntimeError: there are more or fewer.
    """
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * dims
    if len(found) != dims:
        raise RuntimeError(f"expected one number or {dims}, but got {value}")
    return found


def _maxima(array: Any, samples: Any, kernel: Any, sizes: Any) -> Any:
    """Where the largest element of each window lies, in the flattened image: the first of equal
    ones, or the last NaN."""
    dims, image = len(kernel), array.shape[2:]
    lead = array.shape[:2]
    places = np.zeros((*lead, *(1,) * (2 * dims)), np.int64)
    for dim, (length, k, count) in enumerate(zip(image, kernel, sizes, strict=True)):
        # PyTorch's samples begin with the last dimension.
        starts = _starts(samples[..., dims - 1 - dim], length, count, k)
        inside = starts[..., None] + np.arange(k)
        shape = [1] * (2 * dims)
        shape[dim], shape[dims + dim] = count, k
        places = places * length + inside.reshape(*lead, *shape)
    size = math.prod(kernel)
    windows = places.reshape(*lead, *sizes, size)
    flat = array.reshape(*lead, math.prod(image))
    flat_places = windows.reshape(*lead, math.prod(sizes) * size)
    values: Any = np.take_along_axis(flat, flat_places, 2).reshape(windows.shape)
    missing = np.isnan(values)
    last_nan = values.shape[-1] - 1 - missing[..., ::-1].argmax(-1)
    best = np.where(missing.any(-1), last_nan, values.argmax(-1))[..., None]
    return np.take_along_axis(windows, best, -1)[..., 0]


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest element of each of ``output_size`` windows whose distances vary at random.

    Args:
        input: (batch, channels, height, width), or without the batch.
        kernel_size: of each window, one number or (height, width).
        output_size: how many windows; or
        output_ratio: their number over the number of pixels, in (0, 1).
        return_indices: also return the places of the elements, in the flattened image.

    Raises:
        ValueError: neither ``output_size`` nor ``output_ratio`` is given.
        RuntimeError: the shapes do not fit.
    """
    return _fractional(
        "fractional_max_pool2d",
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        _random_samples,
        2,
    )


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """``fractional_max_pool2d`` over volumes."""
    return _fractional(
        "fractional_max_pool3d",
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        _random_samples,
        3,
    )
