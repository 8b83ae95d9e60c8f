"""Distributions of matrices, and of vectors whose covariance has few dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.distributions import constraints
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.gammas import Beta, Chi2
from mpgrad.distributions.multivariate import MultivariateNormal, WithMatrix
from mpgrad.distributions.parameters import broadcast_all, lazy_property, least
from mpgrad.ops.by_index.selection import tril
from mpgrad.ops.elementwise.minimum_maximum import clamp
from mpgrad.ops.elementwise.special import digamma, lgamma, mvlgamma
from mpgrad.ops.elementwise.transcendental import log
from mpgrad.ops.linear_algebra.linear_systems import cholesky_solve, solve_triangular
from mpgrad.ops.linear_algebra.matrices import cholesky, slogdet
from mpgrad.ops.new_tensors.creation import arange, eye
from mpgrad.ops.random import randn
from mpgrad.ops.shapes.shape import expand
from mpgrad.ops.shapes.tiles_and_pairs import diag_embed
from mpgrad.recording.tensors.tensor import Tensor


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with the covariance ``cov_factor @ cov_factor.T + diag(cov_diag)``.

    Args:
        loc: (..., n).
        cov_factor: (..., n, rank).
        cov_diag: (..., n), positive.
        validate_args: check parameters and values.

    Raises:
        ValueError: the shapes do not fit.
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        cov_factor: Tensor,
        cov_diag: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1 or cov_factor.ndim < 2:
            raise ValueError("loc needs one dimension, and cov_factor two, at least")
        size = loc.shape[-1]
        if cov_factor.shape[-2] != size or cov_diag.shape[-1] != size:
            raise ValueError(
                f"cov_factor must be a batch of matrices with shape {size} x m, and cov_diag of "
                f"vectors with shape {size}"
            )
        batch = np.broadcast_shapes(
            tuple(loc.shape[:-1]), tuple(cov_factor.shape[:-2]), tuple(cov_diag.shape[:-1])
        )
        self.loc = expand(loc, *batch, -1)
        self.cov_factor = expand(cov_factor, *batch, -1, -1)
        self.cov_diag = expand(cov_diag, *batch, -1)
        super().__init__(batch, (size,), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (self.cov_factor**2).sum(-1) + self.cov_diag

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """(..., n, n)."""
        return self.cov_factor @ self.cov_factor.mT + diag_embed(self.cov_diag)

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return cholesky(self.covariance_matrix)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance (by Woodbury's identity)."""
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        inner = solve_triangular(self._capacitance(), scaled, upper=False)
        return diag_embed(1 / self.cov_diag) - inner.mT @ inner

    def _capacitance(self) -> Tensor:
        """The Cholesky factor of ``I + W^T D^-1 W``."""
        factor = self.cov_factor
        rank = factor.shape[-1]
        inner = factor.mT @ (factor / self.cov_diag.unsqueeze(-1))
        return cholesky(inner + eye(rank, dtype=factor.dtype, device=factor.device))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        made: dict[str, Any] = {"dtype": self.loc.dtype, "device": self.loc.device}
        few = randn((*shape[:-1], self.cov_factor.shape[-1]), **made)
        along = (self.cov_factor @ few.unsqueeze(-1)).squeeze(-1)
        return self.loc + along + self.cov_diag.sqrt() * randn(shape, **made)

    def _log_size(self, factor: Tensor) -> Tensor:
        """Half the logarithm of the determinant of the covariance."""
        inner = log(factor.diagonal(dim1=-2, dim2=-1)).sum(-1)
        return inner + 0.5 * log(self.cov_diag).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        away, factor = value - self.loc, self._capacitance()
        scaled = (away / self.cov_diag).unsqueeze(-1)
        inner = solve_triangular(factor, self.cov_factor.mT @ scaled, upper=False).squeeze(-1)
        distance = (away**2 / self.cov_diag).sum(-1) - (inner**2).sum(-1)
        size = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (size + distance) - self._log_size(factor)

    def entropy(self) -> Tensor:
        size = self._event_shape[0] * (1 + math.log(2 * math.pi))
        return 0.5 * size + self._log_size(self._capacitance())

    def _whole(self) -> MultivariateNormal:
        """The same distribution with the whole covariance."""
        return MultivariateNormal(self.loc, self.covariance_matrix, validate_args=False)


class LKJCholesky(Distribution):
    """Cholesky factors of random correlation matrices (Lewandowski, Kurowicka and Joe, "Generating
    random correlation matrices based on vines and extended onion method", 2009).

    Args:
        dim: rows, at least 2.
        concentration: 1 for the same density of all correlation matrices, above it near none.
        validate_args: check parameters and values.

    Raises:
        ValueError: ``dim`` is less than 2.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(
                f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}."
            )
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        like = self.concentration.detach()
        made: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        row = clamp(arange(self.dim, **made) - 1, min=0)
        rest = (like + 0.5 * (self.dim - 2)).unsqueeze(-1) - 0.5 * row
        shares = Beta(row + 0.5, rest, False).sample(sample_shape).unsqueeze(-1)
        noise = tril(randn(self._extended_shape(sample_shape), **made), -1)
        directions = noise / clamp(noise.norm(dim=-1, keepdim=True), min=least(noise))
        below = shares.sqrt() * directions
        diagonal = clamp(1 - (below**2).sum(-1), min=least(below)).sqrt()
        return below + diag_embed(diagonal)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        dim, shape = self.dim, self.concentration
        diagonal = value.diagonal(dim1=-2, dim2=-1)[..., 1:]
        rows = arange(2, dim + 1, dtype=shape.dtype, device=shape.device)
        powers = 2 * (shape - 1).unsqueeze(-1) + dim - rows
        alpha = shape + 0.5 * (dim - 1)
        size = mvlgamma(alpha - 0.5, dim - 1) - lgamma(alpha) * (dim - 1)
        size = size + 0.5 * (dim - 1) * math.log(math.pi)
        return (powers * log(diagonal)).sum(-1) - size


class Wishart(WithMatrix):
    """The sum of ``df`` outer products of normal vectors with themselves.

    Args:
        df: degrees of freedom, above n - 1.
        covariance_matrix: (..., n, n), of the vectors; or
        precision_matrix: its inverse; or
        scale_tril: its Cholesky factor.
        validate_args: check parameters and values.

    Raises:
        ValueError: not exactly one matrix is given, or ``df`` is too small.
    """

    has_rsample = True
    arg_constraints = {
        "df": constraints.greater_than(0),
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.positive_definite

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ValueError(
                "Expected exactly one of covariance_matrix, precision_matrix or scale_tril"
            )
        if given[0].ndim < 2:
            raise ValueError(
                "scale_tril must be at least two-dimensional, with optional leading batch "
                "dimensions"
            )
        size = given[0].shape[-1]
        df = df if isinstance(df, Tensor) else given[0].new_tensor(float(df))
        batch = np.broadcast_shapes(tuple(given[0].shape[:-2]), tuple(df.shape))
        self.df = expand(df, *batch)
        if bool((self.df <= size - 1).any().item()):
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {size - 1}.")
        self._keep_matrix(batch, covariance_matrix, precision_matrix, scale_tril)
        super().__init__(batch, (size, size), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self._event_shape[0] - 1
        factor = factor.masked_fill(factor <= 0, math.nan)
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        matrix = self.covariance_matrix
        sizes = matrix.diagonal(dim1=-2, dim2=-1)
        products = sizes.unsqueeze(-1) * sizes.unsqueeze(-2)
        return self.df[..., None, None] * (matrix**2 + products)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape, size = self._extended_shape(sample_shape), self._event_shape[0]
        made: dict[str, Any] = {"dtype": self.scale_tril.dtype, "device": self.scale_tril.device}
        freedoms = self.df.unsqueeze(-1) - arange(size, **made)
        squares = Chi2(freedoms, False).rsample(sample_shape)
        noise = tril(randn(shape, **made), -1) + diag_embed(squares.sqrt())
        factor = self.scale_tril @ noise
        return factor @ factor.mT

    def _log_size(self) -> Tensor:
        return log(self.scale_tril.diagonal(dim1=-2, dim2=-1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        df, size = self.df, self._event_shape[0]
        inner = cholesky_solve(value, self.scale_tril).diagonal(dim1=-2, dim2=-1).sum(-1)
        return (
            -df * (size * math.log(2) / 2 + self._log_size())
            - mvlgamma(df / 2, size)
            + (df - size - 1) / 2 * slogdet(value)[1]
            - inner / 2
        )

    def entropy(self) -> Tensor:
        df, size = self.df, self._event_shape[0]
        slopes: Any = sum(digamma(df / 2 - at / 2) for at in range(size))
        return (
            (size + 1) * (size * math.log(2) / 2 + self._log_size())
            + mvlgamma(df / 2, size)
            - (df - size - 1) / 2 * slopes
            + df * size / 2
        )
