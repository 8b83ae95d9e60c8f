"""Cases of linear algebra for the table of operators: name, function, shapes of the inputs.

Vectors are determined up to a sign or a phase: the functions here make of them what does not
depend on that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Entry = tuple[str, Callable[..., Any], tuple[Any, ...]]


def _positive(x: Any) -> Any:
    """A Hermitian, positive definite matrix."""
    return x @ x.mH + x.new_ones(x.shape[-1]).diag()


def _apart(x: Any) -> Any:
    """A matrix whose eigenvalues lie apart, far from singular."""
    return x / 4 + x.new_ones(x.shape[-1]).cumsum(0).diag()


def _projected(vectors: Any) -> Any:
    """Of the first two vectors what their signs do not change."""
    return vectors[..., :2] @ vectors[..., :2].mH


ENTRIES: list[Entry] = [
    ("eigh", lambda m, x: _projected(m.linalg.eigh(x + x.mH)[1]), ((2, 3, 3),)),
    ("eigh upper", lambda m, x: m.linalg.eigh(x + x.mH, UPLO="U")[0], ((3, 3),)),
    ("eigvalsh", lambda m, x: m.linalg.eigvalsh(x + x.mH), ((2, 3, 3),)),
    ("eig", lambda m, x: m.abs(m.linalg.eig(_apart(x))[1]), ((2, 3, 3),)),
    ("eigvals", lambda m, x: m.linalg.eigvals(_apart(x)), ((3, 3),)),
    (
        "svd",
        lambda m, x: (lambda u, s, vh: (u[:, :2] * s[:2]) @ vh[:2])(*m.linalg.svd(x)),
        ((4, 3),),
    ),
    (
        "svd reduced",
        lambda m, x: (lambda u, s, vh: (u * s[..., None, :] ** 2) @ vh)(
            *m.linalg.svd(x, full_matrices=False)
        ),
        ((2, 3, 4),),
    ),
    ("svdvals", lambda m, x: m.linalg.svdvals(x), ((2, 3, 4),)),
    ("old svd", lambda m, x: m.svd(x)[1], ((3, 3),)),
    ("qr deep", lambda m, x: m.linalg.qr(x)[0] * m.linalg.qr(x)[1].sum(), ((4, 3),)),
    ("qr wide", lambda m, x: m.linalg.qr(x)[1], ((2, 2, 4),)),
    ("qr complete", lambda m, x: m.linalg.qr(x, mode="complete")[1], ((2, 3),)),
    ("lu", lambda m, x: m.linalg.lu(x)[1] * 2 + m.linalg.lu(x)[2].sum(), ((2, 3, 3),)),
    ("lu deep", lambda m, x: m.linalg.lu(x)[1], ((4, 2),)),
    ("lu wide", lambda m, x: m.linalg.lu(x)[2], ((2, 4),)),
    (
        "lu_solve",
        lambda m, a, b: m.linalg.lu_solve(*m.linalg.lu_factor(_apart(a)), b),
        ((3, 3), (3, 2)),
    ),
    (
        "lu_solve adjoint",
        lambda m, a, b: m.linalg.lu_solve(*m.linalg.lu_factor(_apart(a)), b, left=False),
        ((3, 3), (2, 3)),
    ),
    ("pinv", lambda m, x: m.linalg.pinv(x), ((2, 4, 3),)),
    ("pinv hermitian", lambda m, x: m.linalg.pinv(x + x.mH, hermitian=True), ((3, 3),)),
    ("lstsq", lambda m, a, b: m.linalg.lstsq(a, b)[0], ((4, 3), (4, 2))),
    (
        "solve_triangular",
        lambda m, a, b: m.linalg.solve_triangular(_apart(a), b, upper=True),
        ((3, 3), (3, 2)),
    ),
    (
        "solve_triangular ones",
        lambda m, a, b: m.linalg.solve_triangular(
            a, b, upper=False, left=False, unitriangular=True
        ),
        ((3, 3), (2, 3)),
    ),
    (
        "cholesky_solve",
        lambda m, a, b: m.cholesky_solve(b, m.linalg.cholesky(_positive(a))),
        ((3, 3), (3, 2)),
    ),
    (
        "cholesky_inverse",
        lambda m, a: m.cholesky_inverse(m.linalg.cholesky(_positive(a), upper=True), upper=True),
        ((3, 3),),
    ),
    ("cholesky upper", lambda m, a: m.linalg.cholesky(_positive(a), upper=True), ((3, 3),)),
    ("slogdet sign", lambda m, x: m.linalg.slogdet(_apart(x))[0] * x.sum(), ((3, 3),)),
    ("matrix_exp", lambda m, x: m.matrix_exp(x * 3), ((2, 3, 3),)),
    (
        "householder_product",
        lambda m, a, t: m.linalg.householder_product(a, t),
        ((4, 3), (2,)),
    ),
    ("matrix_norm 2", lambda m, x: m.linalg.matrix_norm(x, 2, keepdim=True), ((2, 3, 4),)),
    ("matrix_norm nuc", lambda m, x: m.linalg.norm(x, "nuc", dim=(0, 2)), ((3, 2, 4),)),
    ("cond", lambda m, x: m.linalg.cond(x), ((2, 3, 3),)),
    ("tensorinv", lambda m, x: m.linalg.tensorinv(_apart(x).reshape(2, 3, 6)), ((6, 6),)),
    (
        "tensorsolve",
        lambda m, a, b: m.linalg.tensorsolve(_apart(a).reshape(2, 3, 6), b),
        ((6, 6), (2, 3)),
    ),
    ("vander", lambda m, x: m.linalg.vander(x, N=3), ((2, 3),)),
    ("vecdot", lambda m, a, b: m.linalg.vecdot(a, b), ((2, 3), (3,))),
    ("linalg cross", lambda m, a, b: m.linalg.cross(a, b), ((3, 3), (1, 3))),
    ("linalg diagonal", lambda m, x: m.linalg.diagonal(x, offset=1), ((2, 3, 3),)),
]

#: Those that are tried with complex numbers, too.
ALSO_COMPLEX = (
    "eigh|eigvalsh|eigvals|svd reduced|svdvals|qr deep|lu|lu deep|lu_solve adjoint|pinv|"
    "pinv hermitian|cholesky_solve|cholesky upper|slogdet sign|householder_product|matrix_exp|"
    "matrix_norm 2|vecdot"
)
