"""Functions of matrices that report which of them failed, in place of an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.cpu_matrices import positive_factor
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.errors import LinAlgError
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.linear_algebra.matrices import cholesky, inv, solve
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["cholesky_ex", "inv_ex", "solve_ex"]


def _with_info(
    compute: Callable[[Tensor], Tensor],
    A: Tensor,
    check_errors: bool,
    fails: Callable[[Any], bool],
) -> tuple[Tensor, Tensor]:
    """The results and, for each matrix, 0 or the size of its first leading part that ``fails``.

    Where that is not 0 the result is NaN.
    """
    try:
        return compute(A), beside(A, np.zeros(A.shape[:-2], np.int32))
    except LinAlgError:
        if check_errors:
            raise
    matrices, size = on_host(A._array), A.shape[-1]
    info = np.zeros(A.shape[:-2], np.int32)
    for at in np.ndindex(info.shape):
        sizes = range(1, size + 1)
        info[at] = next((n for n in sizes if fails(matrices[at][:n, :n])), 0)
    failed = beside(A, (info > 0)[..., None, None])
    result = compute(where(failed, eye(size, dtype=A.dtype, device=A.device), A))
    if result.ndim < A.ndim:  # a vector for each matrix
        failed = beside(A, (info > 0)[..., None])
    return where(failed, math.nan, result), beside(A, info)


def _is_not_positive(matrix: Any) -> bool:
    """Whether a matrix of NumPy is not positive definite."""
    try:
        positive_factor(matrix)
    except np.linalg.LinAlgError:
        return True
    return False


def _is_singular(matrix: Any) -> bool:
    """Whether the last row of a matrix of NumPy depends on those before."""
    return bool(np.linalg.matrix_rank(matrix) < len(matrix))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """``(inverse, info)``: ``info`` is 0; of a singular matrix it is not, and the inverse is NaN.

    Raises:
        RuntimeError: as ``inv``; for singular matrices if ``check_errors`` is set.
    """
    return InverseAndInfo(*_with_info(inv, A, check_errors, _is_singular))


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """``(L, info)``: ``info`` is 0; of a matrix that is not positive definite it is the size of its
    first leading minor that is not, and ``L`` is NaN.

    Raises:
        RuntimeError: as ``cholesky``; for those matrices if ``check_errors`` is set.
    """

    def compute(matrices: Tensor) -> Tensor:
        return cholesky(matrices, upper=upper)

    return FactorAndInfo(*_with_info(compute, A, check_errors, _is_not_positive))


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """``(result, info)``: ``info`` is 0; of a singular matrix it is not, and the result is NaN.

    Raises:
        RuntimeError: as ``solve``; for singular matrices if ``check_errors`` is set.
    """

    def compute(matrices: Tensor) -> Tensor:
        return solve(matrices, B, left=left)

    return ResultAndInfo(*_with_info(compute, A, check_errors, _is_singular))


class InverseAndInfo(NamedTuple):
    """The results of ``inv_ex``."""

    inverse: Tensor
    info: Tensor


class FactorAndInfo(NamedTuple):
    """The results of ``cholesky_ex``."""

    L: Tensor
    info: Tensor


class ResultAndInfo(NamedTuple):
    """The results of ``solve_ex``."""

    result: Tensor
    info: Tensor
