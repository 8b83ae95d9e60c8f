"""``kl_divergence``: the Kullback-Leibler divergence of one distribution from another.

Between distributions of different kinds it is the cross entropy less the entropy; the cross entropy
follows from a few moments of the first distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.distributions.compound import Independent, TransformedDistribution
from mpgrad.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from mpgrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.gammas import Beta, Dirichlet, Gamma
from mpgrad.distributions.multivariate import MultivariateNormal
from mpgrad.distributions.parameters import euler_constant
from mpgrad.distributions.positive import InverseGamma, Pareto
from mpgrad.distributions.random_matrices import LowRankMultivariateNormal
from mpgrad.distributions.relaxed import ContinuousBernoulli
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.comparison import logical_or
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.special import digamma, lgamma
from mpgrad.ops.elementwise.transcendental import erf, exp, log, log1p, xlogy
from mpgrad.ops.linear_algebra.linear_systems import solve_triangular
from mpgrad.ops.neural.activation import softplus
from mpgrad.ops.new_tensors.creation import full
from mpgrad.recording.tensors.tensor import Tensor

_TABLE: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Any], Any]:
    """Let a function ``(p, q)`` give the divergence of these types of distributions."""

    def register(function: Any) -> Any:
        _TABLE[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """``E_p[log p - log q]`` for each distribution of the batch, in nats.

    Raises:
        NotImplementedError: no formula is known for these two.
    """
    found = [
        (kinds, function)
        for kinds, function in _TABLE.items()
        if isinstance(p, kinds[0]) and isinstance(q, kinds[1])
    ]
    if not found:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
            f"{type(q).__name__}"
        )
    ranks = type(p).__mro__, type(q).__mro__
    return min(found, key=lambda entry: [r.index(k) for r, k in zip(ranks, entry[0], strict=True)])[
        1
    ](p, q)


@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


@register_kl(LogNormal, LogNormal)
def _log_normal(p: Any, q: Any) -> Tensor:
    return _normal(p, q)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Tensor:
    yes = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    yes = _infinite(q.probs == 0, yes).masked_fill(p.probs == 0, 0)
    no = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return yes + _infinite(q.probs == 1, no).masked_fill(p.probs == 1, 0)


def _infinite(where_: Tensor, value: Tensor) -> Tensor:
    """``value``, and infinity where q allows less than p does."""
    return where(where_, math.inf, value).to(value.dtype)  # type: ignore[no-any-return]


@register_kl(Binomial, Binomial)
def _binomial(p: Any, q: Any) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError(
            "KL between Binomials where q.total_count > p.total_count is not implemented"
        )
    return _infinite(p.total_count > q.total_count, p.total_count * _bernoulli(p, q))


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = where(q.probs == 0, math.inf, terms)
    return where(p.probs == 0, 0.0, terms).to(p.logits.dtype).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: Any, q: Any) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Geometric, Geometric)
def _geometric(p: Any, q: Any) -> Tensor:
    return -p.entropy() - log(1 - q.probs) / p.probs - q.logits


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: Any, q: Any) -> Tensor:
    return _normal(p._base, q._base)


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Any, q: Any) -> Tensor:
    """Chyzak and Nielsen, "A closed-form formula for the Kullback-Leibler divergence between Cauchy
    distributions", 2019."""
    return log((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2) - log(4 * p.scale * q.scale)


@register_kl(Pareto, Pareto)
def _pareto(p: Any, q: Any) -> Tensor:
    cross = -log(q.alpha) - q.alpha * log(q.scale) + (q.alpha + 1) * _mean_log(p)
    return _infinite(p.scale < q.scale, cross - p.entropy())


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
@register_kl(Beta, ContinuousBernoulli)
def _to_continuous_bernoulli(p: Any, q: Any) -> Tensor:
    return -p.mean * q.logits - log1p(-q.probs) - q._log_factor() - p.entropy()


@register_kl(Poisson, Poisson)
def _poisson(p: Any, q: Any) -> Tensor:
    return p.rate * (log(p.rate) - log(q.rate)) - (p.rate - q.rate)


@register_kl(Exponential, Exponential)
def _exponential(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return -log(ratio) + ratio - 1


@register_kl(Laplace, Laplace)
def _laplace(p: Any, q: Any) -> Tensor:
    away = absolute(p.loc - q.loc)
    ratio = p.scale / q.scale
    return -log(ratio) + away / q.scale + ratio * exp(-away / p.scale) - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Tensor:
    found = log((q.high - q.low) / (p.high - p.low))
    return where((q.low > p.low) | (q.high < p.high), math.inf, found).to(found.dtype)


@register_kl(Gamma, Gamma)
def _gamma(p: Any, q: Any) -> Tensor:
    return (
        q.concentration * log(p.rate / q.rate)
        + lgamma(q.concentration)
        - lgamma(p.concentration)
        + (p.concentration - q.concentration) * digamma(p.concentration)
        + (q.rate - p.rate) * (p.concentration / p.rate)
    )


@register_kl(InverseGamma, InverseGamma)
def _inverse_gamma(p: Any, q: Any) -> Tensor:
    return _gamma(p._base, q._base)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    sizes = lgamma(total) - lgamma(b.sum(-1)) - (lgamma(a) - lgamma(b)).sum(-1)
    return sizes + ((a - b) * (digamma(a) - digamma(total).unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Any, q: Any) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(MultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two (Low Rank) Multivariate Normals with different event "
            "shapes cannot be computed"
        )
    spread = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    away = solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False)
    squares = (spread**2).sum((-2, -1)) + (away**2).sum((-2, -1))
    return _log_size(q) - _log_size(p) + 0.5 * (squares - p.event_shape[0])


def _log_size(p: Any) -> Tensor:
    """Half the logarithm of the determinant of the covariance."""
    return log(p.scale_tril.diagonal(dim1=-2, dim2=-1)).sum(-1)


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence of Independents of different dimensions")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))  # type: ignore[no-any-return]


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: Any, q: Any) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("kl_divergence of distributions with other transforms")
    return kl_divergence(p.base_dist, q.base_dist)


# ---------------------------------------------------------------------- different kinds


def _mean_log(p: Any) -> Any:
    """``E_p[log x]``."""
    if isinstance(p, Beta):
        return digamma(p.concentration1) - digamma(p.concentration1 + p.concentration0)
    if isinstance(p, Exponential):
        return -log(p.rate) - euler_constant
    if isinstance(p, Pareto):
        return log(p.scale) + 1 / p.alpha
    return _mean_log_between(p.low, p.high)


def _mean_log_between(low: Tensor, high: Tensor) -> Tensor:
    """The mean of ``log x`` from ``low`` to ``high``."""
    return (xlogy(high, high) - xlogy(low, low)) / (high - low) - 1


def _mean_exp(p: Any, t: Tensor) -> Tensor:
    """``E_p[exp(t x)]``."""
    if isinstance(p, Exponential):
        return p.rate / (p.rate - t)
    if isinstance(p, Gamma):
        return (1 - t / p.rate) ** -p.concentration
    if isinstance(p, Gumbel):
        return exp(p.loc * t + lgamma(1 - p.scale * t))
    if isinstance(p, Normal):
        return exp(p.loc * t + 0.5 * (p.scale * t) ** 2)
    return (exp(t * p.high) - exp(t * p.low)) / (t * (p.high - p.low))


def _registered(kinds: tuple[type, ...], q: type) -> Callable[[Any], Any]:
    """``register_kl`` of a function for several kinds of p."""

    def register(function: Any) -> Any:
        for kind in kinds:
            register_kl(kind, q)(function)
        return function

    return register


@_registered(
    (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform), Normal
)
def _to_normal(p: Any, q: Any) -> Tensor:
    square = (p.variance + (p.mean - q.loc) ** 2) / q.scale**2
    return 0.5 * (math.log(2 * math.pi) + square) + log(q.scale) - p.entropy()


@_registered((Beta, ContinuousBernoulli, Gamma, Pareto, Uniform), Exponential)
def _to_exponential(p: Any, q: Any) -> Tensor:
    return _if_positive(p, q.rate * p.mean - log(q.rate) - p.entropy())


@_registered((Beta, Exponential, Pareto, Uniform), Gamma)
def _to_gamma(p: Any, q: Any) -> Tensor:
    shape, rate = q.concentration, q.rate
    cross = lgamma(shape) - shape * log(rate) - (shape - 1) * _mean_log(p) + rate * p.mean
    return _if_positive(p, cross - p.entropy())


def _if_positive(p: Any, found: Tensor) -> Tensor:
    return _infinite(p.low < 0, found) if isinstance(p, Uniform) else found


@_registered((Exponential, Gamma, Gumbel, Normal, Uniform), Gumbel)
def _to_gumbel(p: Any, q: Any) -> Tensor:
    standard = (p.mean - q.loc) / q.scale
    rest = _mean_exp(p, -1 / q.scale) * exp(q.loc / q.scale)
    return log(q.scale) + standard + rest - p.entropy()


@register_kl(Normal, Laplace)
def _normal_to_laplace(p: Any, q: Any) -> Tensor:
    away, spread = p.loc - q.loc, p.scale
    near = spread * math.sqrt(2 / math.pi) * exp(-0.5 * (away / spread) ** 2)
    distance = near + away * erf(away / (math.sqrt(2) * spread))
    return log(2 * q.scale) + distance / q.scale - p.entropy()


@register_kl(Uniform, Beta)
def _uniform_to_beta(p: Any, q: Any) -> Tensor:
    a, b = q.concentration1, q.concentration0
    size = lgamma(a) + lgamma(b) - lgamma(a + b)
    logs = (a - 1) * _mean_log(p) + (b - 1) * _mean_log_between(1 - p.high, 1 - p.low)
    return _if_inside(p, size - logs - p.entropy())


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_to_continuous_bernoulli(p: Any, q: Any) -> Tensor:
    return _if_inside(p, _to_continuous_bernoulli(p, q))


def _if_inside(p: Any, found: Tensor) -> Tensor:
    """Infinity unless p lies between 0 and 1."""
    return _infinite(logical_or(p.low < 0, p.high > 1), found)


@register_kl(Uniform, Pareto)
def _uniform_to_pareto(p: Any, q: Any) -> Tensor:
    cross = -log(q.alpha) - q.alpha * log(q.scale) + (q.alpha + 1) * _mean_log(p)
    return _infinite(p.low < q.scale, cross - p.entropy())


@_registered((Beta, ContinuousBernoulli), Uniform)
def _to_uniform(p: Any, q: Any) -> Tensor:
    return _infinite(logical_or(q.low > 0, q.high < 1), log(q.high - q.low) - p.entropy())


@register_kl(Bernoulli, Poisson)
def _bernoulli_to_poisson(p: Any, q: Any) -> Tensor:
    return q.rate - p.probs * log(q.rate) - p.entropy()


@_registered((Poisson,), Bernoulli)
@_registered((Poisson,), Binomial)
@_registered((Beta, ContinuousBernoulli), Pareto)
@_registered((Exponential, Gamma, Gumbel, Laplace, Normal, Pareto), Beta)
@_registered((Exponential, Gamma, Gumbel, Laplace, Normal, Pareto), ContinuousBernoulli)
@_registered((Exponential, Gamma, Gumbel, Laplace, Normal), Pareto)
@_registered((Exponential, Gamma, Gumbel, Laplace, Normal, Pareto), Uniform)
@_registered((Gumbel, Laplace, Normal), Exponential)
@_registered((Gumbel, Laplace, Normal), Gamma)
def _never_finite(p: Any, q: Any) -> Tensor:
    """The support of p is no part of that of q."""
    return full(p.mean.shape, math.inf, dtype=p.mean.dtype, device=p.mean.device)
