"""Transforms of random numbers that can be inverted: with the logarithm of their slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpgrad.ops.activation import softplus
from mpgrad.ops.arithmetic import abs as absolute
from mpgrad.ops.arithmetic import pow as power
from mpgrad.ops.choices import clamp
from mpgrad.ops.piecewise import logit
from mpgrad.ops.shape import expand
from mpgrad.ops.transcendental import atanh, exp, log, sigmoid, tanh
from mpgrad.tensors.tensor import Tensor


class Transform:
    """A function of each element that can be inverted.

    Args:
        cache_size: 1 keeps the last pair, so that the inverse of a value that was just made is
            exact: ``atanh(tanh(x))`` is far from ``x``, or infinite, where ``tanh`` is nearly 1.

    Raises:
        ValueError: ``cache_size`` is neither 0 nor 1.
    """

    #: 1 if it is increasing, -1 if it is decreasing.
    sign: Any = 1
    bijective = True

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._last: tuple[Tensor | None, Tensor | None] = (None, None)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._cache_size:
            return self._call(x)
        if self._last[1] is None or self._last[0] is not x:
            self._last = (x, self._call(x))
        return self._last[1]  # type: ignore[return-value]

    def _inverse_call(self, y: Tensor) -> Tensor:
        if not self._cache_size:
            return self._inverse(y)
        if self._last[0] is None or self._last[1] is not y:
            self._last = (self._inverse(y), y)
        return self._last[0]  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": (None, None)}

    @property
    def inv(self) -> Any:
        """The inverse transform."""
        return _Inverse(self)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the slope at ``x``, with ``y`` the value there."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._forward = transform
        self.sign = transform.sign

    @property
    def inv(self) -> Any:
        return self._forward

    def _call(self, x: Tensor) -> Tensor:
        return self._forward._inverse_call(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._forward(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._forward.log_abs_det_jacobian(y, x)


class ComposeTransform(Transform):
    """Several transforms in their order."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.sign = math.prod(part.sign for part in self.parts)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total = x * 0
        for part in self.parts:
            value = part(x)
            total, x = total + part.log_abs_det_jacobian(x, value), value
        return total


class ExpTransform(Transform):
    """``exp(x)``."""

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """``x ** exponent`` of positive numbers."""

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    def _call(self, x: Tensor) -> Tensor:
        return power(x, self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return power(y, 1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log(absolute(self.exponent * y / x))


class SigmoidTransform(Transform):
    """``1 / (1 + exp(-x))``."""

    def _call(self, x: Tensor) -> Tensor:
        return clamp(sigmoid(x), 1e-30, 1 - 1e-16)

    def _inverse(self, y: Tensor) -> Tensor:
        return logit(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(Transform):
    """``log(1 + exp(x))``."""

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(-(exp(-y) - 1)) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(Transform):
    """``tanh(x)``."""

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - softplus(-2 * x))


class AffineTransform(Transform):
    """``loc + scale * x``."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    @property
    def sign(self) -> Any:  # type: ignore[override]
        """Of the scale."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return int(self.scale > 0) - int(self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.scale, Tensor):
            found = log(absolute(self.scale))
            found = expand(found, *x.shape) if found.ndim <= x.ndim else found
        else:
            found = x * 0 + math.log(abs(self.scale))
        dims = tuple(range(-self.event_dim, 0))
        return found.sum(dims) if dims else found
