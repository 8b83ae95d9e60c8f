"""Transform: what all transforms share; their inverses, and several of them in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from mpgrad.base.size import Size
from mpgrad.distributions import constraints
from mpgrad.ops.new_tensors.creation import zeros_like
from mpgrad.recording.tensors.tensor import Tensor


class Transform:
    """A function that can be inverted, with the logarithm of its slope.

    A subclass has ``domain``, ``codomain``, ``bijective``, ``_call``, ``_inverse`` and
    ``log_abs_det_jacobian``.

    Args:
        cache_size: 1 keeps the last pair, so that the inverse of a value that was just made is
            exact: ``atanh(tanh(x))`` is far from ``x``, or infinite, where ``tanh`` is nearly 1.

    Attributes:
        domain, codomain: the constraints on ``x`` and on the result.
        bijective: whether each value comes from one ``x``.

    Raises:
        ValueError: ``cache_size`` is neither 0 nor 1.
    """

    bijective = False
    domain: Any
    codomain: Any

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size = cache_size
        self._last: tuple[Tensor | None, Tensor | None] = (None, None)
        self._made_inverse: Any = None

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
        return {**vars(self), "_last": (None, None), "_made_inverse": None}

    @property
    def event_dim(self) -> int:
        """The dimensions of one value, if ``domain`` and ``codomain`` have the same.

        Raises:
            ValueError: they differ.
        """
        if self.domain.event_dim == self.codomain.event_dim:
            return self.domain.event_dim  # type: ignore[no-any-return]
        raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")

    @property
    def sign(self) -> Any:
        """1 if it is increasing, -1 if it is decreasing.

        Raises:
            NotImplementedError: it is neither.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    @property
    def inv(self) -> Any:
        """The inverse transform."""
        made = None if self._made_inverse is None else self._made_inverse()
        if made is None:
            made = Inverse(self)
            self._made_inverse = ref(made)
        return made

    def with_cache(self, cache_size: int = 1) -> Transform:
        """This transform with another ``cache_size``.

        Raises:
            NotImplementedError: it has an ``__init__`` of its own, and does not say how.
        """
        if self._cache_size == cache_size:
            return self
        if type(self).__init__ is Transform.__init__:
            return type(self)(cache_size)
        raise NotImplementedError(f"{type(self)}.with_cache is not implemented")

    def _again(self, cache_size: int, *arguments: Any) -> Any:
        """For ``with_cache`` of transforms with ``arguments``."""
        if self._cache_size == cache_size:
            return self
        made: Any = type(self)
        return made(*arguments, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the absolute value of the determinant of the Jacobian.

        Args:
            x: where.
            y: the value there.

        Returns:
            One number for each value: ``x.shape`` without the dimensions of one.
        """
        raise NotImplementedError

    def forward_shape(self, shape: Sequence[int]) -> Any:
        """The shape of the result for an ``x`` of ``shape``."""
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        """The shape of ``x`` for a result of ``shape``."""
        return Size(shape)

    def _broadcast(self, shape: Sequence[int], *parameters: Any) -> Any:
        shapes = [tuple(p.shape) for p in parameters if isinstance(p, Tensor)]
        return Size(np.broadcast_shapes(tuple(shape), *shapes))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Inverse(Transform):
    """The inverse of a transform, with its cache."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._inv = transform

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return self._inv.codomain

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return self._inv.domain

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return self._inv.bijective

    @property
    def sign(self) -> Any:
        return self._inv.sign

    @property
    def inv(self) -> Any:
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._inv.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inverse) and self._inv == other._inv

    __hash__ = Transform.__hash__

    def __call__(self, x: Tensor) -> Tensor:
        return self._inv._inverse_call(x)

    def _inverse_call(self, y: Tensor) -> Tensor:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Any:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        return self._inv.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inv!r})"


class ComposeTransform(Transform):
    """Several transforms in their order.

    Args:
        parts: the first one is applied first.
        cache_size: as in :class:`Transform`; it goes to all parts.
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__

    @property
    def domain(self) -> Any:  # type: ignore[override]
        """Of the first part, with the dimensions that a later one needs."""
        if not self.parts:
            return constraints.real
        needed = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            needed = max(
                needed + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim
            )
        return _with_dims(self.parts[0].domain, needed)

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        """Of the last part, with the dimensions that an earlier one has."""
        if not self.parts:
            return constraints.real
        made = self.parts[0].domain.event_dim
        for part in self.parts:
            made = max(
                made + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim
            )
        return _with_dims(self.parts[-1].codomain, made)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> Any:
        found: Any = 1
        for part in self.parts:
            found = found * part.sign
        return found

    @property
    def inv(self) -> Any:
        made = None if self._made_inverse is None else self._made_inverse()
        if made is None:
            made = ComposeTransform([part.inv for part in reversed(self.parts)])
            made._made_inverse = lambda: self
            self._made_inverse = ref(made)
        return made

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._again(cache_size, self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse_call(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse_call(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return zeros_like(x)
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        dims, total = self.domain.event_dim, None
        for part, before, after in zip(self.parts, values[:-1], values[1:], strict=True):
            slope = sum_last(part.log_abs_det_jacobian(before, after), dims - part.domain.event_dim)
            total = slope if total is None else total + slope
            dims += part.codomain.event_dim - part.domain.event_dim
        return total  # type: ignore[return-value]

    def forward_shape(self, shape: Sequence[int]) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return Size(shape)

    def __repr__(self) -> str:
        inner = ",\n    ".join(map(repr, self.parts))
        return f"{type(self).__name__}(\n    {inner}\n)"


def _with_dims(constraint: Any, dims: int) -> Any:
    missing = dims - constraint.event_dim
    return constraints.independent(constraint, missing) if missing > 0 else constraint


def sum_last(value: Tensor, count: int) -> Tensor:
    """The sum over the last ``count`` dimensions."""
    return value.sum(tuple(range(-count, 0))) if count else value
