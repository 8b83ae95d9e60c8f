"""Matrices: inverses, determinants, systems of equations, Cholesky's factor, norms and powers.

All but the norms take batches: leading dimensions are those of the batch. The formulas are those of
PyTorch's documentation and of Giles, "An extended collection of matrix derivative results for
forward and reverse mode algorithmic differentiation" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from mpgrad.dispatch import call, unrecorded
from mpgrad.ops.arithmetic import abs as absolute
from mpgrad.ops.creation import eye
from mpgrad.ops.device_moves import beside
from mpgrad.ops.dimensions import some_dims
from mpgrad.ops.extrema import amax, amin
from mpgrad.ops.linalg import matmul
from mpgrad.ops.norms import norm as norm_of
from mpgrad.ops.promotion import cast, refuse_complex
from mpgrad.ops.reduction import sum as sum_over
from mpgrad.ops.registry import operator
from mpgrad.ops.shape import broadcast_to, clone, squeeze, transpose, unsqueeze
from mpgrad.ops.transcendental import log
from mpgrad.tensor import Tensor

__all__ = [
    "cholesky",
    "det",
    "inv",
    "logdet",
    "matrix_norm",
    "matrix_power",
    "multi_dot",
    "norm",
    "slogdet",
    "solve",
    "vector_norm",
]


class SignAndLogarithm(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def _swapped(xp: Any, x: Any) -> Any:
    """The transpose of the last two dimensions."""
    return xp.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _scaled(xp: Any, factor: Any, x: Any) -> Any:
    """Each matrix of ``x`` times its number of ``factor``."""
    return xp.multiply(xp.reshape(factor, (*factor.shape, 1, 1)), x)


def _solve_grad_left(xp: Any, grad: Any, a: Any, result: Any, a_shape: Any) -> Any:
    right = xp.solve(_swapped(xp, a), grad)
    return xp.sum_to(xp.negative(xp.matmul(right, _swapped(xp, result))), a_shape)


def _cholesky_grad(xp: Any, grad: Any, result: Any, weights: Any) -> Any:
    inverse = xp.inv(result)
    lower = xp.multiply(xp.matmul(_swapped(xp, result), grad), weights)
    both = xp.multiply(xp.add(lower, _swapped(xp, lower)), 0.5)
    return xp.matmul(xp.matmul(_swapped(xp, inverse), both), inverse)


_inv = operator(
    "linalg_inv",
    lambda xp, input: xp.inv(input),
    input=lambda xp, grad, result: xp.negative(
        xp.matmul(xp.matmul(_swapped(xp, result), grad), _swapped(xp, result))
    ),
)
_solve = operator(
    "linalg_solve",
    lambda xp, a, b: xp.solve(a, b),
    a=_solve_grad_left,
    b=lambda xp, grad, a, b_shape: xp.sum_to(xp.solve(_swapped(xp, a), grad), b_shape),
)
_det = operator(
    "linalg_det",
    lambda xp, input: xp.det(input),
    input=lambda xp, grad, input, result: _scaled(
        xp, xp.multiply(grad, result), _swapped(xp, xp.inv(input))
    ),
)
_logabsdet = operator(
    "linalg_slogdet",
    lambda xp, input: xp.logabsdet(input),
    input=lambda xp, grad, input: _scaled(xp, grad, _swapped(xp, xp.inv(input))),
)
#: ``weights``: of the elements in the gradient: 1 below the diagonal, 1/2 on it, 0 above.
_cholesky = operator(
    "linalg_cholesky", lambda xp, input, weights: xp.cholesky(input), input=_cholesky_grad
)


def _check(name: str, x: Tensor) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they have shape "
            f"{list(x.shape)}"
        )
    _check_dtype(name, x)


def _check_dtype(name: str, x: Tensor) -> None:
    if x.dtype.kind not in "fc" or x.dtype == np.float16:
        raise RuntimeError(
            f"linalg.{name}: Expected a tensor of float32, float64 or complex. Got {x.dtype}"
        )


def inv(A: Tensor) -> Tensor:
    """The inverse of each matrix.

    Raises:
        RuntimeError: they are not square, or of another dtype than floats and complex numbers, or
            (as its subclass or ValueError's) one is singular.
    """
    _check("inv", A)
    return call(_inv, A)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """``X`` of ``A X = B``, or of ``X A = B`` where ``left`` is False.

    Args:
        A: (..., n, n).
        B: (..., n, columns), or a vector for each matrix: (n,), or of the shape of ``A`` without
            its last dimension.

    Raises:
        RuntimeError: the shapes or the dtypes do not fit, or a matrix is singular.
    """
    _check("solve", A)
    if A.dtype != B.dtype:
        raise RuntimeError(f"linalg.solve: Expected one dtype, but found {A.dtype} and {B.dtype}")
    if not left:
        return transpose(solve(transpose(A, -2, -1), transpose(B, -2, -1)), -2, -1)
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = unsqueeze(B, -1) if is_vector else B
    if right.ndim < 2 or right.shape[-2] != A.shape[-1]:
        raise RuntimeError(
            f"linalg.solve: Incompatible shapes of A and B for the equation AX = B "
            f"({list(A.shape)} and {list(B.shape)})"
        )
    solution = call(_solve, A, right)
    return squeeze(solution, -1) if is_vector else solution


def det(A: Tensor) -> Tensor:
    """The determinant of each matrix; its gradient is that of a matrix that can be inverted.

    Raises:
        RuntimeError: they are not square.
    """
    _check("det", A)
    return call(_det, A)


def slogdet(A: Tensor) -> SignAndLogarithm:
    """The sign of each determinant and the logarithm of its absolute value.

    Raises:
        RuntimeError: they are not square.
        NotImplementedError: they are complex.
    """
    _check("slogdet", A)
    refuse_complex("linalg.slogdet", A)
    return SignAndLogarithm(unrecorded(lambda xp, x: xp.detsign(x), A), call(_logabsdet, A))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of each determinant: NaN where that is negative.

    Raises:
        RuntimeError: they are not square.
        NotImplementedError: they are complex.
    """
    sign, logarithm = slogdet(input)
    return logarithm + log(sign)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular ``L`` of ``A = L L^T`` (or its transpose, if ``upper``).

    The lower triangle of ``A`` is read, and the gradient is symmetric.

    Raises:
        RuntimeError: they are not square, or not positive definite.
        NotImplementedError: they are complex.
    """
    _check("cholesky", A)
    refuse_complex("linalg.cholesky", A)
    size = A.shape[-1]
    weights = np.tril(np.ones((size, size), A.dtype)) - np.eye(size, dtype=A.dtype) / 2
    factor = call(_cholesky, A, beside(A, weights.astype(A.dtype)))
    return transpose(factor, -2, -1) if upper else factor


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Each matrix times itself, ``n`` times; of its inverse where ``n`` is negative.

    Raises:
        RuntimeError: they are not square.
    """
    _check("matrix_power", A)
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        one = eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return clone(broadcast_to(one, A.shape))
    half = matrix_power(A, n // 2) if n > 1 else None
    if half is None:
        return clone(A)
    square = matmul(half, half)
    return matmul(square, A) if n % 2 else square


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, from left to right; the outer two may be vectors.

    Raises:
        RuntimeError: there are fewer than two, or the shapes do not fit.
    """
    if len(tensors) < 2:
        raise RuntimeError("multi_dot(): expected at least 2 tensors but got " + str(len(tensors)))
    return reduce(matmul, tensors)


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
            column and of a row.
        dim: which dimensions are the rows and the columns.
        keepdim: keep them, with length 1.
        dtype: to convert the elements to first.

    Raises:
        RuntimeError: there are fewer dimensions.
        NotImplementedError: another ``ord``: those need singular values.
    """
    if A.ndim < 2:
        raise RuntimeError(
            f"linalg.matrix_norm: The input must have at least 2 dimensions, not {A.ndim}"
        )
    if ord == "fro":
        return norm_of(A, 2, dim, keepdim, dtype=dtype)
    if ord not in (1, -1, math.inf, -math.inf):
        raise NotImplementedError(f"linalg.matrix_norm: ord={ord!r} is not implemented")
    x = absolute(A if dtype is None else cast(A, dtype))
    summed, chosen = (d % A.ndim for d in (dim if ord in (1, -1) else dim[::-1]))
    result = (amax if ord > 0 else amin)(sum_over(x, summed, True), chosen, True)
    return result if keepdim else squeeze(result, (summed, chosen))


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
