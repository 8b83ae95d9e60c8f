"""Formulas in few kernels, made by CuPy's ``fuse``: one per reduction input and one per result.

Values between them and the operands, or earlier sums, are computed again for each element: that
takes less time than writing them to memory and reading them back. The sums themselves are CuPy's:
a sum inside ``fuse`` would use few threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpgrad.arrays.cuda.cuda_backend import CudaBackend

#: The number of formulas that are kept, each for one set of operands that are None.
_PLANS_MAX = 1024

Axes = tuple[int, ...]


class Fusion:
    """Runs formulas on the arrays of one module like CuPy.

    Args:
        xp: the namespace that formulas are written for.
    """

    def __init__(self, xp: CudaBackend) -> None:
        self._xp = xp
        self._plan = functools.lru_cache(_PLANS_MAX)(self._planned)

    def __call__(
        self, formula: Callable[..., Any], operands: Sequence[Any], axes: Axes | None
    ) -> Any:
        """``formula(xp, *operands)``, or with ``axes`` ``formula(xp, axes, *operands)``.

        Args:
            formula: as ``arrays.cpu.blockwise`` takes it.
            operands: arrays that broadcast to each other, numbers, and None.
            axes: the axes of its sums and maxima.
        """
        missing = tuple([operand is None for operand in operands])
        return self._plan(formula, axes, missing)([x for x in operands if x is not None])

    def _planned(
        self, formula: Callable[..., Any], axes: Axes | None, missing: tuple[bool, ...]
    ) -> _KernelPlan:
        given = [None if is_missing else _Term("operand") for is_missing in missing]
        before = () if axes is None else (axes,)
        found = formula(_TermTracer(), *before, *given)
        return _KernelPlan(self._xp, [term for term in given if term is not None], found)


class _Term:
    """A stand-in for an array while a formula is traced: an operand, or a function's result.

    Attributes:
        axes: of a reduction.
    """

    __slots__ = ("arguments", "axes", "function")

    def __init__(self, function: str, *arguments: Any, axes: Axes | None = None) -> None:
        self.function, self.arguments, self.axes = function, arguments, axes


class _TermTracer:
    """The namespace for tracing a formula: its functions compute nothing."""

    def __getattr__(self, name: str) -> Callable[..., _Term]:
        return functools.partial(_Term, name)

    def sum(self, x: _Term, axes: Axes, keepdims: bool) -> _Term:
        return _Term("sum", x, axes=axes)

    def max(self, x: _Term, axes: Axes, keepdims: bool) -> _Term:
        return _Term("max", x, axes=axes)


class _KernelPlan:
    """A formula's reductions in their order, then its results, each with the kernel before it."""

    def __init__(self, xp: CudaBackend, operands: list[_Term], found: Any) -> None:
        self._xp, self._operands, self._found = xp, operands, found
        self._results = found if isinstance(found, tuple) else (found,)
        known = set(operands)
        self._reductions = []
        for term in _terms_of(self._results):
            if term.axes is not None:
                self._reductions.append((term, _Kernel(xp, term.arguments[0], known)))
                known.add(term)
        self._kernels = [_Kernel(xp, term, known) for term in self._results]

    def __call__(self, operands: list[Any]) -> Any:
        values: dict[Any, Any] = dict(zip(self._operands, operands, strict=True))
        for term, kernel in self._reductions:
            values[term] = getattr(self._xp, term.function)(kernel(values), term.axes, True)
        results = tuple([kernel(values) for kernel in self._kernels])
        return results if isinstance(self._found, tuple) else results[0]


class _Kernel:
    """Computes one term from those that are ``known`` by then."""

    def __init__(self, xp: CudaBackend, term: _Term, known: set[_Term]) -> None:
        self._xp, self._term = xp, term
        self._sources = [each for each in _terms_of([term], known) if each in known]
        self._is_known, self._can_fuse = term in known, True
        self._fused = xp.arrays.fuse(kernel_name=f"mpgrad_fused_{term.function}")(self._computed)

    def __call__(self, values: dict[_Term, Any]) -> Any:
        if self._is_known:
            return values[self._term]
        given = [values[source] for source in self._sources]
        if not self._can_fuse:
            return self._computed(*given)
        try:
            return self._fused(*given)
        except (NotImplementedError, TypeError):
            value = self._computed(*given)  # which raises the errors of the functions themselves
            self._can_fuse = False
            return value

    def _computed(self, *given: Any) -> Any:
        return _value_of(self._xp, self._term, dict(zip(self._sources, given, strict=True)))


def _value_of(xp: CudaBackend, term: Any, values: dict[_Term, Any]) -> Any:
    """``term`` from ``values``; intermediate values are added to these."""
    if not isinstance(term, _Term):
        return term  # a number
    if term not in values:
        arguments = [_value_of(xp, argument, values) for argument in term.arguments]
        values[term] = getattr(xp, term.function)(*arguments)
    return values[term]


def _terms_of(terms: Sequence[Any], known: set[_Term] | None = None) -> list[_Term]:
    """``terms`` and all that they are computed from, in the order of the computation.

    Args:
        known: terms whose operands are not followed.
    """
    found: dict[_Term, None] = {}

    def visit(term: Any) -> None:
        if isinstance(term, _Term) and term not in found:
            if known is None or term not in known:
                for argument in term.arguments:
                    visit(argument)
            found[term] = None

    for term in terms:
        visit(term)
    return list(found)
