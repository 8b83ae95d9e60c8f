"""Distribution: what all distributions share: shapes, drawing, and checks of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mpgrad.devices.device_arrays import on_host
from mpgrad.graph.grad_modes import no_grad
from mpgrad.ops.creation import as_tensor
from mpgrad.ops.joining import broadcast_tensors
from mpgrad.ops.shape import expand
from mpgrad.ops.transcendental import exp
from mpgrad.tensors.tensor import Tensor

Shape = tuple[int, ...]
#: Parameters, and whether elements are allowed.
Constraints = dict[str, Callable[[Any], Any]]


def positive(x: Any) -> Any:
    """Whether elements are above 0."""
    return x > 0


def boolean(x: Any) -> Any:
    """Whether elements are 0 or 1."""
    return (x == 0) | (x == 1)


def not_negative(x: Any) -> Any:
    """Whether elements are at least 0."""
    return x >= 0


def probabilities(x: Any) -> Any:
    """Whether elements lie from 0 to 1."""
    return (x >= 0) & (x <= 1)


def real(x: Any) -> Any:
    """Whether elements are numbers."""
    return x == x


class Distribution:
    """A batch of distributions, each over events.

    Args:
        batch_shape: of independent distributions with parameters of their own.
        event_shape: of one draw.
        validate_args: check parameters and values; by default done.
    """

    has_rsample = False
    has_enumerate_support = False
    #: Parameters and what holds for their elements.
    _constraints: ClassVar[Constraints] = {}
    #: The constraint on values; None: any value.
    _support: Callable[[Any], Any] | None = None
    _validate_args = True

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, holds in self._constraints.items():
                value = vars(self).get(name)
                if isinstance(value, Tensor) and not np.all(holds(on_host(value._array))):
                    raise ValueError(
                        f"Expected parameter {name.lstrip('_')} of shape {tuple(value.shape)} of "
                        f"distribution {self!r} to satisfy the constraint {holds.__name__}, but "
                        f"found invalid values: {value}"
                    )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their arguments by default."""
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Shape:
        """Of independent distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
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
        shape = tuple(batch_shape)
        found = type(self).__new__(type(self))
        for name, value in vars(self).items():
            keeps = not isinstance(value, Tensor) or name == "_values"
            setattr(found, name, value if keeps else self._expanded(value, shape))
        found._batch_shape = shape
        return found

    def _expanded(self, value: Tensor, shape: Shape) -> Tensor:
        """A parameter: its batch is followed by what belongs to one distribution."""
        return expand(value, *shape, *value.shape[len(self._batch_shape) :])

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Shape:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

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
        if count and tuple(value.shape[-count:]) != self._event_shape:
            raise ValueError(
                f"The right-most size of value must match event_shape: {tuple(value.shape)} vs "
                f"{self._event_shape}."
            )
        np.broadcast_shapes(tuple(value.shape), self._extended_shape())
        support = type(self)._support
        if support is not None and not np.all(support(on_host(value._array))):
            raise ValueError(
                f"Expected value argument (Tensor of shape {tuple(value.shape)}) to be within the "
                f"support ({support.__name__}) of the distribution {self!r}, but found invalid "
                f"values: {value}"
            )

    def __repr__(self) -> str:
        names = [name for name in self._constraints if name in vars(self)]
        parts = [
            f"{name.lstrip('_')}: {value if value.numel() == 1 else tuple(value.shape)}"
            for name in names
            if isinstance(value := vars(self)[name], Tensor)
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def together(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and Tensors as Tensors of one shape."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    made = [
        v
        if isinstance(v, Tensor)
        else as_tensor(float(v), **({} if like is None else {"dtype": like.dtype}))
        for v in values
    ]
    return broadcast_tensors(*made)
