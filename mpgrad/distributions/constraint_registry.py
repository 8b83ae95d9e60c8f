"""``biject_to`` and ``transform_to``: transforms from all real numbers to a constraint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.distributions import constraints, transforms
from mpgrad.distributions.transform import Transform

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """From classes of constraints to functions that make a transform for one of them."""

    def __init__(self) -> None:
        self._factories: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Let ``factory(constraint)`` make the transforms to constraints of this class.

        Args:
            constraint: a class of constraints, or a constraint, which stands for its class.
            factory: without it, a decorator is returned.

        Raises:
            TypeError: ``constraint`` is neither.
        """
        if factory is None:
            return lambda made: self.register(constraint, made)
        kind = type(constraint) if isinstance(constraint, constraints.Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, constraints.Constraint)):
            raise TypeError(
                "Expected constraint to be either a Constraint subclass or instance, but got "
                f"{constraint}"
            )
        self._factories[kind] = factory
        return factory

    def __call__(self, constraint: Any) -> Any:
        """The transform to ``constraint``.

        Raises:
            NotImplementedError: none is known.
        """
        factory = self._factories.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


#: Transforms that are bijective, with a ``log_abs_det_jacobian``.
biject_to = ConstraintRegistry()
#: Transforms that are cheap and need not be bijective: for optimization.
transform_to = ConstraintRegistry()


def _in_both(*kinds: Any) -> Callable[[Factory], Factory]:
    def register(factory: Factory) -> Factory:
        for kind in kinds:
            biject_to.register(kind, factory)
            transform_to.register(kind, factory)
        return factory

    return register


@_in_both(constraints.Real)
def _real(constraint: Any) -> Transform:
    return transforms.identity_transform


@_in_both(constraints.GreaterThan, constraints.GreaterThanEq)
def _above(constraint: Any) -> Transform:
    bound = constraint.lower_bound
    return _after_exp(bound, 1) if not _is_zero(bound) else transforms.ExpTransform()


@_in_both(constraints.LessThan)
def _below(constraint: Any) -> Transform:
    return _after_exp(constraint.upper_bound, -1)


def _after_exp(loc: Any, scale: int) -> Transform:
    return transforms.ComposeTransform(
        [transforms.ExpTransform(), transforms.AffineTransform(loc, scale)]
    )


def _is_zero(bound: Any) -> bool:
    return isinstance(bound, int | float) and bound == 0


@_in_both(constraints.Interval, constraints.HalfOpenInterval)
def _between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if _is_zero(low) and isinstance(high, int | float) and high == 1:
        return transforms.SigmoidTransform()
    return transforms.ComposeTransform(
        [transforms.SigmoidTransform(), transforms.AffineTransform(low, high - low)]
    )


biject_to.register(constraints.Simplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(constraints.Simplex, lambda _: transforms.SoftmaxTransform())
transform_to.register(constraints.LowerCholesky, lambda _: transforms.LowerCholeskyTransform())
for _kind in (constraints.PositiveDefinite, constraints.PositiveSemidefinite):
    transform_to.register(_kind, lambda _: transforms.PositiveDefiniteTransform())
_in_both(constraints.CorrCholesky)(lambda _: transforms.CorrCholeskyTransform())


def _of_parts(registry: ConstraintRegistry) -> None:
    registry.register(
        constraints.IndependentConstraint,
        lambda c: transforms.IndependentTransform(
            registry(c.base_constraint), c.reinterpreted_batch_ndims
        ),
    )
    registry.register(
        constraints.Cat,
        lambda c: transforms.CatTransform([registry(part) for part in c.cseq], c.dim, c.lengths),
    )
    registry.register(
        constraints.Stack,
        lambda c: transforms.StackTransform([registry(part) for part in c.cseq], c.dim),
    )


_of_parts(biject_to)
_of_parts(transform_to)
