"""Constraints: the sets of values that parameters and draws of distributions lie in.

A lower-case name is a constraint, or a class where it has arguments: ``constraints.positive``,
``constraints.interval(0.0, 1.0)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.ops.by_index.selection import tril
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.minimum_maximum import maximum
from mpgrad.ops.linear_algebra.factorizations import eigvalsh
from mpgrad.ops.linear_algebra.failing_matrices import cholesky_ex
from mpgrad.ops.shapes.joining import cat as joined
from mpgrad.ops.shapes.shape import stack as stacked
from mpgrad.recording.tensors.tensor import Tensor


class Constraint:
    """A set of values.

    Attributes:
        is_discrete: whether these are whole numbers.
        event_dim: the dimensions of one value.
    """

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: Tensor) -> Tensor:
        """Whether each value lies in the set: ``value.shape`` without ``event_dim`` dimensions."""
        raise NotImplementedError

    def __repr__(self) -> str:
        inner = ", ".join(
            f"{name}={bound}" for name, bound in vars(self).items() if not name.startswith("_")
        )
        return f"{type(self).__name__}({inner})"


class Dependent(Constraint):
    """A set that depends on other parameters; it is not known to the class."""

    def __init__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> None:
        self._discrete, self._dim = is_discrete, event_dim

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return _known(self._discrete, "is_discrete")  # type: ignore[no-any-return]

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return _known(self._dim, "event_dim")  # type: ignore[no-any-return]

    def __call__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> Any:
        """This set, with what is known of it."""
        return Dependent(
            is_discrete=self._discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        raise ValueError("Cannot determine validity of dependent constraint")

    def __repr__(self) -> str:
        return "Dependent()"


def _known(value: Any, name: str) -> Any:
    if value is NotImplemented:
        raise NotImplementedError(f".{name} cannot be determined statically")
    return value


class dependent_property(property, Dependent):
    """A property that returns a constraint, which the object knows, but not its class."""

    def __init__(
        self,
        fn: Callable[[Any], Any] | None = None,
        *,
        is_discrete: Any = NotImplemented,
        event_dim: Any = NotImplemented,
    ) -> None:
        property.__init__(self, fn)
        Dependent.__init__(self, is_discrete=is_discrete, event_dim=event_dim)

    def __call__(self, fn: Callable[[Any], Any]) -> dependent_property:  # type: ignore[override]
        """As a decorator with arguments."""
        return dependent_property(fn, is_discrete=self._discrete, event_dim=self._dim)


def is_dependent(constraint: Any) -> bool:
    """Whether it depends on other parameters."""
    return isinstance(constraint, Dependent)


class IndependentConstraint(Constraint):
    """A constraint whose last ``reinterpreted_batch_ndims`` dimensions belong to one value."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self.base_constraint.is_discrete  # type: ignore[no-any-return]

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return self.base_constraint.event_dim + self.reinterpreted_batch_ndims  # type: ignore[no-any-return]

    def check(self, value: Tensor) -> Tensor:
        found = self.base_constraint.check(value)
        count = self.reinterpreted_batch_ndims
        if found.ndim < count:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.ndim}")
        return _all(found, count)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


def _all(found: Tensor, count: int) -> Tensor:
    """Whether all of the last ``count`` dimensions hold."""
    return found.reshape((*found.shape[: found.ndim - count], -1)).all(-1) if count else found


# ---------------------------------------------------------------------- elements


class Real(Constraint):
    """Every number but NaN."""

    def check(self, value: Tensor) -> Tensor:
        return value == value


class Boolean(Constraint):
    """0 and 1."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class GreaterThan(Constraint):
    """Numbers above ``lower_bound``."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        return self.lower_bound < value  # type: ignore[no-any-return]


class GreaterThanEq(GreaterThan):
    """Numbers of at least ``lower_bound``."""

    def check(self, value: Tensor) -> Tensor:
        return self.lower_bound <= value  # type: ignore[no-any-return]


class LessThan(Constraint):
    """Numbers below ``upper_bound``."""

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class Interval(Constraint):
    """Numbers from ``lower_bound`` to ``upper_bound``."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (self.lower_bound <= value) & (value <= self.upper_bound)  # type: ignore[no-any-return]


class HalfOpenInterval(Interval):
    """Numbers from ``lower_bound`` on, below ``upper_bound``."""

    def check(self, value: Tensor) -> Tensor:
        return (self.lower_bound <= value) & (value < self.upper_bound)  # type: ignore[no-any-return]


class IntegerInterval(Interval):
    """Whole numbers from ``lower_bound`` to ``upper_bound``."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & super().check(value)


class IntegerGreaterThan(GreaterThan):
    """Whole numbers of at least ``lower_bound``."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound)


# ---------------------------------------------------------------------- vectors and matrices


class OneHot(Constraint):
    """Vectors of zeros and a single 1."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class Simplex(Constraint):
    """Vectors of numbers of at least 0 that sum to 1 (within 1e-6)."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (absolute(value.sum(-1) - 1) < 1e-6)


class MultinomialCounts(Constraint):
    """Vectors of whole numbers of at least 0 that sum to ``upper_bound``."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _Matrix(Constraint):
    event_dim = 2


class LowerTriangular(_Matrix):
    """Square matrices with zeros above the diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return _all(tril(value) == value, 2)


class LowerCholesky(LowerTriangular):
    """Lower triangular matrices with a positive diagonal."""

    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class CorrCholesky(LowerCholesky):
    """Lower triangular matrices with a positive diagonal and rows of length 1."""

    def check(self, value: Tensor) -> Tensor:
        # The sum of n squares, each of which is off by a rounding.
        tolerance = 10 * value.shape[-1] * _resolution(value)
        lengths = (value**2).sum(-1)
        return super().check(value) & (absolute(lengths - 1) <= tolerance).all(-1)


class Square(_Matrix):
    """Square matrices."""

    def check(self, value: Tensor) -> Tensor:
        batch, is_square = tuple(value.shape[:-2]), value.shape[-2] == value.shape[-1]
        return value.new_full(batch, is_square).bool()


class Symmetric(Square):
    """Symmetric matrices (within 1e-6)."""

    def check(self, value: Tensor) -> Tensor:
        square = super().check(value)
        if not bool(square.all()):
            return square
        away = absolute(value - value.mT)
        scale = 1e-6 * maximum(absolute(value), absolute(value.mT))
        return _all(away <= scale + 1e-6, 2)


class PositiveSemidefinite(Symmetric):
    """Symmetric matrices without negative eigenvalues."""

    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not bool(symmetric.all()):
            return symmetric
        return (eigvalsh(value) >= 0).all(-1)


class PositiveDefinite(Symmetric):
    """Symmetric matrices with positive eigenvalues: those that have a Cholesky factor."""

    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not bool(symmetric.all()):
            return symmetric
        return cholesky_ex(value)[1] == 0


def _resolution(value: Tensor) -> float:
    return float(np.finfo(value.numpy(force=True).dtype).eps)


# ---------------------------------------------------------------------- of several parts


class Cat(Constraint):
    """Parts along ``dim``, of ``lengths``, each with a constraint of its own."""

    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return any(part.is_discrete for part in self.cseq)

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return max(part.event_dim for part in self.cseq)

    def check(self, value: Tensor) -> Tensor:
        checks, start = [], 0
        for part, length in zip(self.cseq, self.lengths, strict=True):
            checks.append(part.check(value.narrow(self.dim, start, length)))
            start += length
        return joined(checks, self.dim)


class Stack(Constraint):
    """Slices along ``dim``, each with a constraint of its own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return any(part.is_discrete for part in self.cseq)

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        dim = max(part.event_dim for part in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim  # type: ignore[no-any-return]

    def check(self, value: Tensor) -> Tensor:
        pairs = zip(self.cseq, value.unbind(self.dim), strict=True)
        return stacked([part.check(item) for part, item in pairs], self.dim)


class MixtureSameFamilyConstraint(Constraint):
    """The constraint of the components of a mixture, whose batch has a dimension more."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self.base_constraint.is_discrete  # type: ignore[no-any-return]

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return self.base_constraint.event_dim  # type: ignore[no-any-return]

    def check(self, value: Tensor) -> Tensor:
        return self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)).all(-1)


dependent = Dependent()
independent = IndependentConstraint
boolean = Boolean()
one_hot = OneHot()
nonnegative_integer = IntegerGreaterThan(0)
positive_integer = IntegerGreaterThan(1)
integer_interval = IntegerInterval
real = Real()
real_vector = IndependentConstraint(real, 1)
positive = GreaterThan(0.0)
nonnegative = GreaterThanEq(0.0)
greater_than = GreaterThan
greater_than_eq = GreaterThanEq
less_than = LessThan
multinomial = MultinomialCounts
unit_interval = Interval(0.0, 1.0)
interval = Interval
half_open_interval = HalfOpenInterval
simplex = Simplex()
lower_triangular = LowerTriangular()
lower_cholesky = LowerCholesky()
corr_cholesky = CorrCholesky()
square = Square()
symmetric = Symmetric()
positive_semidefinite = PositiveSemidefinite()
positive_definite = PositiveDefinite()
cat = Cat
stack = Stack
