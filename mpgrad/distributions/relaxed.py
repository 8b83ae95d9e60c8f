"""Distributions between 0 and 1 in place of choices, and on the circle.

Maddison, Mnih and Teh, "The concrete distribution", 2017; Jang, Gu and Poole, "Categorical
reparameterization with Gumbel-softmax", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.distributions import constraints
from mpgrad.distributions.discrete import OverClasses, _Trials
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.parameters import (
    broadcast_all,
    clamp_probs,
    lazy_property,
    least,
    logits_to_probs,
)
from mpgrad.distributions.positive import uniform_inside
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.piecewise import logit
from mpgrad.ops.elementwise.special import i0e, i1e
from mpgrad.ops.elementwise.transcendental import cos, exp, log, log1p, sigmoid
from mpgrad.ops.neural.activation import logsigmoid, softplus
from mpgrad.ops.neural.loss import binary_cross_entropy_with_logits
from mpgrad.ops.new_tensors.creation import arange
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import default_generator, randn
from mpgrad.ops.reductions.products import cumprod
from mpgrad.ops.reductions.reduction import cumsum, logsumexp
from mpgrad.recording.tensors.tensor import Tensor


class RelaxedBernoulli(_Trials):
    """``sigmoid((logits + noise) / temperature)``, where the noise is logistic: the lower the
    temperature, the nearer to 0 or 1."""

    has_rsample = True
    support = constraints.unit_interval
    _shared = ("temperature",)

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = uniform_inside(self.probs, self._extended_shape(sample_shape))
        return sigmoid((logit(u) + self.logits) / self.temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        x = logit(value)
        away = self.logits - x * self.temperature
        temperature = self.temperature
        size = log(temperature) if isinstance(temperature, Tensor) else math.log(temperature)
        return size + away - 2 * softplus(away) + softplus(-x) + softplus(x)


class RelaxedOneHotCategorical(OverClasses):
    """The softmax of ``(logits + noise) / temperature``, where the noise is Gumbel's: the lower the
    temperature, the nearer to a vector with a single 1."""

    has_rsample = True
    support = constraints.simplex
    _shared = ("temperature",)

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = uniform_inside(self.logits, self._extended_shape(sample_shape))
        scores = (self.logits - log(-log(u))) / self.temperature
        return exp(scores - logsumexp(scores, -1, keepdim=True))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        count, temperature = self._event_shape[0], self.temperature
        size = log(temperature) if isinstance(temperature, Tensor) else math.log(temperature)
        x = log(value)
        score = self.logits - x * temperature
        score = (score - logsumexp(score, -1, keepdim=True)).sum(-1)
        return score + math.lgamma(count) + (count - 1) * size - x.sum(-1)


class ContinuousBernoulli(_Trials):
    """Density ``probs ** x * (1 - probs) ** (1 - x)`` from 0 to 1, up to a factor (Loaiza-Ganem and
    Cunningham, "The continuous Bernoulli", 2019).

    Args:
        probs: at which ``logits`` is 0 for 0.5.
        logits: the logarithm of ``probs / (1 - probs)``.
        lims: between which the limits at 0.5 are taken, by Taylor's series.
        validate_args: check parameters and values.
    """

    has_rsample = True
    support = constraints.unit_interval

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._lims = lims
        super().__init__(probs, logits, validate_args)
        if logits is None:
            self.probs = clamp_probs(self.probs)

    @lazy_property
    def probs(self) -> Tensor:
        """Where ``logits`` is 0 for 0.5."""
        return clamp_probs(logits_to_probs(self.logits, is_binary=True))

    def _apart(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where ``probs`` is not near 0.5, it with another value near there, and how far it is."""
        probs = self.probs
        apart = (probs <= self._lims[0]) | (probs > self._lims[1])
        return apart, where(apart, probs, self._lims[0]).to(probs.dtype), probs - 0.5

    def _log_factor(self) -> Tensor:
        apart, p, x = self._apart()
        exact = log(absolute(log1p(-p) - log(p))) - log(absolute(1 - 2 * p))
        near = math.log(2) + (4 / 3 + 104 / 45 * x**2) * x**2
        return where(apart, exact, near).to(p.dtype)

    @property
    def mean(self) -> Tensor:
        apart, p, x = self._apart()
        exact = p / (2 * p - 1) + 1 / (log1p(-p) - log(p))
        return where(apart, exact, 0.5 + (1 / 3 + 16 / 45 * x**2) * x).to(p.dtype)

    @property
    def variance(self) -> Tensor:
        apart, p, x = self._apart()
        exact = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / (log1p(-p) - log(p)) ** 2
        near = 1 / 12 - (1 / 15 - 128 / 945 * x**2) * x**2
        return where(apart, exact, near).to(p.dtype)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(uniform_inside(self.probs, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        losses = binary_cross_entropy_with_logits(logits, value, reduction="none")
        return self._log_factor() - losses

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        apart, p, _ = self._apart()
        exact = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        return clamp(where(apart, exact, value).to(p.dtype), 0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        apart, p, _ = self._apart()
        exact = (log1p(-p + value * (2 * p - 1)) - log1p(-p)) / (log(p) - log1p(-p))
        return where(apart, exact, value).to(p.dtype)

    def entropy(self) -> Tensor:
        no, yes = log1p(-self.probs), log(self.probs)
        return self.mean * (no - yes) - self._log_factor() - no


class LogisticNormal(Distribution):
    """Vectors of positive numbers that sum to 1, one longer than the normal vector of ``loc`` and
    ``scale`` whose sigmoids break them off a stick of length 1, one after another."""

    has_rsample = True
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        loc, scale = broadcast_all(loc, scale)
        self.loc, self.scale = (loc, scale) if loc.ndim else (loc.reshape(1), scale.reshape(1))
        count = self.loc.shape[-1]
        super().__init__(self.loc.shape[:-1], (count + 1,), validate_args)

    def _left(self, like: Tensor) -> Tensor:
        """How many pieces are left, the last one not counted."""
        count = self.loc.shape[-1]
        return count - arange(count, dtype=like.dtype, device=like.device)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = (*sample_shape, *self.loc.shape)
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        x = self.loc + noise * self.scale
        pieces = sigmoid(x - log(self._left(x)))
        rest = cumprod(1 - pieces, -1)
        return pad(pieces, (0, 1), value=1) * pad(rest, (1, 0), value=1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        pieces, left = value[..., :-1], log(self._left(value))
        rest = clamp(1 - cumsum(pieces, -1), min=least(value))
        shifted = log(pieces) - log(rest)
        slope = -shifted + logsigmoid(shifted) + log(pieces)
        standard = (shifted + left - self.loc) / self.scale
        density = -0.5 * standard**2 - log(self.scale) - 0.5 * math.log(2 * math.pi)
        return (density - slope).sum(-1)


class VonMises(Distribution):
    """Angles with the density ``exp(concentration * cos(x - loc))``, up to a factor."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular variance, from 0 to 1."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        middle, sharpness = (on_host(x.detach()._array) for x in (self.loc, self.concentration))
        shape = self._extended_shape(sample_shape)
        drawn = default_generator().vonmises(middle, sharpness, shape)
        return beside(self.loc, np.asarray(drawn, middle.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        size = log(i0e(self.concentration)) + self.concentration
        return self.concentration * cos(value - self.loc) - math.log(2 * math.pi) - size
