"""Distributions of how often something happens: NegativeBinomial and Multinomial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.distributions import constraints
from mpgrad.distributions.discrete import Binomial, OverClasses, _of_two, _Trials
from mpgrad.distributions.gammas import Gamma
from mpgrad.distributions.parameters import broadcast_all
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.special import lgamma
from mpgrad.ops.elementwise.transcendental import exp, sigmoid
from mpgrad.ops.neural.activation import logsigmoid
from mpgrad.ops.neural.embedding import one_hot
from mpgrad.ops.new_tensors.creation import arange
from mpgrad.ops.random import poisson
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


class NegativeBinomial(_Trials):
    """How often something succeeds before the ``total_count``-th failure.

    Args:
        total_count: failures, not negative.
        probs: of a success; or
        logits: of it.
        validate_args: check parameters and values.
    """

    support = constraints.nonnegative_integer
    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        count, given = broadcast_all(total_count, _of_two(probs, logits))
        self.total_count = count.to(given.dtype)
        probs, logits = (given, None) if logits is None else (None, given)
        super().__init__(probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * exp(self.logits)

    @property
    def mode(self) -> Tensor:
        return clamp(((self.total_count - 1) * exp(self.logits)).floor(), min=0)

    @property
    def variance(self) -> Tensor:
        return self.mean / sigmoid(-self.logits)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            rates = Gamma(self.total_count, exp(-self.logits), False)
            return poisson(rates.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        count, logits = self.total_count, self.logits
        chances = count * logsigmoid(-logits) + value * logsigmoid(logits)
        total = count + value
        ways = lgamma(total) - lgamma(1 + value) - lgamma(count)
        return chances + where(total == 0, 0.0, ways).to(chances.dtype)


class Multinomial(OverClasses):
    """How often each class comes in ``total_count`` draws.

    Args:
        total_count: draws.
        probs: of the classes, in the last dimension; or
        logits: of them.
        validate_args: check parameters and values.

    Raises:
        NotImplementedError: ``total_count`` is no int.
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        """How often each class may come."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return one_hot(drawn, self._event_shape[0]).sum(0).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        ways = lgamma(value.sum(-1) + 1) - lgamma(value + 1).sum(-1)
        impossible = (value == 0) & (logits == float("-inf"))
        return ways + (logits.masked_fill(impossible, 0) * value).sum(-1)

    def entropy(self) -> Tensor:
        count, probs = self.total_count, self.probs
        whole = count * self._categorical.entropy() - lgamma(probs.new_tensor(count + 1.0))
        numbers = arange(1, count + 1, dtype=probs.dtype, device=probs.device)
        numbers = reshape(numbers, (-1, *(1,) * probs.ndim))
        chances = exp(Binomial(count, probs, validate_args=False).log_prob(numbers))
        return whole + (chances * lgamma(numbers + 1)).sum((0, -1))
