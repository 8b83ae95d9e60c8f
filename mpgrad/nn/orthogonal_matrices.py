"""``orthogonal``: weights that stay orthogonal, or unitary, while they are trained."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

import numpy as np

from mpgrad.nn.module import Module
from mpgrad.nn.parametrize import register_parametrization
from mpgrad.ops.linear_algebra.matrices import solve
from mpgrad.ops.linear_algebra.matrix_functions import householder_product, matrix_exp
from mpgrad.ops.linear_algebra.packed_factors import geqrf
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.random import randn
from mpgrad.ops.shapes.shape import cat
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

Kind = TypeVar("Kind", bound=Module)


class _Map(Enum):
    MATRIX_EXP = "matrix_exp"
    CAYLEY = "cayley"
    HOUSEHOLDER = "householder"


class _Orthogonal(Module):
    """From any matrix to an orthogonal one, by one of the maps.

    With a trivialisation the result is ``base`` times the map of the matrix (Lezcano-Casado,
    "Trivializations for gradient-based optimization on manifolds", 2019).
    """

    base: Tensor | None

    def __init__(self, weight: Tensor, way: _Map, use_trivialization: bool) -> None:
        super().__init__()
        if weight.dtype.kind == "c" and way is _Map.HOUSEHOLDER:
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape, self.orthogonal_map = weight.shape, way
        self.register_buffer("base", None)
        if use_trivialization:
            self.base = weight.detach().clone()  # replaced by the first inverse

    def forward(self, X: Tensor) -> Tensor:
        """Orthonormal columns, or rows where there are fewer of those, of the shape of ``X``."""
        is_wide = X.shape[-2] < X.shape[-1]
        tall = X.mT if is_wide else X
        if self.orthogonal_map is _Map.HOUSEHOLDER:
            Q = _of_reflections(tall)
        else:
            Q = _of_skew_matrix(tall, self.orthogonal_map)
        if self.base is not None:
            Q = self.base @ Q
        return Q.mT if is_wide else Q

    def right_inverse(self, Q: Tensor) -> Tensor:
        """The matrix of which ``forward`` makes ``Q``, or the nearest orthogonal one.

        Raises:
            NotImplementedError: the map has no inverse here.
            ValueError: ``Q`` has another shape than the weight.
        """
        if Q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {tuple(self.shape)}. Got a "
                f"tensor of shape {tuple(Q.shape)}."
            )
        is_wide = Q.shape[-2] < Q.shape[-1]
        tall = Q.mT if is_wide else Q
        if self.base is not None:
            self.base = _completed(tall)
            start = Q.new_zeros(Q.shape)
            start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return start
        if self.orthogonal_map is not _Map.HOUSEHOLDER:
            raise NotImplementedError(
                "It is not possible to assign to the matrix exponential or the Cayley "
                "parametrizations when use_trivialization=False."
            )
        A, tau = geqrf(tall)
        # The signs that R's diagonal would have had; a tau of 0 is no reflection.
        signs = A.diagonal(dim1=-2, dim2=-1).sign()
        A.diagonal(dim1=-2, dim2=-1).copy_(signs * (1 - 2 * (tau == 0)))
        return A.mT if is_wide else A


def _of_reflections(X: Tensor) -> Tensor:
    """A product of Householder reflections, whose vectors are below the diagonal of ``X``."""
    A = X.tril(-1)
    tau = 2.0 / (1.0 + (A * A.conj()).sum(dim=-2))
    signs = X.diagonal(dim1=-2, dim2=-1).to(np.int32)
    return householder_product(A, tau) * signs.unsqueeze(-2)


def _of_skew_matrix(X: Tensor, way: _Map) -> Tensor:
    """The first columns of an orthogonal square matrix, from the lower triangle of ``X``."""
    rows, columns = X.shape[-2:]
    X = X.tril()
    if rows != columns:
        X = cat([X, X.new_zeros((*X.shape[:-1], rows - columns))], -1)
    A = X - X.mH
    if way is _Map.MATRIX_EXP:
        Q = matrix_exp(A)
    else:
        identity = eye(rows, dtype=A.dtype, device=A.device)
        Q = solve(identity - 0.5 * A, identity + 0.5 * A)
    return Q[..., :columns]


def _completed(Q: Tensor) -> Tensor:
    """A square orthogonal matrix whose first columns are ``Q``, made orthogonal if they are not."""
    rows, columns = Q.shape[-2:]
    if rows == columns and _is_orthogonal(Q):
        return Q.clone()
    if rows != columns:
        more = randn(*Q.shape[:-2], rows, rows - columns, dtype=Q.dtype, device=Q.device)
        Q = cat([Q, more], -1)
    A, tau = geqrf(Q)
    return householder_product(A, tau) * A.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)


def _is_orthogonal(Q: Tensor) -> bool:
    columns = Q.shape[-1]
    difference = Q.mH @ Q - eye(columns, dtype=Q.dtype, device=Q.device)
    least = 10.0 * columns * float(np.finfo(Q.real.numpy().dtype).eps)
    return bool((difference.abs() <= least).all())


def orthogonal(
    module: Kind,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Kind:
    """Train a matrix among those with orthonormal columns (or rows, where there are fewer).

    Args:
        module: whose parameter it is.
        name: of the parameter; its last two dimensions are the matrices.
        orthogonal_map: ``"matrix_exp"``, ``"cayley"`` or ``"householder"``; by default the first
            for square and complex matrices, the last for others.
        use_trivialization: multiply by the matrix that was there first, so that any orthogonal
            matrix can be assigned.

    Raises:
        ValueError: there is no such parameter, it is no matrix, or the map is unknown.
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(
            f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions."
        )
    if orthogonal_map is None:
        is_square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if is_square or weight.dtype.kind == "c" else "householder"
    try:
        way = _Map(orthogonal_map)
    except ValueError:
        known = ", ".join(f'"{found.value}"' for found in _Map)
        raise ValueError(
            f"orthogonal_map has to be one of {known}. Got: {orthogonal_map}"
        ) from None
    with no_grad():
        made = _Orthogonal(weight, way, use_trivialization)
    register_parametrization(module, name, made, unsafe=True)
    return module
