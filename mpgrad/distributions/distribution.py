"""Distribution: what all distributions share: shapes, drawing, and checks of their parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from inspect import getattr_static
from typing import Any

import numpy as np

from mpgrad.base.size import Size
from mpgrad.distributions import constraints
from mpgrad.distributions.parameters import lazy_property
from mpgrad.ops.elementwise.transcendental import exp
from mpgrad.ops.shapes.shape import expand
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

Shape = tuple[int, ...]
#: Parameters, and the sets of their values.
Constraints = dict[str, constraints.Constraint]


class _NotDefined:
    """What a subclass has to define."""

    def __get__(self, instance: Any, owner: type) -> Any:
        raise NotImplementedError


class Distribution:
    """A batch of distributions, each over events.

    Args:
        batch_shape: of independent distributions with parameters of their own.
        event_shape: of one draw.
        validate_args: check parameters and values; by default done.

    Attributes:
        arg_constraints: the constraint on each parameter, by name.
        support: the constraint on values.
        has_rsample: whether draws have a gradient.
        has_enumerate_support: whether all values can be listed.

    Raises:
        ValueError: a parameter violates its constraint.
    """

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: Any = _NotDefined()
    support: Any = _NotDefined()
    _validate_args = True
    #: Parameters without a batch of their own.
    _shared: tuple[str, ...] = ()

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()

    def _check_parameters(self) -> None:
        """Raise ValueError if a parameter violates its constraint."""
        try:
            known = self.arg_constraints
        except NotImplementedError:
            known = {}
            warnings.warn(
                f"{type(self)} does not define `arg_constraints`. Please set "
                "`arg_constraints = {}` or initialize the distribution with `validate_args=False` "
                "to turn off validation.",
                stacklevel=4,
            )
        for name, constraint in known.items():
            if constraints.is_dependent(constraint):
                continue
            lazy = isinstance(getattr_static(type(self), name, None), lazy_property)
            if lazy and name not in vars(self):
                continue
            value = getattr(self, name)
            if not _holds(constraint, value):
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape "
                    f"{tuple(value.shape)}) of distribution {self!r} to satisfy the constraint "
                    f"{constraint!r}, but found invalid values:\n{value}"
                )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments by default.

        Raises:
            ValueError: ``value`` is no bool.
        """
        if value not in (True, False):
            raise ValueError
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Size:
        """Of independent distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """Of one draw."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """A most probable value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape (*sample_shape, *batch_shape, *event_shape), without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters.

        Raises:
            NotImplementedError: this distribution has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density (of the probability, for whole numbers) at ``value``."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most ``value``."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of ``cdf`` at ``value``."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The entropy of each distribution of the batch, in nats."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a first dimension.

        Raises:
            NotImplementedError: there are not finitely many, or it is not known.
        """
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return exp(self.entropy())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distributions, repeated to ``batch_shape``."""
        shape, changed = tuple(batch_shape), {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in self._shared:
                changed[name] = self._expanded(value, shape)
            elif isinstance(value, Distribution):
                changed[name] = value.expand(shape)
        return self._with(shape, **changed)

    def _with(self, batch_shape: Sequence[int], **changed: Any) -> Any:
        """A copy with another batch and other attributes."""
        found = type(self).__new__(type(self))
        vars(found).update(vars(self), **changed, _batch_shape=Size(batch_shape))
        return found

    def _expanded(self, value: Tensor, shape: Shape) -> Tensor:
        """A parameter: its batch is followed by what belongs to one distribution."""
        return expand(value, *shape, *value.shape[len(self._batch_shape) :])

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Any) -> None:
        """Check an argument of ``log_prob`` or ``cdf``.

        Raises:
            ValueError: its shape does not fit, or it lies outside the support.
        """
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        count = len(self._event_shape)
        if tuple(value.shape)[max(value.ndim - count, 0) :] != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.shape} vs "
                f"{self._event_shape}."
            )
        expected = self._extended_shape()
        try:
            np.broadcast_shapes(tuple(value.shape), tuple(expected))
        except ValueError:
            raise ValueError(
                "Value is not broadcastable with batch_shape+event_shape: "
                f"{value.shape} vs {expected}."
            ) from None
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(
                f"{type(self)} does not define `support` to enable sample validation. Please "
                "initialize the distribution with `validate_args=False` to turn off validation.",
                stacklevel=3,
            )
            return
        if not _holds(support, value):
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) "
                f"to be within the support ({support!r}) of the distribution {self!r}, but found "
                f"invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        parts = [
            f"{name}: {value if value.numel() == 1 else value.shape}"
            for name in self.arg_constraints
            if isinstance(value := vars(self).get(name), Tensor)
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def _holds(constraint: constraints.Constraint, value: Tensor) -> bool:
    """Whether all values satisfy ``constraint``."""
    with no_grad():
        return bool(constraint.check(value).all())
