"""``mg.linalg``: PyTorch's names for what is done with matrices."""

from __future__ import annotations

# Functions hand out Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.missing_names import missing_from as _missing_from
from mpgrad.ops.arrangements import cross
from mpgrad.ops.linalg import matmul
from mpgrad.ops.matrices import (
    cholesky,
    det,
    inv,
    matrix_norm,
    matrix_power,
    multi_dot,
    norm,
    slogdet,
    solve,
    vector_norm,
)
from mpgrad.ops.out_argument import publish as _publish

__all__ = [
    "cholesky",
    "cross",
    "det",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "multi_dot",
    "norm",
    "slogdet",
    "solve",
    "vector_norm",
]

_publish(globals(), __all__, __all__)

__getattr__ = _missing_from(__name__)
