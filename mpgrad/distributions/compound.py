"""Distributions of distributions: Independent, TransformedDistribution and MixtureSameFamily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.distributions import constraints
from mpgrad.distributions.discrete import Categorical
from mpgrad.distributions.distribution import Constraints, Distribution
from mpgrad.distributions.transform import ComposeTransform, Transform, sum_last
from mpgrad.ops.by_index.indexing import gather
from mpgrad.ops.neural.activation import log_softmax
from mpgrad.ops.reductions.reduction import logsumexp
from mpgrad.ops.shapes.shape import expand, reshape
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


class Independent(Distribution):
    """The last dimensions of a batch as parts of one event.

    Args:
        base_distribution: the distribution of the components.
        reinterpreted_batch_ndims: how many.
        validate_args: check values.

    Raises:
        ValueError: the batch has fewer.
    """

    arg_constraints: Constraints = {}

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
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        keep = len(batch) - reinterpreted_batch_ndims
        event = (*batch[keep:], *base_distribution.event_shape)
        super().__init__(batch[:keep], event, validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        """That of the components."""
        found = self.base_dist.support
        if self.reinterpreted_batch_ndims:
            found = constraints.independent(found, self.reinterpreted_batch_ndims)
        return found

    def _summed(self, x: Tensor) -> Tensor:
        return sum_last(x, self.reinterpreted_batch_ndims)

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

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        inner = self.event_shape[: self.reinterpreted_batch_ndims]
        return self._with(batch_shape, base_dist=self.base_dist.expand((*batch_shape, *inner)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of what transforms make of draws.

    Args:
        base_distribution: of the draws.
        transforms: the first one is applied first. Where they take values of more dimensions than
            an event of the base has, dimensions of its batch become parts of an event.
        validate_args: check values.

    Raises:
        ValueError: the base has too few dimensions, or one is no Transform.
    """

    arg_constraints: Constraints = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        given = [transforms] if isinstance(transforms, Transform) else transforms
        if not isinstance(given, list | tuple) or not all(isinstance(t, Transform) for t in given):
            raise ValueError(
                f"transforms must be a Transform or a list of Transforms, but was {transforms!r}"
            )
        self.transforms = list(given)
        whole = ComposeTransform(self.transforms)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        if len(shape) < whole.domain.event_dim:
            raise ValueError(
                "base_distribution needs to have shape with size at least "
                f"{whole.domain.event_dim}, but got {shape}."
            )
        made = whole.forward_shape(shape)
        widened = whole.inverse_shape(made)
        if tuple(widened) != shape:
            count = len(widened) - len(base_distribution.event_shape)
            base_distribution = base_distribution.expand(widened[:count])
        more = whole.domain.event_dim - len(base_distribution.event_shape)
        if more > 0:
            base_distribution = Independent(base_distribution, more, validate_args=False)
        self.base_dist = base_distribution
        event = whole.codomain.event_dim + max(-more, 0)
        cut = len(made) - event
        super().__init__(made[:cut], made[cut:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @constraints.dependent_property
    def support(self) -> Any:
        """What the last transform gives."""
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        missing = len(self.event_shape) - found.event_dim
        return constraints.independent(found, missing) if missing > 0 else found

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
        self._validate_sample(value)
        y, dims, change = value, len(self.event_shape), None
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            slope = sum_last(
                transform.log_abs_det_jacobian(x, y), dims - transform.domain.event_dim
            )
            change = slope if change is None else change + slope
            y = x
        found = sum_last(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))
        return found if change is None else found - change

    def _sign(self) -> Any:
        found: Any = 1
        for transform in self.transforms:
            found = found * transform.sign
        return found

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        sign, found = self._sign(), self.base_dist.cdf(value)
        return found if isinstance(sign, int) and sign == 1 else sign * (found - 0.5) + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        sign = self._sign()
        if not (isinstance(sign, int) and sign == 1):
            value = sign * (value - 0.5) + 0.5
        return self._transformed(self.base_dist.icdf(value))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        shape = ComposeTransform(self.transforms).inverse_shape((*batch_shape, *self.event_shape))
        count = len(shape) - len(self.base_dist.event_shape)
        return self._with(batch_shape, base_dist=self.base_dist.expand(shape[:count]))


class MixtureSameFamily(Distribution):
    """One of the distributions along the last dimension of a batch, chosen by another one.

    Args:
        mixture_distribution: Categorical over them.
        component_distribution: the batch.
        validate_args: check values.

    Raises:
        ValueError: they are no such distributions, or have other batches or counts.
    """

    arg_constraints: Constraints = {}

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                "The Mixture distribution needs to be an instance of torch.distributions."
                "Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution need to be an instance of torch.distributions."
                "Distribution"
            )
        batch = component_distribution.batch_shape
        for own, other in zip(mixture_distribution.batch_shape[::-1], batch[-2::-1], strict=False):
            if own not in (1, other) and other != 1:
                raise ValueError(
                    f"`mixture_distribution.batch_shape` ({mixture_distribution.batch_shape}) is "
                    "not compatible with `component_distribution.batch_shape`"
                    f"({batch})"
                )
        count = mixture_distribution.param_shape[-1]
        if batch[-1] != count:
            raise ValueError(
                f"`mixture_distribution component` ({count}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({batch[-1]})"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args)

    @property
    def mixture_distribution(self) -> Categorical:
        """Which component is chosen."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    @constraints.dependent_property
    def support(self) -> Any:
        """That of the components."""
        return constraints.MixtureSameFamilyConstraint(self.component_distribution.support)

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

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        components = self.component_distribution.expand(
            (*batch_shape, self.component_distribution.batch_shape[-1])
        )
        return self._with(
            batch_shape,
            _mixture_distribution=self.mixture_distribution.expand(batch_shape),
            _component_distribution=components,
        )

    def __repr__(self) -> str:
        return (
            f"MixtureSameFamily(\n  {self.mixture_distribution!r},\n  "
            f"{self.component_distribution!r})"
        )
