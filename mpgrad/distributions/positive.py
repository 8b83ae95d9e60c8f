"""Distributions of positive numbers: of tails, lifetimes and ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpgrad.distributions import constraints
from mpgrad.distributions.continuous import Cauchy, Folded
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.gammas import Gamma
from mpgrad.distributions.parameters import broadcast_all, least, resolution
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.special import digamma, lgamma
from mpgrad.ops.elementwise.transcendental import exp, expm1, log, log1p
from mpgrad.ops.new_tensors.creation import full
from mpgrad.ops.random import rand
from mpgrad.recording.tensors.tensor import Tensor

_EULER = 0.57721566490153286060


def uniform_inside(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform numbers away from 0 and 1."""
    drawn = rand(tuple(shape), dtype=like.dtype, device=like.device)
    return clamp(drawn, least(like), 1 - resolution(like))


class HalfCauchy(Folded):
    """The absolute value of a number with Cauchy's distribution of ``scale``; it has no mean."""

    @property
    def _base(self) -> Cauchy:  # type: ignore[override]
        return Cauchy(self.scale * 0, self.scale, False)

    @property
    def mean(self) -> Tensor:
        return full(self.scale.shape, math.inf, dtype=self.scale.dtype)

    @property
    def variance(self) -> Tensor:
        return self._base.variance


class Weibull(Distribution):
    """The cdf ``1 - exp(-(x / scale) ** concentration)``."""

    has_rsample = True
    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * exp(lgamma(1 + 1 / self.concentration))

    @property
    def mode(self) -> Tensor:
        shape = self.concentration
        return self.scale * ((shape - 1) / shape) ** (1 / shape)

    @property
    def variance(self) -> Tensor:
        inverse = 1 / self.concentration
        return self.scale**2 * (exp(lgamma(1 + 2 * inverse)) - exp(2 * lgamma(1 + inverse)))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(uniform_inside(self.scale, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        ratio = log(value) - log(self.scale)
        shape = self.concentration
        return log(shape) - log(self.scale) + (shape - 1) * ratio - exp(shape * ratio)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -expm1(-((value / self.scale) ** self.concentration))

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-log1p(-value)) ** (1 / self.concentration)

    def entropy(self) -> Tensor:
        inverse = 1 / self.concentration
        return _EULER * (1 - inverse) + log(self.scale * inverse) + 1


class Pareto(Distribution):
    """Density ``alpha * scale ** alpha / x ** (alpha + 1)`` from ``scale`` on."""

    has_rsample = True
    arg_constraints = {"scale": constraints.positive, "alpha": constraints.positive}

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        super().__init__(self.scale.shape, (), validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """From ``scale`` on."""
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        alpha = clamp(self.alpha, min=1)
        return alpha * self.scale / (alpha - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        alpha = clamp(self.alpha, min=2)
        return self.scale**2 * alpha / ((alpha - 1) ** 2 * (alpha - 2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(uniform_inside(self.scale, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return log(self.alpha) + self.alpha * log(self.scale) - (self.alpha + 1) * log(value)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 1 - (self.scale / value) ** self.alpha

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * exp(-log1p(-value) / self.alpha)

    def entropy(self) -> Tensor:
        return log(self.scale / self.alpha) + (1 + 1 / self.alpha)


class GeneralizedPareto(Distribution):
    """The excess over a high threshold ``loc``: the cdf ``1 - (1 + c * z) ** (-1 / c)`` of
    ``z = (x - loc) / scale`` and concentration ``c``; ``1 - exp(-z)`` where that is 0."""

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    def _curve(self) -> tuple[Tensor, Tensor]:
        """Where the concentration is 0, and it with 1 in place of that."""
        none = absolute(self.concentration) < 1e-8
        return none, where(none, 1.0, self.concentration).to(self.loc.dtype)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """From ``loc`` on, up to ``loc - scale / concentration`` if that is negative."""
        end = self.loc - self.scale / self._curve()[1]
        upper = where(self.concentration < 0, end, math.inf).to(self.loc.dtype)
        return constraints.interval(self.loc, upper)

    @property
    def mean(self) -> Tensor:
        shape = self.concentration
        return (self.loc + self.scale / (1 - shape)).masked_fill(shape >= 1, math.inf)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        shape = self.concentration
        found = self.scale**2 / ((1 - shape) ** 2 * (1 - 2 * shape))
        return found.masked_fill(shape >= 0.5, math.inf)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(uniform_inside(self.loc, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        z = (value - self.loc) / self.scale
        none, shape = self._curve()
        power = (1 / shape + 1) * log1p(shape * z)
        return -where(none, z, power).to(z.dtype) - log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        z = (value - self.loc) / self.scale
        none, shape = self._curve()
        return -expm1(where(none, -z, -log1p(shape * z) / shape).to(z.dtype))

    def icdf(self, value: Tensor) -> Tensor:
        none, shape = self._curve()
        straight = -log1p(-value)
        curved = expm1(straight * shape) / shape
        return self.loc + self.scale * where(none, straight, curved).to(self.loc.dtype)

    def entropy(self) -> Tensor:
        return log(self.scale) + self.concentration + 1


class InverseGamma(Distribution):
    """One over a gamma distributed number of this ``concentration`` and ``rate``."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    @property
    def _base(self) -> Gamma:
        return Gamma(self.concentration, self.rate, False)

    @property
    def mean(self) -> Tensor:
        shape = self.concentration
        return (self.rate / (shape - 1)).masked_fill(shape <= 1, math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        shape = self.concentration
        found = self.rate**2 / ((shape - 1) ** 2 * (shape - 2))
        return found.masked_fill(shape <= 2, math.inf)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return 1 / self._base.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self._base.log_prob(1 / value) - 2 * log(value)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 1 - self._base.cdf(1 / value)

    def entropy(self) -> Tensor:
        shape = self.concentration
        return shape + log(self.rate) + lgamma(shape) - (1 + shape) * digamma(shape)


class FisherSnedecor(Distribution):
    """The ratio of two means of ``df1`` and ``df2`` squares of standard normal numbers."""

    has_rsample = True
    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        super().__init__(self.df1.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        found = self.df2 / (self.df2 - 2)
        return found.masked_fill(self.df2 <= 2, math.nan)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return found.masked_fill(self.df1 <= 2, math.nan)

    @property
    def variance(self) -> Tensor:
        one, two = self.df1, self.df2
        found = 2 * two**2 * (one + two - 2) / (one * (two - 2) ** 2 * (two - 4))
        return found.masked_fill(two <= 4, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        above, below = (
            Gamma(df * 0.5, df * 0.5, False).rsample(sample_shape) for df in (self.df1, self.df2)
        )
        return above / clamp(below, min=least(below))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        one, two, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        factor = lgamma(one + two) - lgamma(one) - lgamma(two)
        powers = one * log(ratio) + (one - 1) * log(value)
        return factor + powers - (one + two) * log1p(ratio * value)


class Kumaraswamy(Distribution):
    """Density ``a * b * x ** (a - 1) * (1 - x ** a) ** (b - 1)`` from 0 to 1, of ``a``
    (``concentration1``) and ``b`` (``concentration0``)."""

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

    def _moment(self, n: int) -> Tensor:
        b, argument = self.concentration0, 1 + n / self.concentration1
        return exp(log(b) + lgamma(argument) + lgamma(b) - lgamma(argument + b))

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        found = ((a - 1) / (a * b - 1)) ** (1 / a)
        return found.masked_fill((a < 1) | (b < 1), math.nan)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self.mean**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.icdf(uniform_inside(self.concentration1, shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a, b = self.concentration1, self.concentration0
        return log(a) + log(b) + (a - 1) * log(value) + (b - 1) * log1p(-(value**a))

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 1 - (1 - value**self.concentration1) ** self.concentration0

    def icdf(self, value: Tensor) -> Tensor:
        return (1 - (1 - value) ** (1 / self.concentration0)) ** (1 / self.concentration1)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = digamma(b + 1) + _EULER
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - log(a) - log(b)
