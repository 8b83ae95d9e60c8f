"""Factors of matrices as LAPACK packs them: ``geqrf``, ``ormqr`` and ``ldl_factor``."""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.elementwise.complex_numbers import adjoint
from mpgrad.ops.linear_algebra.factorizations import check_matrix
from mpgrad.ops.linear_algebra.lu import lu_factor, lu_factor_ex
from mpgrad.ops.linear_algebra.lu import lu_solve as solve_with_factors
from mpgrad.ops.linear_algebra.matrices import check_square
from mpgrad.ops.linear_algebra.matrix_functions import householder_product
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import cat
from mpgrad.recording.tensors.tensor import Tensor


class Reflections(NamedTuple):
    """The result of ``geqrf``."""

    a: Tensor
    tau: Tensor


class LDLFactor(NamedTuple):
    """The result of ``ldl_factor``."""

    LD: Tensor
    pivots: Tensor


class LDLFactorEx(NamedTuple):
    """The result of ``ldl_factor_ex``."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


def geqrf(input: Tensor) -> Reflections:
    """QR factors as LAPACK packs them, without a derivative; ``mg.linalg.qr`` has one.

    Args:
        input: (..., m, n).

    Returns:
        (..., m, n), with ``R`` on and above the diagonal and the vectors of the reflections below
        it; and (..., min(m, n)), their factors.

    Raises:
        RuntimeError: these are no matrices.
    """
    check_matrix("geqrf", input)
    packed, tau = np.linalg.qr(on_host(input._array), mode="raw")
    factors = np.ascontiguousarray(np.swapaxes(packed, -1, -2))
    return Reflections(beside(input, factors), beside(input, np.ascontiguousarray(tau)))


def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """``Q other``, where ``Q`` (m, m) is the product of the reflections that ``geqrf`` gave.

    Args:
        input: (..., m, k), the vectors of the reflections.
        tau: (..., k), their factors.
        other: (..., m, n), or (..., n, m) if not ``left``.
        left: False for ``other Q``.
        transpose: the conjugate transpose of ``Q`` in its place.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    size = other.shape[-2 if left else -1] if other.ndim > 1 else -1
    if input.ndim < 2 or input.shape[-2] != size or tau.shape[-1] > input.shape[-1]:
        raise RuntimeError(
            "ormqr: other.shape[-2] (of left=False: other.shape[-1]) must be equal to "
            f"input.shape[-2], but got {list(other.shape)} and {list(input.shape)}"
        )
    rows, columns = input.shape[-2], min(input.shape[-1], tau.shape[-1])
    input = narrow(input, -1, 0, columns)
    if columns < rows:
        more = zeros((*input.shape[:-1], rows - columns), dtype=input.dtype, device=input.device)
        input = cat([input, more], -1)
    product = householder_product(input, tau)
    product = adjoint(product) if transpose else product
    return matmul(product, other) if left else matmul(other, product)


def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """``mg.linalg.lu_factor``; with ``get_infos`` also where ``U`` has a 0 on its diagonal.

    Raises:
        RuntimeError: these are no matrices, or one is singular and ``get_infos`` is not set.
    """
    return lu_factor_ex(input, pivot=pivot) if get_infos else lu_factor(input, pivot=pivot)


def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """``mg.linalg.lu_solve(LU_data, LU_pivots, b)``."""
    return solve_with_factors(LU_data, LU_pivots, b)


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:
    """``A = L D L^T`` (with ``hermitian`` ``L D L^H``) as LAPACK packs it, without a derivative.

    Args:
        A: (..., n, n), symmetric or Hermitian; the lower triangle is read.
        hermitian: whether complex matrices are Hermitian.

    Returns:
        (..., n, n), both factors; and (..., n) int32, the rows that were exchanged.

    Raises:
        RuntimeError: they are not square, or one is singular.
        ImportError: SciPy is not installed.
    """
    found = ldl_factor_ex(A, hermitian=hermitian, check_errors=True)
    return LDLFactor(found.LD, found.pivots)


def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLFactorEx:
    """``ldl_factor`` that reports where ``D`` is 0 (counted from 1; else 0)."""
    check_square("ldl_factor", A)
    array = on_host(A._array)
    factor = _lapack("trf", array, hermitian)
    batch, size = array.shape[:-2], array.shape[-1]
    matrices = array.reshape(math.prod(batch), size, size)
    found = [factor(matrix, lower=1) if size else (matrix, [], 0) for matrix in matrices]
    # SciPy counts rows from 0, and marks blocks of two rows by the complement.
    info = np.array([status for _, _, status in found], np.int32).reshape(batch)
    if check_errors and np.any(info):
        raise RuntimeError(f"linalg.ldl_factor_ex: D[{info.max()},{info.max()}] is zero")
    factors = np.array([matrix for matrix, _, _ in found], array.dtype).reshape(array.shape)
    pivots = np.array([rows for _, rows, _ in found], np.int32).reshape(*batch, size)
    return LDLFactorEx(beside(A, np.tril(factors)), beside(A, pivots), beside(A, info))


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """``X`` of ``A X = B`` with the factors of ``A`` that ``ldl_factor`` gave; no derivative.

    Args:
        LD: (..., n, n).
        pivots: (..., n).
        B: (..., n, columns).
        hermitian: as given to ``ldl_factor``.

    Raises:
        RuntimeError: the shapes or dtypes do not fit, or a pivot is not a row of ``LD``.
        ImportError: SciPy is not installed.
    """
    check_square("ldl_solve", LD)
    if pivots.dtype.kind not in "iu":
        raise RuntimeError(f"linalg.ldl_solve: Expected pivots to be integers. Got {pivots.dtype}")
    if LD.dtype != B.dtype:
        raise RuntimeError(
            "linalg.ldl_solve: Expected LD and B to have the same dtype, but found "
            f"{LD.dtype} and {B.dtype}"
        )
    if B.ndim < 2 or B.shape[-2] != LD.shape[-1] or pivots.shape != LD.shape[:-1]:
        raise RuntimeError(
            f"linalg.ldl_solve: {list(LD.shape)}, pivots {list(pivots.shape)} and B "
            f"{list(B.shape)} do not fit"
        )
    factors, rows, right = (on_host(x._array) for x in (LD, pivots, B))
    if np.any((rows == 0) | (np.abs(rows) > LD.shape[-1])):  # LAPACK would write anywhere
        raise RuntimeError(f"linalg.ldl_solve: pivots must be from 1 to {LD.shape[-1]} in size")
    solve = _lapack("trs", factors, hermitian)
    batch = np.broadcast_shapes(factors.shape[:-2], right.shape[:-2])
    size, columns = right.shape[-2:]
    found = np.empty((*batch, size, columns), right.dtype)
    factors = np.broadcast_to(factors, (*batch, size, size))
    rows = np.broadcast_to(rows, (*batch, size))
    right = np.broadcast_to(right, found.shape)
    for at in np.ndindex(batch) if found.size else ():
        found[at] = solve(factors[at], rows[at], right[at], lower=1)[0]
    return beside(B, found)


def _lapack(step: str, array: Any, hermitian: bool) -> Any:
    """LAPACK's function for symmetric matrices, or Hermitian ones."""
    try:
        lapack = importlib.import_module("scipy.linalg.lapack")
    except ImportError as error:
        raise ImportError(
            "this function needs SciPy, which is not installed: pip install 'mpgrad[scipy]'"
        ) from error
    kind = "he" if hermitian and array.dtype.kind == "c" else "sy"
    return lapack.get_lapack_funcs(f"{kind}{step}", (array,))
