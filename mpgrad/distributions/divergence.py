"""``kl_divergence``: the Kullback-Leibler divergence of one distribution from another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.distributions.continuous import Exponential, Laplace, LogNormal, Normal, Uniform
from mpgrad.distributions.discrete import (
    Bernoulli,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.gammas import Beta, Dirichlet, Gamma
from mpgrad.distributions.multivariate import Independent, MultivariateNormal
from mpgrad.ops.activation import softplus
from mpgrad.ops.arithmetic import abs as absolute
from mpgrad.ops.choices import where
from mpgrad.ops.linear_systems import solve_triangular
from mpgrad.ops.special import digamma, lgamma
from mpgrad.ops.transcendental import exp, log
from mpgrad.tensors.tensor import Tensor

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
    no = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return yes + no


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
def _multivariate_normal(p: Any, q: Any) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be "
            "computed"
        )
    spread = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    away = solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False)
    squares = (spread**2).sum((-2, -1)) + (away**2).sum((-2, -1))
    return q._log_size() - p._log_size() + 0.5 * (squares - p.event_shape[0])


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence of Independents of different dimensions")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))  # type: ignore[no-any-return]
