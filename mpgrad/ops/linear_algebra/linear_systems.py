"""Systems of linear equations by factors that are known, least squares, and what tells how far a
matrix is from a singular one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.selection import tril, triu
from mpgrad.ops.calling.promotion import require_numbers
from mpgrad.ops.elementwise.arithmetic import div
from mpgrad.ops.elementwise.comparison import isfinite, isnan
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.linear_algebra.factorizations import (
    adjoint_of,
    check_matrix,
    eigvalsh,
    masked,
    svdvals,
)
from mpgrad.ops.linear_algebra.failing_matrices import inv_ex
from mpgrad.ops.linear_algebra.matrices import check_square, solve_matrices
from mpgrad.ops.linear_algebra.matrix_norms import matrix_norm
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import broadcast_to, reshape, squeeze, unsqueeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "lstsq",
    "matrix_rank",
    "pinv",
    "pinverse",
    "solve_triangular",
    "triangular_solve",
]


class LeastSquares(NamedTuple):
    """The results of ``lstsq``."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class TriangularSolution(NamedTuple):
    """The results of ``triangular_solve``."""

    solution: Tensor
    cloned_coefficient: Tensor


# ----------------------------------------------------------------------------- by known factors


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """``X`` of ``A X = B``, where ``A`` is a triangle.

    Args:
        A: (..., n, n); the other triangle is not read.
        B: (..., n, columns), or (..., rows, n) where ``left`` is False.
        upper: which triangle ``A`` is.
        left: False for ``X A = B``.
        unitriangular: the diagonal counts as ones.

    Raises:
        RuntimeError: the shapes or dtypes do not fit.
    """
    check_square("solve_triangular", A)
    if B.ndim < 2:
        raise RuntimeError(
            "linalg.solve_triangular: The input tensor B must have at least 2 dimensions."
        )
    if A.shape[-1] != B.shape[-2 if left else -1]:
        raise RuntimeError(
            "linalg.solve_triangular: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'} ({list(A.shape)} and {list(B.shape)})"
        )
    triangle = (triu if upper else tril)(A, (1 if upper else -1) if unitriangular else 0)
    if unitriangular:
        triangle = triangle + eye(A.shape[-1], dtype=A.dtype, device=A.device)
    if A.dtype != B.dtype:
        raise RuntimeError(
            f"linalg.solve_triangular: Expected one dtype, but found {A.dtype} and {B.dtype}"
        )
    # Not solve(), for which a B of the shape of A without its last dimension is vectors.
    return solve_matrices(triangle, B) if left else solve_matrices(triangle.mT, B.mT).mT


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """``solve_triangular`` with the arguments in its older order."""
    matrix, is_upper = (A.mT, not upper) if transpose else (A, upper)
    solution = solve_triangular(matrix, b, upper=is_upper, unitriangular=unitriangular)
    batch = solution.shape[:-2]
    return TriangularSolution(solution, broadcast_to(A, (*batch, *A.shape[-2:])).clone())


def _solved(xp: Any, b: Any, factor: Any, upper: bool) -> Any:
    ones = np.ones(factor.shape[-2:])
    triangle = masked(xp, factor, np.triu(ones) if upper else np.tril(ones))
    turned = adjoint_of(xp, triangle)
    first, second = (turned, triangle) if upper else (triangle, turned)
    return xp.solve(second, xp.solve(first, b))


def _solved_grad(xp: Any, grad: Any, factor: Any, result: Any, upper: bool) -> Any:
    """The gradient of the product of both triangles, and of it that of the factor."""
    one = xp.matmul(_solved(xp, grad, factor, upper), adjoint_of(xp, result))
    both = xp.negative(xp.add(one, adjoint_of(xp, one)))
    return xp.matmul(factor, both) if upper else xp.matmul(both, factor)


_cholesky_solve = operator(
    "cholesky_solve",
    lambda xp, b, factor, *, upper: _solved(xp, b, factor, upper),
    b=lambda xp, grad, factor, upper, b_shape: xp.sum_to(_solved(xp, grad, factor, upper), b_shape),
    factor=lambda xp, grad, factor, result, upper, factor_shape: xp.sum_to(
        _solved_grad(xp, grad, factor, result, upper), factor_shape
    ),
    wirtinger=True,
)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """``X`` of ``A X = B`` with the factor ``L`` that ``cholesky`` gave of ``A``.

    Args:
        B: (..., n, columns).
        L: (..., n, n), a lower triangle, or an upper one with ``upper``.
        upper: see ``L``.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if B.ndim < 2 or L.ndim < 2:
        raise RuntimeError(
            f"b should have at least 2 dimensions, but has {B.ndim} dimensions instead"
            if B.ndim < 2
            else f"u should have at least 2 dimensions, but has {L.ndim} dimensions instead"
        )
    return call(_cholesky_solve, B, L, upper=upper)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose Cholesky factor is ``L``.

    Raises:
        RuntimeError: ``L`` is not square.
    """
    check_square("cholesky_inverse", L)
    identity = eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return cholesky_solve(identity, L, upper)


# --------------------------------------------------------------------------------- least squares


def _pinv_grad(xp: Any, grad: Any, input: Any, result: Any) -> Any:
    """The adjoint of Golub and Pereyra's differential, "The differentiation of pseudo-inverses and
    nonlinear least squares problems whose variables separate" (1973)."""
    inverse, turned, back = result, adjoint_of(xp, result), adjoint_of(xp, grad)
    direct = xp.matmul(xp.matmul(turned, grad), turned)
    rows = xp.matmul(xp.matmul(back, inverse), turned)
    beyond_rows = xp.subtract(rows, xp.matmul(xp.matmul(input, inverse), rows))
    columns = xp.matmul(xp.matmul(turned, inverse), back)
    beyond_columns = xp.subtract(columns, xp.matmul(xp.matmul(columns, inverse), input))
    return xp.subtract(xp.add(beyond_rows, beyond_columns), direct)


#: ``cutoff``: singular values up to it, one for each matrix, count as 0.
_pinv = operator(
    "linalg_pinv",
    lambda xp, input, cutoff, *, hermitian: _pseudo_inverse(xp, input, cutoff, hermitian),
    input=_pinv_grad,
    wirtinger=True,
)


def _pseudo_inverse(xp: Any, x: Any, cutoff: Any, hermitian: bool) -> Any:
    if hermitian:
        below = masked(xp, x, np.tril(np.ones(x.shape[-2:]), -1))
        own = masked(xp, x, np.eye(x.shape[-1]))
        own = xp.astype(xp.real(own), x.dtype) if x.dtype.kind == "c" else own
        x = xp.add(xp.add(below, adjoint_of(xp, below)), own)
    u, s, vh = xp.svd(x, False)
    counts = xp.greater(s, xp.reshape(cutoff, (*cutoff.shape, 1)))
    inverse = xp.where(counts, xp.divide(1.0, xp.where(counts, s, 1.0)), 0.0)
    inverse = xp.astype(inverse, s.dtype)
    scaled = xp.multiply(adjoint_of(xp, vh), xp.reshape(inverse, (*s.shape[:-1], 1, s.shape[-1])))
    return xp.matmul(scaled, adjoint_of(xp, u))


def _cutoff(A: Tensor, values: Any, atol: Any, rtol: Any) -> Any:
    """Up to which singular values count as 0, one number for each matrix: a NumPy array."""
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not isinstance(value, Tensor):
            require_numbers("linalg.pinv", **{name: value})
    atol, rtol = (on_host(t._array) if isinstance(t, Tensor) else t for t in (atol, rtol))
    if rtol is None:
        usual = max(A.shape[-2:]) * np.finfo(A.dtype).eps
        rtol = usual if atol is None else np.where(np.asarray(atol) > 0, 0.0, usual)
    largest = values.max(-1, initial=0.0)
    for limit in (atol, rtol):
        if limit is not None and broadcast_shape(np.shape(limit), largest.shape) != largest.shape:
            raise RuntimeError(
                f"linalg.pinv: tolerances of shape {list(np.shape(limit))} for a batch of shape "
                f"{list(largest.shape)}"
            )
    cutoff = np.maximum(0.0 if atol is None else atol, rtol * largest)
    return np.asarray(cutoff, values.dtype)


def _counted(A: Tensor, values: Any, atol: Any, rtol: Any) -> Any:
    """How many of the singular values ``values`` of each matrix do not count as 0."""
    counts = values > _cutoff(A, values, atol, rtol)[..., None]
    return np.asarray(counts.sum(-1), np.int64)


def _values_of(A: Tensor, hermitian: bool = False) -> Any:
    """The singular values as an array of NumPy, in any order."""
    if hermitian:
        return np.abs(on_host(eigvalsh(A.detach())._array))
    return on_host(svdvals(A.detach())._array)


def pinv(
    A: Tensor,
    rcond: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> Tensor:
    """The pseudo-inverse of Moore and Penrose of each matrix.

    Args:
        A: (..., m, n).
        rcond: another name of ``rtol``.
        hermitian: only one triangle of ``A`` is read.
        atol: singular values up to it count as 0 ...
        rtol: ... and those up to it times the largest; by default ``max(m, n)`` times what the
            dtype can tell from 1, or 0 with an ``atol``.

    Returns:
        (..., n, m). The gradient holds where the rank does not change.

    Raises:
        RuntimeError: they are no matrices.
    """
    check_matrix("pinv", A)
    rtol = rcond if rtol is None else rtol
    if A._array.size == 0:
        return reshape(A, (*A.shape[:-2], A.shape[-1], A.shape[-2]))
    values = _values_of(A, hermitian)
    return call(_pinv, A, beside(A, _cutoff(A, values, atol, rtol)), hermitian=hermitian)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """``pinv`` under its older name."""
    return pinv(input, rcond)


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares:
    """``X`` with the least ``norm(A X - B)``; of several the one of the least norm.

    Args:
        A: (..., m, n).
        B: (..., m, columns) or (..., m) with the batch of ``A``.
        rcond: singular values up to it times the largest count as 0.
        driver: LAPACK's; one way is here (``"gelsd"``), and the name decides what is told of
            ``rank`` and ``singular_values``.

    Returns:
        the solution; the squared residuals (empty unless ``m > n > 0`` and the rank is full); the
        rank; the singular values.

    Raises:
        RuntimeError: the shapes do not fit, or an unknown ``driver``.
    """
    check_matrix("lstsq", A)
    if driver not in (None, "gels", "gelsd", "gelss", "gelsy"):
        raise RuntimeError(
            "linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), "
            f"but got {driver}"
        )
    is_vector = B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    right = unsqueeze(B, -1) if is_vector else B
    if right.ndim < 2 or right.shape[-2] != A.shape[-2]:
        raise RuntimeError(
            "linalg.lstsq: input.size(-2) should match other.size(-2), but got "
            f"{list(A.shape)} and {list(B.shape)}"
        )
    solution = matmul(pinv(A, rcond), right)
    rows, columns = A.shape[-2:]
    values = _values_of(A)
    rank = _counted(A, values, None, rcond)
    told, full = driver != "gels", rows > columns and bool(np.all(rank == columns))
    full = full and driver not in (None, "gelsy")
    nothing = beside(A, np.empty(0, values.dtype))
    residuals: Any = nothing
    if full and columns:
        difference = matmul(A, solution) - right
        residuals = (difference * difference.conj()).real.sum(-2)
    is_svd = driver in ("gelsd", "gelss")
    return LeastSquares(
        squeeze(solution, -1) if is_vector else solution,
        residuals,
        beside(A, rank) if told else beside(A, np.empty(0, np.int64)),
        beside(A, values) if is_svd else nothing,
    )


# ------------------------------------------------------------------------------- rank, condition


def matrix_rank(
    A: Tensor,
    tol: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> Tensor:
    """How many singular values of each matrix are not 0; see ``pinv`` for the arguments.

    Raises:
        RuntimeError: they are no matrices.
    """
    check_matrix("matrix_rank", A)
    if tol is not None:
        atol, rtol = tol, 0.0
    values = _values_of(A, hermitian)
    return beside(A, _counted(A, values, atol, rtol))


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number: ``norm(A) * norm(inv(A))``, or of singular values where ``p`` is None,
    2 or -2. That of a singular matrix is infinite.

    Args:
        A: (..., m, n); (..., n, n) for another ``p``.
        p: as ``ord`` of ``matrix_norm``.

    Raises:
        RuntimeError: they are not square where they must be.
    """
    if p is None or p in (2, -2):
        check_matrix("cond", A)
        finite = isfinite(A).all((-2, -1))
        unit = beside(A, np.eye(*A.shape[-2:], dtype=A.dtype))
        values = svdvals(where(finite[..., None, None], A, unit))
        if values.shape[-1] == 0:
            return values.sum(-1)
        first, last = values[..., 0], values[..., -1]
        found = div(last, first) if p == -2 else div(first, last)
        return where(finite, found, math.nan)
    check_square("cond", A)
    if A._array.size == 0:
        return matrix_norm(A, "fro")
    # The inverse of a singular matrix is NaN here.
    found = matrix_norm(A, p) * matrix_norm(inv_ex(A).inverse, p)
    return where(isnan(found), math.inf, found)
