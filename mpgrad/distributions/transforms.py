"""Transforms of random numbers: invertible functions, with the logarithm of their slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.distributions import constraints
from mpgrad.distributions.parameters import broadcast_all, least, resolution
from mpgrad.distributions.transform import ComposeTransform, Transform
from mpgrad.distributions.transform import Inverse as _InverseTransform  # noqa: F401
from mpgrad.distributions.vector_transforms import (
    CatTransform,
    CorrCholeskyTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    ReshapeTransform,
    SoftmaxTransform,
    StackTransform,
    StickBreakingTransform,
)
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import pow as power
from mpgrad.ops.elementwise.minimum_maximum import clamp
from mpgrad.ops.elementwise.transcendental import atanh, exp, expm1, log, sigmoid, tanh
from mpgrad.ops.neural.activation import softplus
from mpgrad.ops.new_tensors.creation import full_like
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]

identity_transform = ComposeTransform([])


class _Increasing(Transform):
    """An increasing function of each element, without parameters."""

    bijective = True
    sign = 1
    domain = constraints.real
    codomain: Any = constraints.real

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = Transform.__hash__


class ExpTransform(_Increasing):
    """``exp(x)``."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(_Increasing):
    """``1 / (1 + exp(-x))``."""

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return clamp(sigmoid(x), least(x), 1 - resolution(x))

    def _inverse(self, y: Tensor) -> Tensor:
        y = clamp(y, least(y), 1 - resolution(y))
        return log(y) - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(_Increasing):
    """``log(1 + exp(x))``; ``x`` itself above 20."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(-expm1(-y)) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(_Increasing):
    """``tanh(x)``.

    Its inverse is inexact, or infinite, where ``tanh`` is nearly 1: use ``cache_size=1``.
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - softplus(-2 * x))


class AbsTransform(_Increasing):
    """``abs(x)``; as inverse serves the positive number."""

    bijective = False
    codomain = constraints.positive

    @property
    def sign(self) -> int:  # type: ignore[override]
        raise NotImplementedError("AbsTransform is neither increasing nor decreasing")

    def _call(self, x: Tensor) -> Tensor:
        return absolute(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class PowerTransform(Transform):
    """``x ** exponent`` of positive numbers."""

    bijective = True
    domain = constraints.positive
    codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        (self.exponent,) = broadcast_all(exponent)

    @property
    def sign(self) -> Tensor:  # type: ignore[override]
        """Of the exponent."""
        return self.exponent.sign()

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._again(cache_size, self.exponent)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return power(x, self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return power(y, 1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log(absolute(self.exponent * y / x))

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return self._broadcast(shape, self.exponent)

    inverse_shape = forward_shape


class AffineTransform(Transform):
    """``loc + scale * x``.

    Args:
        loc, scale: numbers, or Tensors.
        event_dim: dimensions of one value: 0 for numbers, 1 for vectors.
        cache_size: as in :class:`Transform`.
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    @property
    def event_dim(self) -> int:
        """Dimensions of one value."""
        return self._event_dim

    @property
    def domain(self) -> Any:  # type: ignore[override]
        """All real numbers, or vectors of them."""
        if not self._event_dim:
            return constraints.real
        return constraints.independent(constraints.real, self._event_dim)

    codomain = domain

    @property
    def sign(self) -> Any:  # type: ignore[override]
        """Of the scale."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return int(self.scale > 0) - int(self.scale < 0)

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._again(cache_size, self.loc, self.scale, self._event_dim)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AffineTransform) and all(
            bool((one == two).all()) if isinstance(one == two, Tensor) else one == two
            for one, two in ((self.loc, other.loc), (self.scale, other.scale))
        )

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale = self.scale
        if isinstance(scale, Tensor):
            found = log(absolute(scale))
        else:
            found = full_like(x, math.log(abs(scale)))
        shape = tuple(x.shape)
        if self._event_dim:
            # An element of scale may stand for several of the event.
            found = found.expand(self._broadcast(found.shape, x)) if found.ndim else found + 0 * x
            found = found.sum(tuple(range(-self._event_dim, 0)))
            shape = shape[: -self._event_dim]
        return found.expand(shape)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return self._broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution of numbers: its draws become uniform."""

    bijective = True
    codomain = constraints.unit_interval
    sign = 1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:  # type: ignore[override]
        """The support of the distribution."""
        return self.distribution.support

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._again(cache_size, self.distribution)

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)  # type: ignore[no-any-return]


__getattr__ = _missing_from(__name__)
