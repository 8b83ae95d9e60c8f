"""Distributions of whole numbers and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.distributions import constraints
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.parameters import (
    broadcast_all,
    lazy_property,
    least,
    logits_to_probs,
    probs_to_logits,
)
from mpgrad.ops.by_index.indexing import gather
from mpgrad.ops.elementwise.minimum_maximum import clamp, minimum
from mpgrad.ops.elementwise.special import lgamma
from mpgrad.ops.elementwise.transcendental import log, log1p, xlogy
from mpgrad.ops.neural.activation import softplus
from mpgrad.ops.neural.embedding import one_hot
from mpgrad.ops.neural.loss import binary_cross_entropy_with_logits
from mpgrad.ops.new_tensors.creation import arange
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import bernoulli, default_generator, multinomial, poisson, rand
from mpgrad.ops.reductions.extrema import argmax
from mpgrad.ops.shapes.shape import expand, reshape
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


def _of_two(probs: Any, logits: Any) -> Tensor:
    """The one that is given.

    Raises:
        ValueError: both are, or neither.
    """
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return probs if logits is None else logits  # type: ignore[no-any-return]


class _Trials(Distribution):
    """A chance of success for each: ``probs``, or its ``logits``."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        (given,) = broadcast_all(_of_two(probs, logits))
        if logits is None:
            self.probs = given
        else:
            self.logits = given
        super().__init__(given.shape, (), validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of success."""
        return logits_to_probs(self.logits, is_binary=True)

    @lazy_property
    def logits(self) -> Tensor:
        """The logarithm of the odds of success."""
        return probs_to_logits(self.probs, is_binary=True)

    @property
    def _given(self) -> Tensor:
        """``probs`` or ``logits``."""
        return self.probs if "probs" in vars(self) else self.logits

    @property
    def param_shape(self) -> Any:
        """Of ``probs``."""
        return self._given.shape


class Bernoulli(_Trials):
    """1 with a probability, else 0."""

    has_enumerate_support = True
    support = constraints.boolean

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        found = (self.probs >= 0.5).to(self.probs.dtype)
        return found.masked_fill(self.probs == 0.5, float("nan"))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return bernoulli(expand(self.probs, *self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self._given.dtype, device=self._given.device)
        return _along_first(values, self._batch_shape, expand)


class Geometric(_Trials):
    """How many failures come before the first success."""

    support = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args)
        if self._validate_args and logits is None and not bool((self.probs > 0).all()):
            raise ValueError(
                f"Expected parameter probs (Tensor of shape {tuple(self.probs.shape)}) of "
                f"distribution {self!r} to be positive but found invalid values:\n{self.probs}"
            )

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            u = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
            return (log(clamp(u, min=least(u))) / log1p(-self.probs)).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        certain = (probs == 1) & (value == 0)
        return value * log1p(-probs.masked_fill(certain, 0)) + log(self.probs)

    def entropy(self) -> Tensor:
        return (
            binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
        )


class Binomial(_Trials):
    """How many of ``total_count`` trials succeed.

    Raises:
        ImportError: SciPy is not installed (of ``log_prob``).
    """

    has_enumerate_support = True
    arg_constraints = {"total_count": constraints.nonnegative_integer, **_Trials.arg_constraints}

    def __init__(
        self,
        total_count: Any = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        count, given = broadcast_all(total_count, _of_two(probs, logits))
        self.total_count = count.to(given.dtype)
        probs, logits = (given, None) if logits is None else (None, given)
        super().__init__(probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """From 0 to ``total_count``."""
        return constraints.integer_interval(0, self.total_count)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a first dimension.

        Raises:
            NotImplementedError: the counts differ.
        """
        values = arange(self._count("enumerate_support") + 1, dtype=self._given.dtype)
        return _along_first(values.to(self._given.device), self._batch_shape, expand)

    def _count(self, what: str) -> int:
        count = int(self.total_count.max().item())
        if bool((self.total_count != count).any().item()):
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{what}`.")
        return count

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return minimum(((self.total_count + 1) * self.probs).floor(), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        counts, chances = (on_host(x.detach()._array) for x in (self.total_count, self.probs))
        drawn = default_generator().binomial(counts.astype(np.int64), chances, shape)
        return beside(self.probs, np.asarray(drawn, chances.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        count, logits = self.total_count, self.logits
        ways = lgamma(count + 1) - lgamma(value + 1) - lgamma(count - value + 1)
        return ways + value * logits - count * softplus(logits)

    def entropy(self) -> Tensor:
        """By all values.

        Raises:
            NotImplementedError: the counts differ.
        """
        self._count("entropy")
        logarithms = self.log_prob(self.enumerate_support())
        return -(logarithms.exp() * logarithms).sum(0)


class Poisson(Distribution):
    """How many events happen at a ``rate``.

    Raises:
        ImportError: SciPy is not installed (of ``log_prob``).
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return poisson(expand(self.rate, *self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return xlogy(value, rate) - rate - lgamma(value + 1)


def _along_first(values: Tensor, batch: tuple[int, ...], expanded: bool) -> Tensor:
    event = values.shape[1:]
    column = reshape(values, (-1, *(1,) * len(batch), *event))
    return expand(column, -1, *batch, *event) if expanded else column


class Categorical(Distribution):
    """One of several classes, whose chances are the last dimension of ``probs`` or ``logits``.

    Args:
        probs: not negative; they need not sum to 1.
        logits: unnormalised logarithms of them.

    Raises:
        ValueError: both are given, or neither, or they have no dimension.
    """

    has_enumerate_support = True
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = _of_two(probs, logits)
        if given.ndim < 1:
            name = "probs" if logits is None else "logits"
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if logits is None:
            self.probs = given / given.sum(-1, keepdim=True)
        else:
            self.logits = given - given.logsumexp(-1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], (), validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of each class."""
        return logits_to_probs(self.logits)

    @lazy_property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @property
    def _given(self) -> Tensor:
        """``probs`` or ``logits``."""
        return self.probs if "probs" in vars(self) else self.logits

    @property
    def param_shape(self) -> Any:
        """Of ``probs``."""
        return self._given.shape

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """The numbers of the classes."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        return self.probs[..., 0] * float("nan")

    @property
    def mode(self) -> Tensor:
        return argmax(self.probs, -1)

    @property
    def variance(self) -> Tensor:
        return self.probs[..., 0] * float("nan")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = tuple(sample_shape)
        rows = reshape(self.probs.detach(), (-1, self._num_events))
        drawn = multinomial(rows, int(np.prod(shape, dtype=int)), True).mT
        return reshape(drawn, (*shape, *self._batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        places = value.long().unsqueeze(-1)
        shape = np.broadcast_shapes(tuple(places.shape[:-1]), self._batch_shape)
        logits = expand(self.logits, *shape, self._num_events)
        return gather(logits, -1, expand(places, *shape, 1)).squeeze(-1)

    def entropy(self) -> Tensor:
        lowest = -1 / least(self.logits)
        return -(clamp(self.logits, min=lowest) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, device=self._given.device)
        return _along_first(values, self._batch_shape, expand)


class OverClasses(Distribution):
    """A distribution of vectors with an element for each class of a ``Categorical``."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of each class."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Any:
        """Of ``probs``."""
        return self._categorical.param_shape

    def __repr__(self) -> str:
        return repr(self._categorical).replace("Categorical", type(self).__name__, 1)


class OneHotCategorical(OverClasses):
    """``Categorical`` whose draws are vectors with a 1 at the class."""

    has_enumerate_support = True
    support = constraints.one_hot

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return one_hot(self._categorical.mode, self.event_shape[0]).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self._categorical.sample(sample_shape)
        return one_hot(drawn, self.event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self._categorical.log_prob(argmax(value, -1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self.event_shape[0]
        values = one_hot(arange(count, device=self.probs.device), count).to(self.probs.dtype)
        return _along_first(values, self._batch_shape, expand)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """``OneHotCategorical`` whose draws pass their gradient on to the probabilities (Bengio et al.,
    "Estimating or propagating gradients through stochastic neurons", 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self.sample(sample_shape)
        return drawn + (self.probs - self.probs.detach())
