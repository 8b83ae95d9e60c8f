"""Functions of matrices that are made of products and systems of equations, and older names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import diagonal as diagonal_of
from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.by_index.selection import tril
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.elementwise.arithmetic import pow as power
from mpgrad.ops.elementwise.complex_numbers import conj
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.linear_algebra.factorizations import QR, check_matrix
from mpgrad.ops.linear_algebra.factorizations import qr as reduced_qr
from mpgrad.ops.linear_algebra.factorizations import svd as svd_of
from mpgrad.ops.linear_algebra.matrices import check_square, inv, solve
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.linear_algebra.pairwise_products import cross as cross_of
from mpgrad.ops.new_tensors.creation import arange, eye
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import randn
from mpgrad.ops.reductions.reduction import mean
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import broadcast_to, clone, permute, reshape, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "cross",
    "diagonal",
    "householder_product",
    "matrix_exp",
    "pca_lowrank",
    "qr",
    "svd",
    "svd_lowrank",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
]

#: The coefficients of the diagonal Pade approximant of degree 13, and up to which 1-norm it is
#: exact in double precision (Higham, "The scaling and squaring method for the matrix exponential
#: revisited", 2005).
_PADE = (
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
)
_PADE_LIMIT = 5.371920351148152


class Factors(NamedTuple):
    """The results of the older ``svd``: ``A = U diag(S) V^H``."""

    U: Tensor
    S: Tensor
    V: Tensor


def matrix_exp(A: Tensor) -> Tensor:
    """``I + A + A^2 / 2! + ...`` of each matrix.

    Raises:
        RuntimeError: they are not square.
    """
    if A.dtype == np.float16:
        return cast(matrix_exp(cast(A, np.float32)), np.float16)
    check_square("matrix_exp", A)
    sizes = np.abs(on_host(A._array)).sum(-2).max(-1, initial=0.0)[..., None, None]
    finite = np.isfinite(sizes)
    if not finite.all():
        isolated = matrix_exp(where(beside(A, finite), A, 0))
        return where(beside(A, finite), isolated, mul(A, float("nan")))
    # Each matrix is halved as often as it needs.
    halvings = np.ceil(np.log2(np.maximum(sizes / _PADE_LIMIT, 1)))
    identity = eye(A.shape[-1], dtype=A.dtype, device=A.device)
    x = mul(A, beside(A, np.asarray(0.5**halvings, A.dtype)))
    squared = matmul(x, x)
    odd, even, term = mul(identity, _PADE[1]), mul(identity, _PADE[0]), identity
    for at in range(2, len(_PADE), 2):
        term = matmul(term, squared)
        even, odd = add(even, mul(term, _PADE[at])), add(odd, mul(term, _PADE[at + 1]))
    odd = matmul(x, odd)
    result = solve(even - odd, even + odd)
    for done in range(int(halvings.max(initial=0))):
        squares, again = matmul(result, result), halvings > done
        result = squares if again.all() else where(beside(A, again), squares, result)
    return result


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of the reflections ``I - tau v v^H``.

    Args:
        A: (..., m, n) with ``m >= n``; below its diagonal lie the vectors ``v``, whose element on
            it is 1 and above it 0.
        tau: (..., k), one number for each reflection, ``k <= n``.

    Returns:
        (..., m, n).

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_matrix("householder_product", A)
    rows, columns = A.shape[-2:]
    if rows < columns or tau.ndim != A.ndim - 1 or tau.shape[-1] > columns:
        raise RuntimeError(
            "linalg.householder_product: input.shape[-2] must be greater than or equal to "
            "input.shape[-1], which must be greater than or equal to tau.shape[-1], but got "
            f"{list(A.shape)} and {list(tau.shape)}"
        )
    vectors = tril(A, -1) + beside(A, np.eye(rows, columns, dtype=A.dtype))
    product: Tensor = broadcast_to(beside(A, np.eye(rows, columns, dtype=A.dtype)), A.shape)
    for at in reversed(range(tau.shape[-1])):
        vector = narrow(vectors, -1, at, 1)
        scale = unsqueeze(narrow(tau, -1, at, 1), -1)
        product = product - scale * matmul(vector, matmul(vector.mH, product))
    return product if tau.shape[-1] else clone(product)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """``mg.diagonal`` of the last two dimensions.

    Raises:
        RuntimeError: both dimensions are the same.
    """
    return diagonal_of(A, offset, dim1, dim2)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of length 3 along ``dim``; other dimensions broadcast.

    Raises:
        RuntimeError: a vector has another length, or one input has fewer dimensions.
    """
    return cross_of(input, other, dim)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """The powers 0 to ``N - 1`` of each element as a last dimension; ``N`` is as long as ``x``.

    Raises:
        RuntimeError: ``x`` is 0-d and ``N`` None, or ``N`` is less than 2.
    """
    if x.ndim == 0 and N is None:
        raise RuntimeError("linalg.vander: x has no dimension that could tell N")
    count = x.shape[-1] if N is None else N
    if count <= 1 and N is not None:
        raise RuntimeError(f"N must be greater than 1, but got {N}")
    x = x if x.ndim else unsqueeze(x, 0)
    return power(unsqueeze(x, -1), arange(count, device=x.device))


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of ``conj(x) * y`` along ``dim``.

    Raises:
        RuntimeError: the dtypes differ, or the shapes do not broadcast.
    """
    if x.dtype != y.dtype:
        raise RuntimeError(f"linalg.vecdot: Expected one dtype, but got {x.dtype} and {y.dtype}")
    return sum_over(mul(conj(x), y), dim)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of ``A`` as a map to its first ``ind`` dimensions from the others.

    Raises:
        RuntimeError: these and those do not have as many elements.
    """
    if ind <= 0:
        raise RuntimeError("Expected a strictly positive integer for 'ind' in tensorinv")
    first, rest = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    size = math.prod(first)
    if size != math.prod(rest):
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {math.prod(rest)} != {size}"
        )
    return reshape(inv(reshape(A, (size, size))), (*rest, *first))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """``X`` with ``tensordot(A, X, X.ndim) == B``.

    Args:
        A: (*shape of B, *shape of X).
        B: any shape.
        dims: dimensions of ``A`` that are moved to its end first.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if dims is not None:
        last = [d % A.ndim for d in dims]
        A = permute(A, *(d for d in range(A.ndim) if d not in last), *last)
    unknown = tuple(A.shape[B.ndim :])
    size = math.prod(unknown)
    if size != B._array.size:
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
            f"prod(self.shape[:other.ndim]), but got {size} != {B._array.size}"
        )
    return reshape(solve(reshape(A, (size, size)), reshape(B, -1)), unknown)


# ------------------------------------------------------------------------------- older names


def qr(input: Tensor, some: bool = True) -> QR:
    """``linalg.qr`` under its older name: reduced, or complete unless ``some``.

    Raises:
        RuntimeError: they are no matrices.
    """
    return reduced_qr(input, "reduced" if some else "complete")


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Factors:
    """``linalg.svd`` under its older name, with ``V`` in place of ``Vh``.

    Args:
        input: (..., m, n).
        some: the vectors that belong to singular values only.
        compute_uv: False for zeros in place of the vectors.

    Raises:
        RuntimeError: they are no matrices.
    """
    u, s, vh = svd_of(input, not some)
    if not compute_uv:
        rows, columns = input.shape[-2:]
        left, right = (
            beside(input, np.zeros((*input.shape[:-2], n, n), input.dtype)) for n in (rows, columns)
        )
        return Factors(left, s, right)
    return Factors(u, s, vh.mH)


def svd_lowrank(A: Tensor, q: int = 6, niter: int = 2, M: Tensor | None = None) -> Factors:
    """About the ``q`` largest singular values of ``A - M`` and their vectors.

    Random directions are mapped by the matrix and its adjoint ``niter`` times (Halko, Martinsson
    and Tropp, "Finding structure with randomness", 2011, algorithms 4.4 and 5.1).

    Args:
        A: (..., m, n).
        q: the number of values; a few more than needed.
        niter: the number of iterations; more iterations are more accurate.
        M: subtracted from ``A``, with its shape.

    Raises:
        RuntimeError: they are no matrices.
    """
    check_matrix("svd_lowrank", A)
    x = A if M is None else A - M
    wide = x.shape[-2] < x.shape[-1]
    x = x.mH if wide else x
    start = cast(randn(x.shape[-1], q, device=x.device), x.dtype)
    basis = reduced_qr(matmul(x, start)).Q
    for _ in range(niter):
        basis = reduced_qr(matmul(x.mH, basis)).Q
        basis = reduced_qr(matmul(x, basis)).Q
    u, s, vh = svd_of(matmul(basis.mH, x), False)
    left, right = matmul(basis, u), vh.mH
    return Factors(right, s, left) if wide else Factors(left, s, right)


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> Factors:
    """``svd_lowrank`` of the rows of ``A``, minus their mean where ``center`` is set.

    Raises:
        ValueError: ``q`` is larger than a side of the matrix, or ``niter`` negative.
        RuntimeError: they are no matrices.
    """
    check_matrix("pca_lowrank", A)
    rows, columns = A.shape[-2:]
    count = min(6, rows, columns) if q is None else q
    if not 0 <= count <= min(rows, columns):
        raise ValueError(
            f"q(={count}) must be non-negative integer and not greater than min(m, n)="
            f"{min(rows, columns)}"
        )
    if niter < 0:
        raise ValueError(f"niter(={niter}) must be non-negative integer")
    centered: Any = A - mean(A, -2, keepdim=True) if center else A
    return svd_lowrank(centered, count, niter)
