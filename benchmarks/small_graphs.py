"""The arrays of the small nodes of ``overhead`` and ``scale``: the same for all contenders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.rounds import Array

ELEMENTS = 8


class DigitsArrays(NamedTuple):
    """A batch of 32 images of 64 pixels, their labels, and the weights of a 64-32-10 network."""

    images: Array
    labels: Array
    leaves: list[Array]


def leaf_arrays(count: int) -> list[Array]:
    """``count`` arrays of 8 numbers."""
    return list(np.random.default_rng(0).standard_normal((count, ELEMENTS), np.float32))


def digits_arrays() -> DigitsArrays:
    """See DigitsArrays; random images."""
    random = np.random.default_rng(0)
    images = random.standard_normal((32, 64), np.float32)
    labels = random.integers(0, 10, 32)
    shapes = ((64, 32), (32,), (32, 10), (10,))
    leaves = [random.standard_normal(shape, np.float32) * np.float32(0.1) for shape in shapes]
    return DigitsArrays(images, labels, leaves)
