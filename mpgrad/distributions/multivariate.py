"""Distributions of vectors, and those that are made of others: MultivariateNormal, Independent,
TransformedDistribution and MixtureSameFamily."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mpgrad.distributions.discrete import Categorical
from mpgrad.distributions.distribution import Constraints, Distribution, real
from mpgrad.distributions.transforms import Transform
from mpgrad.graph.grad_modes import no_grad
from mpgrad.ops.activation import log_softmax
from mpgrad.ops.indexing import gather
from mpgrad.ops.linear_systems import cholesky_inverse, solve_triangular
from mpgrad.ops.matrices import cholesky, inv
from mpgrad.ops.random import randn
from mpgrad.ops.reduction import logsumexp
from mpgrad.ops.shape import expand, reshape
from mpgrad.ops.transcendental import log
from mpgrad.tensors.tensor import Tensor


class MultivariateNormal(Distribution):
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
    _constraints: ClassVar[Constraints] = {"loc": real}
    _support = staticmethod(real)

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
        matrix = given[0]
        if matrix.ndim < 2:
            raise ValueError("the matrix must be at least two-dimensional, with batch dimensions")
        batch = np.broadcast_shapes(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1]))
        self.loc = expand(loc, *batch, -1)
        super().__init__(batch, self.loc.shape[-1:], validate_args)
        matrix = expand(matrix, *batch, -1, -1)
        if scale_tril is not None:
            self.scale_tril = matrix
        elif covariance_matrix is not None:
            self.scale_tril = self._factor(matrix)
        else:
            self.scale_tril = self._factor(inv(matrix))

    def _factor(self, matrix: Tensor) -> Tensor:
        try:
            return cholesky(matrix)
        except RuntimeError as error:
            raise ValueError(
                "Expected parameter covariance_matrix of distribution MultivariateNormal to "
                "satisfy the constraint PositiveDefinite()"
            ) from error

    @property
    def _unbroadcasted_scale_tril(self) -> Tensor:
        return self.scale_tril

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., n, n)."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return cholesky_inverse(self.scale_tril)

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


class Independent(Distribution):
    """The last dimensions of a batch as parts of one event.

    Args:
        base_distribution: the distribution of the components.
        reinterpreted_batch_ndims: how many.

    Raises:
        ValueError: the batch has fewer.
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch = base_distribution.batch_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = (
            base_distribution,
            reinterpreted_batch_ndims,
        )
        keep = len(batch) - reinterpreted_batch_ndims
        event = (*batch[keep:], *base_distribution.event_shape)
        super().__init__(batch[:keep], event, validate_args)
        self.has_rsample = base_distribution.has_rsample

    def _summed(self, x: Tensor) -> Tensor:
        dims = tuple(range(-self.reinterpreted_batch_ndims, 0))
        return x.sum(dims) if dims else x

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._summed(self.base_dist.entropy())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        inner = self.event_shape[: self.reinterpreted_batch_ndims]
        base = self.base_dist.expand((*batch_shape, *inner))
        return Independent(base, self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of transformed draws of another one.

    Args:
        base_distribution: the other one.
        transforms: one, or several in their order.
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Any, validate_args: bool | None = None
    ) -> None:
        self.base_dist = base_distribution
        several = isinstance(transforms, list | tuple)
        self.transforms: list[Transform] = list(transforms) if several else [transforms]
        super().__init__(
            base_distribution.batch_shape, base_distribution.event_shape, validate_args
        )
        self.has_rsample = base_distribution.has_rsample

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        y, change, event = value, None, len(self._event_shape)
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            slope = transform.log_abs_det_jacobian(x, y)
            slope = slope.sum(tuple(range(-event, 0))) if event else slope
            change = slope if change is None else change + slope
            y = x
        found = self.base_dist.log_prob(y)
        return found if change is None else found - change

    def cdf(self, value: Tensor) -> Tensor:
        sign: Any = 1
        for transform in reversed(self.transforms):
            sign, value = sign * transform.sign, transform.inv(value)
        found = self.base_dist.cdf(value)
        return sign * (found - 0.5) + 0.5  # type: ignore[no-any-return]

    def icdf(self, value: Tensor) -> Tensor:
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return self._transformed(self.base_dist.icdf(sign * (value - 0.5) + 0.5))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        return TransformedDistribution(self.base_dist.expand(batch_shape), self.transforms)


class MixtureSameFamily(Distribution):
    """One of the distributions along the last dimension of a batch, chosen by another one.

    Args:
        mixture_distribution: Categorical over them.
        component_distribution: the batch.
    """

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        event = component_distribution.event_shape
        super().__init__(component_distribution.batch_shape[:-1], event, validate_args)

    def _weights(self) -> Tensor:
        probs = self.mixture_distribution.probs
        return reshape(probs, (*probs.shape, *(1,) * len(self._event_shape)))

    @property
    def mean(self) -> Tensor:
        dim = -1 - len(self._event_shape)
        return (self._weights() * self.component_distribution.mean).sum(dim)

    @property
    def variance(self) -> Tensor:
        dim, weights = -1 - len(self._event_shape), self._weights()
        away = self.component_distribution.mean - self.mean.unsqueeze(dim)
        return (weights * (self.component_distribution.variance + away**2)).sum(dim)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            chosen = self.mixture_distribution.sample(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            dim, event = -1 - len(self._event_shape), self._event_shape
            places = reshape(chosen, (*chosen.shape, 1, *(1,) * len(event)))
            places = expand(places, *drawn.shape[:dim], 1, *event)
            return gather(drawn, dim, places).squeeze(dim)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        inner = self.component_distribution.log_prob(value.unsqueeze(-1 - len(self._event_shape)))
        return logsumexp(inner + log_softmax(self.mixture_distribution.logits, -1), -1)

    def cdf(self, value: Tensor) -> Tensor:
        inner = self.component_distribution.cdf(value.unsqueeze(-1))
        return (inner * self.mixture_distribution.probs).sum(-1)
