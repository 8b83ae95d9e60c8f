"""Distributions of vectors with a covariance: MultivariateNormal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpgrad.distributions import constraints
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.parameters import lazy_property
from mpgrad.ops.elementwise.transcendental import log
from mpgrad.ops.linear_algebra.linear_systems import cholesky_inverse, solve_triangular
from mpgrad.ops.linear_algebra.matrices import cholesky
from mpgrad.ops.new_tensors.creation import eye
from mpgrad.ops.random import randn
from mpgrad.ops.shapes.shape import expand
from mpgrad.ops.shapes.tiles_and_pairs import flip
from mpgrad.recording.tensors.tensor import Tensor


class WithMatrix(Distribution):
    """A distribution with one of three matrices; the others are computed from it."""

    def _keep_matrix(
        self,
        batch: Sequence[int],
        covariance_matrix: Tensor | None,
        precision_matrix: Tensor | None,
        scale_tril: Tensor | None,
    ) -> None:
        """Note the one that is given, with another batch."""
        for name, matrix in (
            ("covariance_matrix", covariance_matrix),
            ("precision_matrix", precision_matrix),
            ("scale_tril", scale_tril),
        ):
            if matrix is not None:
                setattr(self, name, expand(matrix, *batch, -1, -1))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance: (..., n, n)."""
        if "covariance_matrix" in vars(self):
            return cholesky(self.covariance_matrix)
        # The factor of an inverse: that of the matrix turned by half, turned back and inverted.
        turned = cholesky(flip(self.precision_matrix, (-2, -1)))
        factor = flip(turned, (-2, -1)).mT
        unit = eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        return solve_triangular(factor, unit, upper=False)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """(..., n, n)."""
        return self.scale_tril @ self.scale_tril.mT  # type: ignore[no-any-return]

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance: (..., n, n)."""
        return cholesky_inverse(self.scale_tril)


class MultivariateNormal(WithMatrix):
    """Normal vectors of mean ``loc``, with one of three matrices.

    Args:
        loc: (..., n).
        covariance_matrix: (..., n, n), positive definite; or
        precision_matrix: its inverse; or
        scale_tril: its Cholesky factor.

    Raises:
        ValueError: not exactly one of them is given, or the shapes do not fit.
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if len(given) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be "
                "specified."
            )
        if given[0].ndim < 2:
            raise ValueError(
                "the matrix must be at least two-dimensional, with optional leading batch "
                "dimensions"
            )
        batch = np.broadcast_shapes(tuple(given[0].shape[:-2]), tuple(loc.shape[:-1]))
        self.loc = expand(loc, *batch, -1)
        self._keep_matrix(batch, covariance_matrix, precision_matrix, scale_tril)
        super().__init__(batch, self.loc.shape[-1:], validate_args)

    @property
    def _unbroadcasted_scale_tril(self) -> Tensor:
        return self.scale_tril  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (self.scale_tril**2).sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _log_size(self) -> Tensor:
        return log(self.scale_tril.diagonal(dim1=-2, dim2=-1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        away = (value - self.loc).unsqueeze(-1)
        standard = solve_triangular(self.scale_tril, away, upper=False).squeeze(-1)
        size = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (size + (standard**2).sum(-1)) - self._log_size()

    def entropy(self) -> Tensor:
        return 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_size()
