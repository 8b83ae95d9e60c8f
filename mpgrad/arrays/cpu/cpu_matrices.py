"""Inverses, determinants and factors of matrices on NumPy, by LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu import cofactors, special_functions
from mpgrad.arrays.cpu import fourier_transforms as transforms

Array = np.ndarray[Any, Any]


class Matrices:
    """Linear maps, and functions of the last two dimensions: a part of ``cpu_backend``."""

    gcd, lcm, signbit = np.gcd, np.lcm, np.signbit

    fourier, real_fourier = transforms.fourier, transforms.real_fourier
    fourier_of_real = transforms.fourier_of_real

    def copysign(self, a: Array, b: Array) -> Array:
        return np.asarray(np.copysign(a, b))

    def nextafter(self, a: Array, b: Array) -> Array:
        return np.asarray(np.nextafter(a, b))

    def frexp(self, x: Array) -> tuple[Array, Array]:
        mantissa, exponent = np.frexp(x)
        return np.asarray(mantissa), np.asarray(exponent)

    def left_shift(self, a: Array, b: Array) -> Array:
        return np.asarray(np.left_shift(a, b))

    def right_shift(self, a: Array, b: Array) -> Array:
        return np.asarray(np.right_shift(a, b))

    def special(self, name: str, *operands: Any) -> Array:
        """A function of ``arrays.cpu.special_functions``."""
        special = special_functions.scipy_special()
        return special_functions.evaluated(np, special, name, operands)

    def inv(self, x: Array) -> Array:
        return np.linalg.inv(x)

    def solve(self, a: Array, b: Array) -> Array:
        return np.linalg.solve(a, b)

    def cholesky(self, x: Array) -> Array:
        return positive_factor(x)

    def det(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x))

    def cofactors(self, x: Array) -> Array:
        return np.asarray(cofactors.cofactors(np, x))

    def cofactors_slope(self, x: Array, grad: Array) -> Array:
        return np.asarray(cofactors.cofactors_slope(np, x, grad))

    def logabsdet(self, x: Array) -> Array:
        return np.asarray(np.linalg.slogdet(x)[1])

    def detsign(self, x: Array) -> Array:
        return np.asarray(np.linalg.slogdet(x)[0])

    def eigh(self, x: Array) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors; the lower triangle is read."""
        _refuse_infinite(x)
        values, vectors = np.linalg.eigh(x)
        return values, np.ascontiguousarray(vectors)

    def eig(self, x: Array) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors, both complex."""
        _refuse_infinite(x)
        values, vectors = np.linalg.eig(x)
        dtype = np.result_type(x.dtype, np.complex64)
        return values.astype(dtype), np.ascontiguousarray(vectors, dtype)

    def svd(self, x: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
        _refuse_infinite(x)
        u, s, vh = np.linalg.svd(x, full_matrices)
        return np.ascontiguousarray(u), s, np.ascontiguousarray(vh)

    def qr(self, x: Array, mode: str) -> tuple[Array, Array]:
        """``mode`` "r" gives an empty first factor."""
        if mode == "r":
            return np.empty(0, x.dtype), np.ascontiguousarray(np.linalg.qr(x, "r"))
        q, r = np.linalg.qr(x, "complete" if mode == "complete" else "reduced")
        return np.ascontiguousarray(q), np.ascontiguousarray(r)

    def eliminated(self, x: Array) -> Array:
        """Both triangles of ``L U`` of square matrices in one, without row exchanges."""
        return eliminated(self, x)


def positive_factor(x: Array) -> Array:
    """The lower triangular factor of Cholesky.

    Raises:
        LinAlgError: a matrix is not positive definite. One whose pivot is NaN is not; NumPy's BLAS
            would go on with it.
    """
    factor = np.linalg.cholesky(x)
    if np.isnan(np.diagonal(factor, axis1=-2, axis2=-1)).any():
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return factor


def _refuse_infinite(x: Array) -> None:
    """Raise rather than give ``x`` to an iteration of LAPACK's that would never end.

    Raises:
        LinAlgError: ``x`` holds NaN or infinity.
    """
    if not np.isfinite(x).all():
        raise np.linalg.LinAlgError("the input matrix contains non-finite values (NaN or inf)")


def eliminated(xp: Any, x: Any) -> Any:
    """Gaussian elimination, column by column, on any array library."""
    work = x.copy()
    for step in range(x.shape[-1] - 1):
        divisor = work[..., step, step]
        safe = xp.where(xp.equal(divisor, 0), xp.ones_like(divisor), divisor)
        work[..., step + 1 :, step] /= safe[..., None]
        rows = work[..., step + 1 :, step, None] * work[..., step, None, step + 1 :]
        work[..., step + 1 :, step + 1 :] -= rows
    return work
