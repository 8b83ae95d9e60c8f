"""Positions of max pooling beside a loop over windows: ties, NaN, padding, every size of number."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.arrays.cpu.cpu_windows import TILES_MAX, output_length

XP = CpuBackend(np.empty)
Pair = tuple[int, int]


def _pooled(
    x: np.ndarray[Any, Any], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first of the largest elements, or the last NaN, of each window."""
    n, channels, *image = x.shape
    size = [output_length(image[k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)]
    values = np.empty((n, channels, *size), x.dtype)
    positions = np.empty(values.shape, np.int64)
    for at in np.ndindex(*values.shape):
        best: Any = None
        for tap in itertools.product(range(kernel[0]), range(kernel[1])):
            i, j = (at[2 + k] * stride[k] - padding[k] + tap[k] * dilation[k] for k in (0, 1))
            if not (0 <= i < image[0] and 0 <= j < image[1]):
                continue
            value = x[at[0], at[1], i, j]
            if best is None or value > best[0] or value != value:
                best = value, i * image[1] + j
        values[at], positions[at] = best
    return values, positions


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "dilation"),
    [
        ((8, 8), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((6, 2 * TILES_MAX), (3, 2), (3, 2), (0, 0), (1, 1)),
        ((6, 2 * TILES_MAX + 2), (3, 2), (3, 2), (0, 0), (1, 1)),
        ((7, 8), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((8, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((5, 51), (2, 3), (1, 2), (1, 1), (1, 1)),
        ((16, 16), (3, 2), (1, 1), (1, 0), (2, 3)),
        ((2, 40_000), (2, 4), (2, 20_000), (1, 2), (1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_nan", [False, True], ids=["numbers", "nan"])
def test_positions(
    image: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, with_nan: bool
) -> None:
    random = np.random.default_rng(3)
    x = random.integers(0, 4, (2, 3, *image)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = -np.inf
    if with_nan:
        x[random.random(x.shape) < 0.1] = np.nan
    values, positions = XP.max_pool2d(
        x, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    expected, places = _pooled(x, kernel, stride, padding, dilation)
    assert values.tobytes() == expected.tobytes()
    assert positions.dtype == np.int64
    np.testing.assert_array_equal(positions, places)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (3, 0, 8, 8)], ids=str)
def test_no_images(shape: tuple[int, ...]) -> None:
    values, positions = XP.max_pool2d(
        np.empty(shape, "f4"), kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1)
    )
    assert values.shape == positions.shape == (*shape[:2], 4, 4)
