"""NumPy's equivalents of the CUDA kernels of ``backends.cuda_kernels``, by their names.

They get what the kernels get, and write to the outputs that they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu import cpu_windows
from mpgrad.arrays.cpu.cpu_backend import CpuBackend

Array = np.ndarray[Any, Any]

_cpu = CpuBackend(np.empty)


def _complex_sign(x: Array, out: Array) -> None:
    np.sign(x, out=out)


def _max_pool(images: Array, *rest: Any) -> None:
    *sizes, values, positions = rest
    _, _, _, _, *geometry = sizes
    kernel, stride, padding, dilation = _pairs(geometry)
    values[...], positions[...] = cpu_windows.max_pool2d(
        _cpu, images, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )


def _max_pool_grad(grads: Array, positions: Array, *rest: Any) -> None:
    out = rest[-1]
    out[...] = cpu_windows.max_pool2d_input_grad(_cpu, grads, positions, input_shape=out.shape)


def _avg_pool(images: Array, *rest: Any) -> None:
    *sizes, count_include_pad, out = rest
    kernel, stride, padding = _pairs(sizes[4:])
    out[...] = cpu_windows.avg_pool2d(
        _cpu,
        images,
        kernel=kernel,
        stride=stride,
        padding=padding,
        count_include_pad=count_include_pad,
    )


def _avg_pool_grad(shares: Array, *rest: Any) -> None:
    *sizes, out = rest
    kernel, stride, padding = _pairs(sizes[4:])
    padded = cpu_windows.padded_zeros(out.shape, padding, out.dtype)
    for _, _, view in cpu_windows.each_tap(padded, kernel, stride, (1, 1), shares.shape[2:]):
        view += shares
    out[...] = cpu_windows.without_padding(padded, out.shape, padding)


def _columns_to_image(columns: Array, *rest: Any) -> None:
    *sizes, out = rest
    size = (sizes[2], sizes[3])
    kernel, stride, padding, dilation = _pairs(sizes[4:])
    taps = columns.reshape(*out.shape[:2], *kernel, *size)
    padded = cpu_windows.padded_zeros(out.shape, padding, out.dtype)
    for i, j, view in cpu_windows.each_tap(padded, kernel, stride, dilation, size):
        view += taps[:, :, i, j]
    out[...] = cpu_windows.without_padding(padded, out.shape, padding)


def _add_runs(
    places: Array, order: Array, values: Array, count: int, width: int, out: Array
) -> None:
    if (places[1:] < places[:-1]).any() or places[0] < 0:
        raise ValueError("the places are not sorted")
    np.add.at(out.reshape(-1, width), places, values.reshape(count, width)[order])


def _add_lines(
    values: Array, indices: Array, length: int, size: int, inner: int, out: Array
) -> None:
    lines, source = out.reshape(-1, size, inner), values.reshape(-1, length, inner)
    wanted = indices.reshape(-1, length, inner)
    before, after = np.arange(lines.shape[0])[:, None], np.arange(inner)[None, :]
    for j in range(length):
        np.add.at(lines, (before, wanted[:, j], after), source[:, j])


def _pairs(numbers: Any) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


KERNELS: dict[str, Callable[..., None]] = {
    "mpgrad_complex_sign": _complex_sign,
    "mpgrad_max_pool": _max_pool,
    "mpgrad_max_pool_grad": _max_pool_grad,
    "mpgrad_avg_pool": _avg_pool,
    "mpgrad_avg_pool_grad": _avg_pool_grad,
    "mpgrad_columns_to_image": _columns_to_image,
    "mpgrad_add_runs": _add_runs,
    "mpgrad_add_lines": _add_lines,
}
