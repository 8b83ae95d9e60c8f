"""Matrices as products of simpler ones: ``qr``, ``svd``, ``eigh``, ``eig`` and ``lu``.

Leading dimensions are those of a batch. The derivatives are the adjoints of the differentials in
Giles, "An extended collection of matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), and Townsend, "Differentiating the singular value decomposition" (2016);
those of ``qr`` and ``lu`` stand in Roberts and Roberts, "QR and LQ decomposition matrix
backpropagation algorithms for square, wide, and deep matrices" (2020). Vectors are determined up
to a sign (or a phase): so is what a loss may make of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpgrad.ops.linear_algebra.matrices import check_dtype, check_square
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["eig", "eigh", "eigvals", "eigvalsh", "qr", "svd", "svdvals"]


class Eigen(NamedTuple):
    """The results of ``eig`` and ``eigh``."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """The results of ``qr``."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """The results of ``svd``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


# ------------------------------------------------------------------------------ for the formulas


def adjoint_of(xp: Any, x: Any) -> Any:
    """The conjugate transpose of the last two dimensions."""
    turned = xp.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))
    return xp.conj(turned) if x.dtype.kind == "c" else turned


def masked(xp: Any, x: Any, mask: Any) -> Any:
    """``x`` where ``mask``, an array of NumPy, is 1."""
    return xp.multiply(x, xp.constant_beside(x, mask.astype(x.dtype)))


def _row(xp: Any, x: Any) -> Any:
    return xp.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def _column(xp: Any, x: Any) -> Any:
    return xp.reshape(x, (*x.shape, 1))


def _real(xp: Any, x: Any) -> Any:
    return xp.real(x) if x.dtype.kind == "c" else x


def _diagonal_of(xp: Any, x: Any) -> Any:
    return xp.diagonal(x, 0, x.ndim - 2, x.ndim - 1)


def _as_diagonal(xp: Any, x: Any) -> Any:
    shape = (*x.shape, x.shape[-1])
    return xp.diagonal_scatter(x, shape, 0, len(shape) - 2, len(shape) - 1)


def _over_gaps(xp: Any, x: Any, gaps: Any) -> Any:
    """``x / gaps`` off the diagonal; 0 where both are 0, so that equal values only count where a
    vector's gradient does."""
    eye = xp.constant_beside(x, np.eye(x.shape[-1], dtype=bool))
    nothing = xp.logical_or(eye, xp.logical_and(xp.equal(x, 0), xp.equal(gaps, 0)))
    return xp.divide(xp.where(nothing, 0.0, x), xp.where(nothing, 1.0, gaps))


# ------------------------------------------------------------------------------------ eigenvalues


def _eigh_grad(xp: Any, grads: Any, results: Any) -> Any:
    (grad_values, grad_vectors), (values, vectors) = grads, results
    inner = xp.matmul(adjoint_of(xp, vectors), grad_vectors)
    # The vectors stay orthonormal: they can only turn.
    inner = xp.multiply(xp.subtract(inner, adjoint_of(xp, inner)), 0.5)
    gaps = xp.subtract(_row(xp, values), _column(xp, values))
    inside = xp.add(_over_gaps(xp, inner, gaps), _as_diagonal(xp, grad_values))
    return xp.matmul(xp.matmul(vectors, inside), adjoint_of(xp, vectors))


def _eigvalsh_grad(xp: Any, grad: Any, input: Any) -> Any:
    vectors = xp.eigh(input)[1]
    return xp.matmul(xp.multiply(vectors, _row(xp, grad)), adjoint_of(xp, vectors))


_eigh = operator(
    "linalg_eigh",
    lambda xp, input: xp.eigh(input),
    joint=lambda xp, grads, results: (_eigh_grad(xp, grads, results),),
    outputs=2,
    wirtinger=True,
)
#: Of the lower triangle alone; its vectors are computed where the gradient is.
_eigvalsh = operator(
    "linalg_eigvalsh", lambda xp, input: xp.eigh(input)[0], input=_eigvalsh_grad, wirtinger=True
)


def _eig_grad(xp: Any, grads: Any, results: Any, input_dtype: Any) -> Any:
    (grad_values, grad_vectors), (values, vectors) = grads, results
    left = adjoint_of(xp, vectors)
    inner, own = xp.matmul(left, grad_vectors), xp.matmul(left, vectors)
    # The vectors have length 1: what would change that, no gradient asks for.
    inner = xp.subtract(inner, xp.multiply(own, _row(xp, xp.real(_diagonal_of(xp, inner)))))
    gaps = xp.conj(xp.subtract(_row(xp, values), _column(xp, values)))
    inside = xp.add(_over_gaps(xp, inner, gaps), _as_diagonal(xp, grad_values))
    return _of_dtype(xp, xp.solve(left, xp.matmul(inside, left)), input_dtype)


def _eigvals_grad(xp: Any, grad: Any, input: Any) -> Any:
    vectors = xp.eig(input)[1]
    left = adjoint_of(xp, vectors)
    return _of_dtype(xp, xp.solve(left, xp.multiply(_column(xp, grad), left)), input.dtype)


def _of_dtype(xp: Any, grad: Any, dtype: Any) -> Any:
    return grad if dtype.kind == "c" else xp.real(grad)


_eig = operator(
    "linalg_eig",
    lambda xp, input: xp.eig(input),
    joint=lambda xp, grads, results, input_dtype: (_eig_grad(xp, grads, results, input_dtype),),
    outputs=2,
    wirtinger=True,
)
_eigvals = operator(
    "linalg_eigvals", lambda xp, input: xp.eig(input)[0], input=_eigvals_grad, wirtinger=True
)


def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """The eigenvalues (real, ascending) and eigenvectors of symmetric or Hermitian matrices.

    Args:
        A: (..., n, n); only one triangle is read, and the gradient is that of both together.
        UPLO: which one, ``"L"`` or ``"U"``.

    Returns:
        (..., n) and (..., n, n), whose columns are the vectors.

    Raises:
        RuntimeError: they are not square, or ``UPLO`` is another letter.
    """
    values, vectors = call(_eigh, _triangle("eigh", A, UPLO))
    return Eigen(values, vectors)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues that ``eigh`` gives; their gradient exists for equal ones, too."""
    return call(_eigvalsh, _triangle("eigvalsh", A, UPLO))


def _triangle(name: str, A: Tensor, UPLO: str) -> Tensor:
    """Matrices of which LAPACK is to read the lower triangle."""
    check_square(name, A)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(
            f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}: linalg.{name}"
        )
    return A if UPLO.upper() == "L" else A.mH


def eig(A: Tensor) -> Eigen:
    """The eigenvalues and eigenvectors of any square matrices, always complex.

    Returns:
        (..., n) and (..., n, n), whose columns are the vectors, of length 1.

    Raises:
        RuntimeError: they are not square.
    """
    check_square("eig", A)
    values, vectors = call(_eig, A)
    return Eigen(values, vectors)


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues that ``eig`` gives.

    Raises:
        RuntimeError: the matrices are not square.
    """
    check_square("eigvals", A)
    return call(_eigvals, A)


# ------------------------------------------------------------------------------- singular values


def _svd_grad(xp: Any, grads: Any, results: Any, full_matrices: bool) -> Any:
    (gu, gs, gvh), (u, s, vh) = grads, results
    if full_matrices:  # the other vectors have no derivative
        count = s.shape[-1]
        left, right = (Ellipsis, slice(count)), (Ellipsis, slice(count), slice(None))
        gu, u = xp.getitem(gu, left), xp.getitem(u, left)
        gvh, vh = xp.getitem(gvh, right), xp.getitem(vh, right)
    v, gv = adjoint_of(xp, vh), adjoint_of(xp, gvh)
    of_u, of_v = xp.matmul(adjoint_of(xp, u), gu), xp.matmul(vh, gv)
    squares = xp.square(s)
    gaps = xp.subtract(_row(xp, squares), _column(xp, squares))
    by_u, by_v = (_over_gaps(xp, xp.subtract(x, adjoint_of(xp, x)), gaps) for x in (of_u, of_v))
    inside = xp.add(xp.multiply(by_u, _row(xp, s)), xp.multiply(_column(xp, s), by_v))
    diagonal = gs
    if u.dtype.kind == "c":
        phases = xp.divide(xp.imag(_diagonal_of(xp, of_u)), s)
        diagonal = xp.complex(gs, phases)
    inside = xp.add(inside, _as_diagonal(xp, diagonal))
    total = xp.matmul(xp.matmul(u, inside), vh)
    if u.shape[-2] > s.shape[-1]:
        beyond = xp.subtract(gu, xp.matmul(u, of_u))
        total = xp.add(total, xp.matmul(xp.divide(beyond, _row(xp, s)), vh))
    if v.shape[-2] > s.shape[-1]:
        beyond = xp.subtract(gv, xp.matmul(v, of_v))
        total = xp.add(total, xp.matmul(u, adjoint_of(xp, xp.divide(beyond, _row(xp, s)))))
    return total


def _svdvals_grad(xp: Any, grad: Any, input: Any) -> Any:
    u, _, vh = xp.svd(input, False)
    return xp.matmul(xp.multiply(u, _row(xp, grad)), vh)


_svd = operator(
    "linalg_svd",
    lambda xp, input, *, full_matrices: xp.svd(input, full_matrices),
    joint=lambda xp, grads, results, full_matrices: (_svd_grad(xp, grads, results, full_matrices),),
    outputs=3,
    wirtinger=True,
)
_svdvals = operator(
    "linalg_svdvals",
    lambda xp, input: xp.svd(input, False)[1],
    input=_svdvals_grad,
    wirtinger=True,
)


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """``A = U diag(S) Vh`` with orthonormal columns of ``U`` and rows of ``Vh``, ``S`` descending.

    Args:
        A: (..., m, n).
        full_matrices: ``U`` (..., m, m) and ``Vh`` (..., n, n); else only the ``min(m, n)`` vectors
            that belong to ``S``. Only these have a derivative.
        driver: how a GPU computes it; one way is here.

    Raises:
        RuntimeError: they are no matrices.
    """
    check_matrix("svd", A)
    return SVD(*call(_svd, A, full_matrices=full_matrices))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values that ``svd`` gives; their gradient exists for equal ones, too.

    Raises:
        RuntimeError: they are no matrices.
    """
    check_matrix("svdvals", A)
    return call(_svdvals, A)


def check_matrix(name: str, x: Tensor) -> None:
    """Raise unless ``x`` is a batch of matrices.

    Raises:
        RuntimeError: it has fewer dimensions, or another dtype.
    """
    if x.ndim < 2:
        raise RuntimeError(
            f"linalg.{name}: The input tensor A must have at least 2 dimensions, not {x.ndim}"
        )
    check_dtype(name, x)


# ----------------------------------------------------------------------------------------- qr


def _qr_grad(xp: Any, gq: Any, gr: Any, q: Any, r: Any) -> Any:
    rows, columns = q.shape[-2], r.shape[-1]
    if rows >= columns:
        return _deep_qr_grad(xp, gq, gr, q, r)
    # The first columns make Q; the others are R's alone.
    first, rest = (Ellipsis, slice(rows)), (Ellipsis, slice(rows, columns))
    right, g_right = xp.getitem(r, rest), xp.getitem(gr, rest)
    gq = xp.add(gq, xp.matmul(xp.matmul(q, right), adjoint_of(xp, g_right)))
    left = _deep_qr_grad(xp, gq, xp.getitem(gr, first), q, xp.getitem(r, first))
    return xp.concatenate([left, xp.matmul(q, g_right)], left.ndim - 1)


def _deep_qr_grad(xp: Any, gq: Any, gr: Any, q: Any, r: Any) -> Any:
    inner = xp.subtract(xp.matmul(gr, adjoint_of(xp, r)), xp.matmul(adjoint_of(xp, q), gq))
    upper = masked(xp, inner, np.triu(np.ones(inner.shape[-2:]), 1))
    both = xp.add(upper, adjoint_of(xp, upper))
    own = _real(xp, _diagonal_of(xp, inner))
    own = xp.astype(own, inner.dtype)
    total = xp.add(gq, xp.matmul(q, xp.add(both, _as_diagonal(xp, own))))
    return adjoint_of(xp, xp.solve(r, adjoint_of(xp, total)))


def _no_r_grad(xp: Any, grads: Any, mode: str) -> None:
    raise RuntimeError(
        "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. "
        "Please use linalg.qr(A, mode='reduced') if you are going to differentiate through it."
    )


_qr = operator(
    "linalg_qr",
    lambda xp, input: xp.qr(input, "reduced"),
    joint=lambda xp, grads, results: (_qr_grad(xp, *grads, *results),),
    outputs=2,
    wirtinger=True,
)
_qr_r = operator(
    "linalg_qr_r",
    lambda xp, input, *, mode: xp.qr(input, mode)[1],
    joint=_no_r_grad,
)
_qr_complete = operator("linalg_qr_complete", lambda xp, input: xp.qr(input, "complete"))


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """``A = Q R`` with orthonormal columns of ``Q`` and an upper triangle ``R``.

    Args:
        A: (..., m, n); a gradient needs the first ``min(m, n)`` columns to be independent.
        mode: ``"reduced"`` for ``Q`` (..., m, min(m, n)); ``"complete"`` for (..., m, m), without
            a derivative where there are more rows than columns; ``"r"`` for an empty ``Q``.

    Raises:
        RuntimeError: they are no matrices, or another ``mode``.
    """
    check_matrix("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )
    if mode == "r":
        return QR(Tensor(np.empty(0, A.dtype)), call(_qr_r, A, mode="r"))
    if mode == "complete" and A.shape[-2] > A.shape[-1]:
        return QR(*call(_qr_complete, A))
    return QR(*call(_qr, A))
