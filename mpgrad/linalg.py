"""``mg.linalg``: PyTorch's names for functions of matrices."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.errors import LinAlgError
from mpgrad.ops.calling.out_argument import publish as _publish
from mpgrad.ops.linear_algebra.factorizations import eig, eigh, eigvals, eigvalsh, qr, svd, svdvals
from mpgrad.ops.linear_algebra.failing_matrices import cholesky_ex, inv_ex, solve_ex
from mpgrad.ops.linear_algebra.linear_systems import (
    cond,
    lstsq,
    matrix_rank,
    pinv,
    solve_triangular,
)
from mpgrad.ops.linear_algebra.lu import lu, lu_factor, lu_factor_ex, lu_solve
from mpgrad.ops.linear_algebra.matrices import (
    cholesky,
    det,
    inv,
    matrix_power,
    multi_dot,
    slogdet,
    solve,
)
from mpgrad.ops.linear_algebra.matrix_functions import (
    cross,
    diagonal,
    householder_product,
    matrix_exp,
    tensorinv,
    tensorsolve,
    vander,
    vecdot,
)
from mpgrad.ops.linear_algebra.matrix_norms import matrix_norm, norm, vector_norm
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.linear_algebra.packed_factors import ldl_factor, ldl_factor_ex, ldl_solve

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

_publish(globals(), __all__, __all__)

__getattr__ = _missing_from(__name__)
