"""Inverses, determinants and factors of matrices on NumPy, by LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Matrices:
    """Functions of the last two dimensions: a part of the namespace of ``backends.cpu``."""

    def inv(self, x: Array) -> Array:
        return np.linalg.inv(x)

    def solve(self, a: Array, b: Array) -> Array:
        return np.linalg.solve(a, b)

    def cholesky(self, x: Array) -> Array:
        return np.linalg.cholesky(x)

    def det(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x))

    def logabsdet(self, x: Array) -> Array:
        return np.asarray(np.linalg.slogdet(x)[1])

    def detsign(self, x: Array) -> Array:
        return np.asarray(np.linalg.slogdet(x)[0])
