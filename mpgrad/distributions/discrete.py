"""Distributions of whole numbers and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mpgrad.devices.device_arrays import on_host
from mpgrad.distributions.distribution import (
    Constraints,
    Distribution,
    boolean,
    not_negative,
    probabilities,
    real,
    together,
)
from mpgrad.graph.grad_modes import no_grad
from mpgrad.ops.activation import softmax, softplus
from mpgrad.ops.choices import clamp, minimum
from mpgrad.ops.creation import arange
from mpgrad.ops.device_moves import beside
from mpgrad.ops.embedding import one_hot
from mpgrad.ops.extrema import argmax
from mpgrad.ops.indexing import gather
from mpgrad.ops.loss import binary_cross_entropy_with_logits
from mpgrad.ops.piecewise import logit
from mpgrad.ops.random import bernoulli, default_generator, multinomial, poisson, rand
from mpgrad.ops.shape import expand, reshape
from mpgrad.ops.special import lgamma
from mpgrad.ops.transcendental import log, log1p, sigmoid, xlogy
from mpgrad.tensors.tensor import Tensor


def _of_two(probs: Any, logits: Any) -> Tensor:
    """The one that is given.

    Raises:
        ValueError: both are, or neither.
    """
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return probs if logits is None else logits  # type: ignore[no-any-return]


def _inner(probs: Tensor) -> Tensor:
    """Probabilities kept away from 0 and 1 by the resolution of the dtype."""
    eps = float(np.finfo(probs.numpy(force=True).dtype).eps)
    return clamp(probs, eps, 1 - eps)


class _Trials(Distribution):
    """A chance of success for each: ``probs``, or its ``logits``."""

    _constraints: ClassVar[Constraints] = {"_probs": probabilities, "_logits": real}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        (given,) = together(_of_two(probs, logits))
        self._probs: Any = given if logits is None else None
        self._logits: Any = None if logits is None else given
        super().__init__(given.shape, (), validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        return sigmoid(self._logits) if self._probs is None else self._probs

    @property
    def logits(self) -> Tensor:
        """The logarithm of the odds of success."""
        return logit(_inner(self._probs)) if self._logits is None else self._logits


class Bernoulli(_Trials):
    """1 with a probability, else 0."""

    has_enumerate_support = True
    _support = staticmethod(boolean)

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
        logits, value = together(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self.probs.dtype, device=self.probs.device)
        return _along_first(values, self._batch_shape, expand)


class Geometric(_Trials):
    """How many failures come before the first success."""

    _support = staticmethod(not_negative)

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
            u = clamp(rand(shape, dtype=self.probs.dtype, device=self.probs.device), min=1e-30)
            return (log(u) / log1p(-self.probs)).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return value * log1p(-self.probs) + log(self.probs)

    def entropy(self) -> Tensor:
        return (
            binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
        )


class Binomial(_Trials):
    """How many of ``total_count`` trials succeed.

    Raises:
        ImportError: SciPy is not installed (of ``log_prob``).
    """

    _support = staticmethod(not_negative)

    def __init__(
        self,
        total_count: Any = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        count, given = together(total_count, _of_two(probs, logits))
        self.total_count = count
        probs, logits = (given, None) if logits is None else (None, given)
        super().__init__(probs, logits, validate_args)

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
        count = int(self.total_count.max().item())
        if bool((self.total_count != count).any().item()):
            raise NotImplementedError("Inhomogeneous total count not supported by `entropy`.")
        values = arange(count + 1, dtype=self.probs.dtype, device=self.probs.device)
        logarithms = self.log_prob(_along_first(values, self._batch_shape, True))
        return -(logarithms.exp() * logarithms).sum(0)


class Poisson(Distribution):
    """How many events happen at a ``rate``.

    Raises:
        ImportError: SciPy is not installed (of ``log_prob``).
    """

    _constraints: ClassVar[Constraints] = {"rate": not_negative}
    _support = staticmethod(not_negative)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
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
        rate, value = together(self.rate, value)
        return xlogy(value, rate) - rate - lgamma(value + 1)


def _along_first(values: Tensor, batch: tuple[int, ...], expanded: bool) -> Tensor:
    column = reshape(values, (-1, *(1,) * len(batch)))
    return expand(column, -1, *batch) if expanded else column


class Categorical(Distribution):
    """One of several classes, whose chances are the last dimension of ``probs`` or ``logits``.

    Args:
        probs: not negative; they need not sum to 1.
        logits: unnormalised logarithms of them.

    Raises:
        ValueError: both are given, or neither, or they have no dimension.
    """

    has_enumerate_support = True
    _constraints: ClassVar[Constraints] = {"_probs": not_negative, "_logits": real}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = _of_two(probs, logits)
        if given.ndim < 1:
            name = "probs" if logits is None else "logits"
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if logits is None:
            self._probs: Any = given / given.sum(-1, keepdim=True)
            self._logits: Any = None
        else:
            self._probs, self._logits = None, given - given.logsumexp(-1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], (), validate_args)

    @property
    def probs(self) -> Tensor:
        """The probability of each class."""
        return softmax(self._logits, -1) if self._probs is None else self._probs  # type: ignore[no-any-return]

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return log(_inner(self._probs)) if self._logits is None else self._logits  # type: ignore[no-any-return]

    @property
    def param_shape(self) -> tuple[int, ...]:
        """Of ``probs``."""
        return tuple(self.probs.shape)

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

    def _validate_sample(self, value: Any) -> None:
        super()._validate_sample(value)
        if self._validate_args:
            values = on_host(value._array)
            if np.any((values < 0) | (values >= self._num_events) | (values != np.floor(values))):
                raise ValueError(
                    f"Expected value argument (Tensor of shape {tuple(value.shape)}) to be within "
                    f"the support (IntegerInterval(lower_bound=0, upper_bound="
                    f"{self._num_events - 1})) of the distribution {self!r}, but found invalid "
                    f"values: {value}"
                )

    def entropy(self) -> Tensor:
        least = float(np.finfo(self.logits.numpy(force=True).dtype).min)
        return -(clamp(self.logits, min=least) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, device=self.probs.device)
        return _along_first(values, self._batch_shape, expand)

    def __repr__(self) -> str:
        name = "probs" if self._probs is not None else "logits"
        given = self._probs if self._probs is not None else self._logits
        size = given if given.numel() == 1 else tuple(given.shape)
        return f"{type(self).__name__}({name}: {size})"


class OverClasses(Distribution):
    """A distribution of vectors with an element for each class of a ``Categorical``."""

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


class OneHotCategorical(OverClasses):
    """``Categorical`` whose draws are vectors with a 1 at the class."""

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

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        probs = expand(self.probs, *batch_shape, *self.event_shape)
        return type(self)(probs=probs)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """``OneHotCategorical`` whose draws pass their gradient on to the probabilities (Bengio et al.,
    "Estimating or propagating gradients through stochastic neurons", 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self.sample(sample_shape)
        return drawn + (self.probs - self.probs.detach())
