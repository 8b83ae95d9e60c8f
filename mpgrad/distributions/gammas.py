"""Distributions made of gamma distributed numbers: Gamma, Chi2, Beta, Dirichlet and StudentT.

They need SciPy (``pip install 'mpgrad[scipy]'``), ``sample`` apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.distributions import constraints
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.parameters import broadcast_all, least, resolution
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.special import (
    digamma,
    igamma,
    lgamma,
    standard_dirichlet,
    standard_gamma,
)
from mpgrad.ops.elementwise.transcendental import log, log1p, xlogy
from mpgrad.ops.neural.embedding import one_hot
from mpgrad.ops.new_tensors.creation import as_tensor
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import default_generator, randn
from mpgrad.ops.reductions.extrema import argmax
from mpgrad.ops.shapes.shape import expand, stack
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.tensors.tensor import Tensor


def _drawn(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Gamma distributed numbers of rate 1, whose gradient reaches ``concentration``."""
    wide = expand(concentration, *shape)
    return call(standard_gamma, wide, beside(wide, _numbers(on_host(wide._array))))


def _numbers(shapes: Any) -> Any:
    """Gamma distributed numbers of rate 1, which are not 0."""
    values = np.asarray(default_generator().standard_gamma(shapes), shapes.dtype)
    return np.asarray(np.maximum(values, np.finfo(shapes.dtype).tiny))


class Gamma(Distribution):
    """Density ``rate ** c * x ** (c - 1) * exp(-rate * x) / gamma(c)`` of concentration ``c``."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return clamp((self.concentration - 1) / self.rate, min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return _drawn(self.concentration, self._extended_shape(sample_shape)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        shape, rate = self.concentration, self.rate
        value = as_tensor(value, dtype=rate.dtype, device=rate.device)
        self._validate_sample(value)
        return xlogy(shape, rate) + xlogy(shape - 1, value) - rate * value - lgamma(shape)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return igamma(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        shape = self.concentration
        return shape - log(self.rate) + lgamma(shape) + (1 - shape) * digamma(shape)


class Chi2(Gamma):
    """The sum of the squares of ``df`` standard normal numbers."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (df,) = broadcast_all(df)
        super().__init__(0.5 * df, 0.5, validate_args)

    @property
    def df(self) -> Tensor:
        """How many numbers."""
        return self.concentration * 2


class Dirichlet(Distribution):
    """Vectors that sum to 1, with density ``prod(x ** (concentration - 1))`` up to a factor.

    Raises:
        ValueError: ``concentration`` has no dimension.
    """

    has_rsample = True
    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        above = clamp(self.concentration - 1, min=0)
        corner = (self.concentration < 1).all(-1, keepdim=True)
        total = above.sum(-1, keepdim=True).masked_fill(corner, 1.0)
        largest = one_hot(argmax(above / total, -1), above.shape[-1]).to(above.dtype)
        return where(corner, largest, above / total)  # type: ignore[no-any-return]

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        wide = expand(self.concentration, *self._extended_shape(sample_shape))
        # A small concentration gives gamma distributed numbers that float32 does not have.
        drawn = _numbers(on_host(wide._array).astype(np.float64))
        shares = drawn / drawn.sum(-1, keepdims=True)
        found = beside(wide, shares.astype(wide._array.dtype))
        found = clamp(found, least(found), 1 - resolution(found) / 2)
        return call(standard_dirichlet, wide, found)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        shape = self.concentration
        powers = xlogy(shape - 1, value).sum(-1)
        return powers + lgamma(shape.sum(-1)) - lgamma(shape).sum(-1)

    def entropy(self) -> Tensor:
        shape, count = self.concentration, self.concentration.shape[-1]
        total = shape.sum(-1)
        return (
            lgamma(shape).sum(-1)
            - lgamma(total)
            - (count - total) * digamma(total)
            - ((shape - 1) * digamma(shape)).sum(-1)
        )


class Beta(Distribution):
    """Density ``x ** (concentration1 - 1) * (1 - x) ** (concentration0 - 1)`` up to a factor."""

    has_rsample = True
    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    @property
    def _dirichlet(self) -> Dirichlet:
        return Dirichlet(stack([self.concentration1, self.concentration0], -1), False)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self._dirichlet.log_prob(stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()


class StudentT(Distribution):
    """A normal number over the root of ``Chi2(df) / df``, times ``scale``, plus ``loc``."""

    has_rsample = True
    arg_constraints = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        found = self.scale**2 * self.df / (self.df - 2)
        return found.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        normal = randn(shape, dtype=self.df.dtype, device=self.df.device)
        square = _drawn(self.df / 2, shape) * 2
        return self.loc + self.scale * normal * (self.df / square).sqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        y, df = (value - self.loc) / self.scale, self.df
        factor = (
            log(self.scale)
            + 0.5 * log(df)
            + 0.5 * math.log(math.pi)
            + lgamma(0.5 * df)
            - lgamma(0.5 * (df + 1))
        )
        return -0.5 * (df + 1) * log1p(y**2 / df) - factor

    def entropy(self) -> Tensor:
        df = self.df
        log_beta = lgamma(0.5 * df) + math.lgamma(0.5) - lgamma(0.5 * (df + 1))
        slope = digamma(0.5 * (df + 1)) - digamma(0.5 * df)
        return log(self.scale) + 0.5 * (df + 1) * slope + 0.5 * log(df) + log_beta
