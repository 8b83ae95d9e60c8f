"""Matrices: inverses, determinants, systems of equations, Cholesky's factor and powers.

All take batches: leading dimensions are those of the batch. The formulas are those of
PyTorch's documentation and of Giles, "An extended collection of matrix derivative results for
forward and reverse mode algorithmic differentiation" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from mpgrad.ops.by_index.overwriting import cleared
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.elementwise.comparison import eq
from mpgrad.ops.elementwise.complex_numbers import adjoint
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import log
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.shapes.shape import clone, squeeze, transpose, unsqueeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "cholesky",
    "det",
    "inv",
    "inverse",
    "logdet",
    "matrix_power",
    "multi_dot",
    "slogdet",
    "solve",
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


def _adjoint(xp: Any, x: Any) -> Any:
    """The conjugate transpose of the last two dimensions."""
    return xp.conj(_swapped(xp, x)) if x.dtype.kind == "c" else _swapped(xp, x)


def _cholesky_grad(xp: Any, grad: Any, result: Any) -> Any:
    inverse, ones = xp.inv(result), np.ones(result.shape[-2:])
    inner = xp.matmul(_adjoint(xp, result), grad)
    lower, below = (
        xp.multiply(inner, xp.constant_beside(inner, (np.tril(ones, k) / 2).astype(inner.dtype)))
        for k in (0, -1)
    )
    both = xp.add(below, _adjoint(xp, lower))
    return xp.matmul(xp.matmul(_adjoint(xp, inverse), both), inverse)


def _slogdet_grad(xp: Any, grads: Any, results: Any, input: Any) -> Any:
    """Of complex matrices the sign is a phase: it turns with the imaginary part of the trace."""
    grad_sign, grad = grads
    if input.dtype.kind == "c":
        turn = xp.imag(xp.multiply(xp.conj(grad_sign), results[0]))
        grad = xp.complex(grad, xp.negative(turn))
    return _scaled(xp, grad, _adjoint(xp, xp.inv(input)))


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
    input=lambda xp, grad, input: _scaled(xp, grad, xp.cofactors(input)),
)
_cofactors = operator(
    "linalg_cofactors",
    lambda xp, input: xp.cofactors(input),
    input=lambda xp, grad, input: xp.cofactors_slope(input, grad),
)
_slogdet = operator(
    "linalg_slogdet",
    lambda xp, input: (xp.detsign(input), xp.logabsdet(input)),
    joint=lambda xp, grads, results, input: (_slogdet_grad(xp, grads, results, input),),
    outputs=2,
    wirtinger=True,
)
_cholesky = operator(
    "linalg_cholesky",
    lambda xp, input: xp.cholesky(input),
    input=_cholesky_grad,
    wirtinger=True,
)


def check_square(name: str, x: Tensor) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they have shape "
            f"{list(x.shape)}"
        )
    check_dtype(name, x)


def check_dtype(name: str, x: Tensor) -> None:
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
    check_square("inv", A)
    return call(_inv, A)


inverse = inv


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """``X`` of ``A X = B``, or of ``X A = B`` where ``left`` is False.

    Args:
        A: (..., n, n).
        B: (..., n, columns), or a vector for each matrix: (n,), or of the shape of ``A`` without
            its last dimension.

    Raises:
        RuntimeError: the shapes or the dtypes do not fit, or a matrix is singular.
    """
    check_square("solve", A)
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
    solution = solve_matrices(A, right)
    return squeeze(solution, -1) if is_vector else solution


def solve_matrices(A: Tensor, B: Tensor) -> Tensor:
    """``X`` of ``A X = B`` for matrices, whose batches broadcast."""
    return call(_solve, A, B)


def det(A: Tensor) -> Tensor:
    """The determinant of each matrix; its third derivative is that of one that can be inverted.

    Raises:
        RuntimeError: they are not square.
    """
    check_square("det", A)
    return call(_det, A)


def cofactors(A: Tensor) -> Tensor:
    """The derivative of ``det``, for formulas."""
    return call(_cofactors, A)


def cofactors_slope(A: Tensor, grad: Tensor) -> Tensor:
    """The transposed derivative of ``cofactors``, for formulas; ``A`` can be inverted."""
    turned = inv(A).mT
    trace = (grad * turned).sum((-1, -2), keepdim=True)
    return det(A)[..., None, None] * (trace * turned - turned @ grad.mT @ turned)


def slogdet(A: Tensor) -> SignAndLogarithm:
    """The sign of each determinant and the logarithm of its absolute value.

    Raises:
        RuntimeError: they are not square.
    """
    check_square("slogdet", A)
    return SignAndLogarithm(*call(_slogdet, A))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of each determinant: NaN where that is negative.

    Raises:
        RuntimeError: they are not square.
    """
    sign, logarithm = slogdet(input)
    if input.dtype.kind == "c":
        return add(logarithm, log(sign))
    # With a gradient of zeros where it is NaN, as in PyTorch.
    return where(eq(sign, -1), math.nan, logarithm)  # type: ignore[no-any-return]


def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular ``L`` of ``A = L L^H`` (or its adjoint, if ``upper``).

    The lower triangle of ``A`` is read (the upper one, if ``upper``); the gradient is Hermitian.

    Raises:
        RuntimeError: they are not square, or not positive definite.
    """
    check_square("cholesky", A)
    A = adjoint(A) if upper else A
    factor = call(_cholesky, A)
    return adjoint(factor) if upper else factor


def matrix_power(A: Tensor, n: int) -> Tensor:
    """Each matrix times itself, ``n`` times; of its inverse where ``n`` is negative.

    Raises:
        RuntimeError: they are not square.
    """
    check_square("matrix_power", A)
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        one = eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return add(cleared(A), one)
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
