"""Norms of matrices, and ``linalg.norm``, which chooses between those and norms of vectors."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.calling.dimensions import one_dim, some_dims
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.linear_algebra.factorizations import svdvals
from mpgrad.ops.linear_algebra.norms import norm as norm_of
from mpgrad.ops.linear_algebra.norms import nuclear_norm
from mpgrad.ops.reductions.extrema import amax, amin
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import movedim, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["matrix_norm", "norm", "vector_norm"]


def vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """``sum(abs(x) ** ord) ** (1 / ord)`` over ``dim``, of all elements if that is None.

    Raises:
        RuntimeError: ``x`` is neither floating nor complex.
    """
    return norm_of(x, ord, dim, keepdim, dtype=dtype)


def matrix_norm(
    A: Tensor,
    ord: Any = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Tensor:
    """A norm of each matrix over the two dimensions ``dim``.

    Args:
        A: at least two dimensions.
        ord: ``"fro"``; 1 and infinity (and their negatives) for the largest (the smallest) sum of a
            column and of a row; 2 (and -2) for the largest (the smallest) singular value, ``"nuc"``
            for their sum.
        dim: which dimensions are the rows and the columns.
        keepdim: keep them, with length 1.
        dtype: to convert the elements to first.

    Raises:
        RuntimeError: there are fewer dimensions, or another ``ord``.
    """
    if A.ndim < 2:
        raise RuntimeError(
            f"linalg.matrix_norm: The input must have at least 2 dimensions, not {A.ndim}"
        )
    if len(dim) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {dim}")
    if ord == "fro":
        return norm_of(A, 2, dim, keepdim, dtype=dtype)
    x = A if dtype is None else cast(A, dtype)
    rows, columns = (one_dim(d, A.ndim) for d in dim)
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got {dim}")
    if x._array.size == 0 and ord in (1, 2, math.inf):
        return sum_over(absolute(x.detach()), (rows, columns), keepdim)
    if ord == "nuc":
        return nuclear_norm(x, (rows, columns), keepdim)
    if ord in (2, -2):
        return _of_singular_values(x, ord, (rows, columns), keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    x = absolute(x)
    summed, chosen = (rows, columns) if ord in (1, -1) else (columns, rows)
    result = (amax if ord > 0 else amin)(sum_over(x, summed, True), chosen, True)
    return result if keepdim else squeeze(result, (summed, chosen))


def _of_singular_values(x: Tensor, ord: Any, dims: tuple[int, int], keepdim: bool) -> Tensor:
    result = (amax if ord == 2 else amin)(svdvals(movedim(x, dims, (-2, -1))), -1)
    if not keepdim:
        return result
    for place in sorted(dims):
        result = unsqueeze(result, place)
    return result


def norm(
    A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The norm of vectors where ``dim`` is one dimension, else of matrices; see both.

    Where ``ord`` is None, it is the square root of the sum of squares over any dimensions.
    """
    dims = some_dims(dim, None, A.ndim)
    if ord is None:
        return norm_of(A, 2, dim, keepdim, dtype=dtype)
    count = A.ndim if dims is None else len(dims)
    if count == 1 and not isinstance(ord, str):
        return vector_norm(A, ord, dim, keepdim, dtype=dtype)
    if count != 2:
        raise RuntimeError(f"linalg.norm: input must be 1-D or 2-D for ord={ord!r}, not {count}-D")
    return matrix_norm(A, ord, (0, 1) if dim is None else tuple(dim), keepdim, dtype=dtype)
