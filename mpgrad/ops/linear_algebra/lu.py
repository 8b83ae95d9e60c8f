"""LU: matrices as products of a permutation, a lower and an upper triangle."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import narrow, take_along_axis
from mpgrad.ops.by_index.selection import tril, triu
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.linear_algebra.factorizations import adjoint_of, check_matrix, masked
from mpgrad.ops.linear_algebra.linear_systems import solve_triangular
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import broadcast_to, cat
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["lu", "lu_factor", "lu_factor_ex", "lu_solve", "lu_unpack"]


class PLU(NamedTuple):
    """The results of ``lu`` and ``lu_unpack``."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """The results of ``lu_factor``."""

    LU: Tensor
    pivots: Tensor


class LUFactorEx(NamedTuple):
    """The results of ``lu_factor_ex``."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


def _elimination_grad(xp: Any, grad: Any, result: Any) -> Any:
    """``L^-H (tril(L^H gL, -1) + triu(gU U^H)) U^-H``."""
    ones = np.ones(result.shape[-2:])
    below, from_diagonal = np.tril(ones, -1), np.triu(ones)
    identity = xp.constant_beside(result, np.eye(len(ones), dtype=result.dtype))
    lower = xp.add(masked(xp, result, below), identity)
    upper = masked(xp, result, from_diagonal)
    left = xp.matmul(adjoint_of(xp, lower), masked(xp, grad, below))
    right = xp.matmul(masked(xp, grad, from_diagonal), adjoint_of(xp, upper))
    inside = xp.add(masked(xp, left, below), masked(xp, right, from_diagonal))
    by_left = xp.solve(adjoint_of(xp, lower), inside)
    return adjoint_of(xp, xp.solve(upper, adjoint_of(xp, by_left)))


#: Both triangles of square matrices whose rows are in order already, in one matrix.
_lu = operator(
    "linalg_lu", lambda xp, input: xp.eliminated(input), input=_elimination_grad, wirtinger=True
)


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """Both triangles of ``A = P L U`` in one matrix, and the rows that were exchanged.

    Args:
        A: (..., m, n).
        pivot: exchange rows, so that the largest element is divided by.

    Returns:
        (..., m, n), whose lower triangle is that of ``L`` without its ones; and int32
        (..., min(m, n)): row ``i`` changed places with row ``pivots[i]``, counted from 1.

    Raises:
        RuntimeError: they are no matrices, or a matrix is singular.
    """
    factors, pivots, info = lu_factor_ex(A, pivot=pivot)
    if np.any(on_host(info._array)):
        raise RuntimeError(
            "linalg.lu_factor: U is zero at a diagonal element, and using it on lu_solve would "
            "result in a division by zero"
        )
    return LUFactor(factors, pivots)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """``lu_factor`` that reports where ``U`` is 0 on its diagonal (counted from 1; else 0).

    Raises:
        RuntimeError: they are no matrices, or one is singular and ``check_errors`` is set.
    """
    check_matrix("lu_factor", A)
    rows, columns = A.shape[-2:]
    count = min(rows, columns)
    # Which rows are exchanged is decided on the host, as no gradient depends on it.
    pivots = beside(A, _pivots_of(on_host(A._array), pivot))
    ordered = _permuted(A, pivots)
    core = call(_lu, narrow(narrow(ordered, -2, 0, count), -1, 0, count))
    if columns > count:
        lower = tril(core, -1) + eye(count, dtype=A.dtype, device=A.device)
        right = narrow(ordered, -1, count, columns - count)
        rest = solve_triangular(lower, right, upper=False, unitriangular=True)
        core = cat([core, rest], -1)
    elif rows > count:
        below = narrow(ordered, -2, count, rows - count)
        core = cat([core, solve_triangular(triu(core), below, upper=True, left=False)], -2)
    zero = on_host(core._array).diagonal(0, -2, -1) == 0
    info = np.zeros(zero.shape[:-1], np.int32)
    if count:
        info = np.where(zero.any(-1), zero.argmax(-1) + 1, info).astype(np.int32)
    if check_errors and np.any(info):
        raise RuntimeError(f"linalg.lu_factor_ex: U[{info.max()},{info.max()}] is zero")
    return LUFactorEx(core, pivots, beside(A, info))


def _pivots_of(matrices: Any, pivot: bool) -> Any:
    """For each column the row, counted from 1, that changes places with the one of its number."""
    batch, (rows, columns) = matrices.shape[:-2], matrices.shape[-2:]
    count = min(rows, columns)
    work = matrices.reshape(math.prod(batch), rows, columns).copy()
    found = np.tile(np.arange(1, count + 1, dtype=np.int32), (len(work), 1))
    each = np.arange(len(work))
    for step in range(count if pivot else 0):
        column = work[:, step:, step]
        # As LAPACK: of complex numbers the sum of both parts' sizes.
        best = (np.abs(column.real) + np.abs(column.imag)).argmax(1) + step
        found[:, step] = best + 1
        work[each, step], work[each, best] = work[each, best], work[each, step].copy()
        divisor = work[:, step, step]
        safe = np.where(divisor == 0, 1, divisor)
        factors = work[:, step + 1 :, step] / safe[:, None]
        work[:, step + 1 :, step:] -= factors[:, :, None] * work[:, None, step, step:]
    return found.reshape(*batch, count)


def _order_of(pivots: Any, rows: int) -> Any:
    """The row that comes to each place after the exchanges ``pivots``.

    Raises:
        RuntimeError: a pivot is no row.
    """
    if pivots.ndim == 0 or ((pivots < 1) | (pivots > rows)).any():
        raise RuntimeError(f"pivots must be vectors of numbers between 1 and {rows}")
    *batch, count = pivots.shape
    order = np.tile(np.arange(rows), (math.prod(batch), 1))
    each = np.arange(len(order))
    for step, other in enumerate(pivots.reshape(len(order), count).T):
        place = other - 1
        order[each, step], order[each, place] = order[each, place], order[each, step].copy()
    return order.reshape(*batch, rows)


def _permuted(A: Tensor, pivots: Tensor, *, back: bool = False) -> Tensor:
    """The rows of ``A`` after the exchanges ``pivots``, or before them (``back``)."""
    order = _order_of(on_host(pivots._array), A.shape[-2])
    if back:
        order = np.argsort(order, -1)
    batch = np.broadcast_shapes(order.shape[:-1], A.shape[:-2])
    places = np.broadcast_to(order[..., None], (*batch, *A.shape[-2:]))
    expanded = broadcast_to(A, (*batch, *A.shape[-2:]))
    return take_along_axis(expanded, beside(A, np.ascontiguousarray(places)), len(batch))


def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> PLU:
    """The three factors from the result of ``lu_factor``; unrequested ones are empty.

    Raises:
        RuntimeError: they are no matrices, or the pivots are not of int32 or do not fit.
    """
    check_matrix("lu_unpack", LU_data)
    rows, columns = LU_data.shape[-2:]
    count = min(rows, columns)
    if unpack_pivots:
        _check_pivots("lu_unpack", LU_data, LU_pivots)
    nothing = beside(LU_data, np.empty(0, LU_data.dtype))
    permutation, lower, upper = nothing, nothing, nothing
    if unpack_pivots:
        order = _order_of(on_host(LU_pivots._array), rows)
        identity = np.eye(rows, dtype=LU_data.dtype)
        permutation = beside(LU_data, np.swapaxes(identity[order], -1, -2).copy())
    if unpack_data:
        square = narrow(LU_data, -1, 0, count) if columns > count else LU_data
        ones = np.eye(rows, count, dtype=LU_data.dtype)
        lower = add(tril(square, -1), beside(LU_data, ones))
        upper = triu(narrow(LU_data, -2, 0, count) if rows > count else LU_data)
    return PLU(permutation, lower, upper)


def _check_pivots(name: str, LU: Tensor, pivots: Tensor) -> None:
    if pivots.dtype != np.int32:
        raise RuntimeError(f"{name}: int32 is expected for pivots, but got {pivots.dtype}")
    wanted = (*LU.shape[:-2], min(LU.shape[-2:]))
    if tuple(pivots.shape) != wanted:
        raise RuntimeError(
            f"{name}: pivots of shape {list(wanted)} expected, not {list(pivots.shape)}"
        )


def lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """``A = P L U``: a permutation, a lower triangle with ones on its diagonal, an upper one.

    Raises:
        RuntimeError: they are no matrices.
    """
    factors, pivots, _ = lu_factor_ex(A, pivot=pivot)
    permutation, lower, upper = lu_unpack(factors, pivots, unpack_pivots=pivot)
    return PLU(permutation, lower, upper)


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """``X`` of ``A X = B`` with the factors of ``A`` that ``lu_factor`` gave.

    Args:
        LU: (..., n, n).
        pivots: (..., n).
        B: (..., n, columns).
        left: False for ``X A = B``.
        adjoint: with the conjugate transpose of ``A``.

    Raises:
        RuntimeError: the shapes do not fit, or the pivots are not of int32.
    """
    if LU.ndim < 2 or LU.shape[-1] != LU.shape[-2]:
        raise RuntimeError(
            f"linalg.lu_solve: A must be batches of square matrices, not {list(LU.shape)}"
        )
    _check_pivots("linalg.lu_solve", LU, pivots)
    if B.ndim < 2:
        raise RuntimeError("linalg.lu_solve: The input tensor B must have at least 2 dimensions.")
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    lower, upper = tril(LU, -1), triu(LU)
    if not adjoint:
        inner = solve_triangular(lower, _permuted(B, pivots), upper=False, unitriangular=True)
        return solve_triangular(upper, inner, upper=True)
    inner = solve_triangular(upper.mH, B, upper=False)
    solved = solve_triangular(lower.mH, inner, upper=True, unitriangular=True)
    return _permuted(solved, pivots, back=True)
