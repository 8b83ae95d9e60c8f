"""Distributions of real numbers whose draws are simple functions of normal and uniform ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpgrad.distributions import constraints
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.parameters import broadcast_all
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.comparison import ge, gt, logical_and, lt
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.special import erfinv
from mpgrad.ops.elementwise.transcendental import atan, erf, exp, expm1, log, log1p, tan
from mpgrad.ops.new_tensors.creation import full
from mpgrad.ops.random import rand, randn
from mpgrad.recording.tensors.tensor import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_EULER = 0.57721566490153286060


def _noise(draw: Any, like: Tensor, shape: Sequence[int]) -> Tensor:
    return draw(tuple(shape), dtype=like.dtype, device=like.device)


class _LocationScale(Distribution):
    """Distributions with a location and a scale."""

    has_rsample = True
    loc: Tensor
    scale: Tensor
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    def _standard(self, value: Tensor) -> Tensor:
        return (value - self.loc) / self.scale

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


class Normal(_LocationScale):
    """Mean ``loc`` and standard deviation ``scale``."""

    @property
    def variance(self) -> Tensor:
        return self.scale**2

    @property
    def stddev(self) -> Tensor:
        return self.scale

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.loc + _noise(randn, self.loc, shape) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - log(self.scale) - _HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 0.5 * (1 + erf(self._standard(value) / math.sqrt(2)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_2PI + log(self.scale)


class Laplace(_LocationScale):
    """Density ``exp(-abs(x - loc) / scale) / (2 * scale)``."""

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _noise(rand, self.loc, self._extended_shape(sample_shape)) * (2 - 1e-7) - (1 - 1e-7)
        return self.loc - self.scale * u.sign() * log1p(-absolute(u))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -log(2 * self.scale) - absolute(value - self.loc) / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * expm1(-absolute(away) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * log1p(-2 * absolute(term))

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)


class Cauchy(_LocationScale):
    """Density ``1 / (pi * scale * (1 + ((x - loc) / scale) ** 2))``; it has no mean."""

    @property
    def mean(self) -> Tensor:
        return full(self.loc.shape, math.nan, dtype=self.loc.dtype)

    @property
    def variance(self) -> Tensor:
        return full(self.loc.shape, math.inf, dtype=self.loc.dtype)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _noise(rand, self.loc, self._extended_shape(sample_shape))
        return self.icdf(clamp(u, 1e-7, 1 - 1e-7))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -math.log(math.pi) - log(self.scale) - log1p(self._standard(value) ** 2)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return atan(self._standard(value)) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + log(self.scale)


class Gumbel(_LocationScale):
    """The largest of many draws: cdf ``exp(-exp(-(x - loc) / scale))``."""

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * _EULER

    @property
    def variance(self) -> Tensor:
        return (math.pi**2 / 6) * self.scale**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _noise(rand, self.loc, self._extended_shape(sample_shape))
        return self.icdf(clamp(u, 1e-7, 1 - 1e-7))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        y = (self.loc - value) / self.scale
        return y - exp(y) - log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return exp(-exp(-self._standard(value)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * log(-log(value))

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + _EULER)


class LogNormal(_LocationScale):
    """The distribution of a variable whose logarithm is normal with ``loc`` and ``scale``."""

    support = constraints.positive

    @property
    def base_dist(self) -> Normal:
        """Of the logarithm."""
        return Normal(self.loc, self.scale, False)

    @property
    def mean(self) -> Tensor:
        return exp(self.loc + self.scale**2 / 2)

    @property
    def mode(self) -> Tensor:
        return exp(self.loc - self.scale**2)

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return expm1(square) * exp(2 * self.loc + square)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return exp(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logarithm = log(value)
        return self.base_dist.log_prob(logarithm) - logarithm

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self.base_dist.cdf(log(value))

    def icdf(self, value: Tensor) -> Tensor:
        return exp(self.base_dist.icdf(value))

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class Folded(Distribution):
    """The absolute value of a number whose distribution, ``_base``, is symmetric around 0."""

    has_rsample = True
    arg_constraints = {"scale": constraints.positive}
    support: Any = constraints.nonnegative
    _base: Distribution

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = broadcast_all(scale)
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def mode(self) -> Tensor:
        return self.scale * 0

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return absolute(self._base.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        found = self._base.log_prob(value) + math.log(2)
        return where(ge(value, 0), found, -math.inf).to(found.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 2 * self._base.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self._base.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self._base.entropy() - math.log(2)


class HalfNormal(Folded):
    """The absolute value of a normal number of mean 0 and standard deviation ``scale``."""

    @property
    def _base(self) -> Normal:  # type: ignore[override]
        return Normal(self.scale * 0, self.scale, False)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (1 - 2 / math.pi)


class Exponential(Distribution):
    """Density ``rate * exp(-rate * x)``."""

    has_rsample = True
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _noise(rand, self.rate, self._extended_shape(sample_shape))
        return -log1p(-u) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return log(self.rate) - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 1 - exp(-self.rate * value)

    def icdf(self, value: Tensor) -> Tensor:
        return -log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)


class Uniform(Distribution):
    """The same density everywhere from ``low`` to ``high``.

    Raises:
        ValueError: ``low`` is not less than ``high``.
    """

    has_rsample = True
    arg_constraints = {
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, (), validate_args)
        if self._validate_args and not bool(lt(self.low, self.high).all().item()):
            raise ValueError("Uniform is not defined when low>= high")

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return self.high * math.nan

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _noise(rand, self.low, self._extended_shape(sample_shape))
        return self.low + u * (self.high - self.low)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """From ``low`` to ``high``."""
        return constraints.interval(self.low, self.high)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        inside = logical_and(ge(value, self.low), gt(self.high, value)).to(self.low.dtype)
        return log(inside) - log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return clamp((value - self.low) / (self.high - self.low), 0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return log(self.high - self.low)
