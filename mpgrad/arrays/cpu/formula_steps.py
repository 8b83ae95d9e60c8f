"""trace(): a formula as a list of NumPy calls, so that it can run on many small pieces.

The formula is called once with stand-ins for its arrays, on a namespace that records its calls.
Intermediate results get numbers of buffers; a buffer is used again as soon as its last reader has
run, so that few of them are needed. It knows neither shapes nor sizes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu import cpu_choices, cpu_special

Array = np.ndarray[Any, Any]

#: For each axis of a piece, whether a value extends over it or has length 1.
Spans = tuple[bool, ...]

_FLOATS = (
    "add subtract multiply power negative absolute sqrt reciprocal exp expm1"
    " exp2 log log1p log2 log10 logaddexp sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh"
    " arcsinh arccosh arctanh"
)
_COMPARISONS = (
    "equal not_equal greater greater_equal less less_equal logical_and logical_or logical_not"
)


class Untraceable(Exception):
    """The formula uses something that cannot be computed piece by piece."""


class Layout(NamedTuple):
    """The axes of a piece, and the one that pieces are cut along."""

    #: For each axis in the formula's own numbers the one of a piece; None if it has length 1.
    axes: tuple[int | None, ...]
    cut: int
    #: Whether the last axis is so short that a value is repeated along it once, in memory: NumPy's
    #: loops go over that axis and the one before, instead of that axis alone.
    is_short: bool


class TracedArray:
    """A stand-in for an array while a formula is traced."""

    __slots__ = ("dtype", "number", "spans")

    def __init__(self, number: int, spans: Spans, dtype: np.dtype[Any]) -> None:
        self.number, self.spans, self.dtype = number, spans, dtype


class StepBuffer(NamedTuple):
    """The memory of an intermediate result."""

    spans: Spans
    dtype: np.dtype[Any]


class FormulaStep(NamedTuple):
    """``function(*arguments, out)``; all of these are numbers of slots."""

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    out: int


class Formula(NamedTuple):
    """A traced formula.

    The order of slots: operands, outputs, constants, buffers.
    """

    steps: tuple[FormulaStep, ...]
    #: The results of the formula; one that does not extend over the cut axis is a sum over all
    #: pieces, and starts with zeros.
    outputs: tuple[StepBuffer, ...]
    #: Whether the formula returns a tuple.
    several: bool
    constants: tuple[Array, ...]
    buffers: tuple[StepBuffer, ...]


def trace(
    formula: Callable[..., Any],
    operands: tuple[Spans | None, ...],
    dtype: np.dtype[Any],
    axes: tuple[int, ...] | None,
    layout: Layout,
) -> Formula:
    """Trace ``formula``.

    Args:
        formula: ``formula(xp, *operands)``, or ``formula(xp, axes, *operands)`` with ``axes``.
        operands: the axes that each extends over; None for a None.
        dtype: of all of them.
        axes: what it gets as ``axes``, in its own numbers.
        layout: of the pieces.

    Raises:
        Untraceable: it has to run on whole arrays.
    """
    tracer = _FormulaTracer(dtype, layout)
    values = [None if spans is None else tracer.value(spans, dtype) for spans in operands]
    # A None has a slot, too, so that operands and slots have the same numbers.
    for number, value in enumerate(values):
        if value is not None:
            value.number = number
    tracer.count = len(values)
    given = formula(tracer, *values) if axes is None else formula(tracer, axes, *values)
    several = isinstance(given, tuple)
    return tracer.program(len(values), given if several else (given,), several)


class _FormulaTracer:
    """The array namespace that records calls (the list is in ``mpgrad.backends``)."""

    def __init__(self, dtype: np.dtype[Any], layout: Layout) -> None:
        self._dtype, self._layout = dtype, layout
        self.count = 0
        self._steps: list[tuple[Callable[..., Any], tuple[TracedArray, ...], TracedArray]] = []
        self._constants: dict[float, tuple[TracedArray, Array]] = {}
        #: By number the values that are repeated along the last axis.
        self._repeated: dict[int, TracedArray] = {}
        #: Values that are complete only after the last piece.
        self._totals: set[int] = set()

    def value(self, spans: Spans, dtype: Any) -> TracedArray:
        self.count += 1
        return TracedArray(self.count - 1, spans, np.dtype(dtype))

    def _operand(self, value: Any) -> TracedArray:
        if isinstance(value, TracedArray):
            if value.number in self._totals:
                raise Untraceable("a sum over all pieces is used before it is complete")
            return value
        if not isinstance(value, int | float):
            raise Untraceable(f"a formula uses a {type(value).__name__}")
        if value not in self._constants:
            self._constants[value] = self.value((), self._dtype), np.asarray(value, self._dtype)
        return self._constants[value][0]

    def _call(self, function: Callable[..., Any], dtype: Any, *arguments: Any) -> TracedArray:
        values = tuple(self._operand(argument) for argument in arguments)
        every = [value.spans for value in values if value.spans]
        spans = tuple(any(axis) for axis in zip(*every, strict=True))
        if self._layout.is_short and all(spans):
            values = tuple(self._along_rows(value) for value in values)
        out = self.value(spans, dtype)
        self._steps.append((function, values, out))
        return out

    def _along_rows(self, value: TracedArray) -> TracedArray:
        """``value``, repeated along the last axis if it is along the first one, too."""
        if value.spans[:1] != (False,) or value.spans[-1] or not any(value.spans):
            return value
        if value.number not in self._repeated:
            repeated = self.value((*value.spans[:-1], True), value.dtype)
            self._steps.append((np.positive, (value,), repeated))
            self._repeated[value.number] = repeated
        return self._repeated[value.number]

    def __getattr__(self, name: str) -> Callable[..., TracedArray]:
        if name in _FLOAT_NAMES:
            return lambda *arguments: self._call(getattr(np, name), self._dtype, *arguments)
        if name in _COMPARISON_NAMES:
            return lambda *arguments: self._call(getattr(np, name), np.bool_, *arguments)
        raise Untraceable(f"{name} cannot be computed piece by piece")

    def square(self, x: Any) -> TracedArray:
        return self.multiply(x, x)

    def divide(self, a: Any, b: Any) -> TracedArray:
        return self._call(np.true_divide, self._dtype, a, b)

    def maximum(self, a: Any, b: Any) -> TracedArray:
        return self._call(cpu_choices.larger, self._dtype, a, b)

    def minimum(self, a: Any, b: Any) -> TracedArray:
        return self._call(cpu_choices.smaller, self._dtype, a, b)

    def clip(self, x: Any, low: float, high: float) -> TracedArray:
        return self._call(_clip, self._dtype, x, low, high)

    def erf(self, x: Any) -> TracedArray:
        if self._dtype.itemsize > 4:
            raise Untraceable("the double-precision erf chooses between formulas")
        return cpu_special.erf_single(self, x)

    def sigmoid(self, x: Any) -> TracedArray:
        half = self.add(self.tanh(self.multiply(x, 0.5)), 1)
        return self.multiply(half, 0.5)

    def where(self, condition: Any, a: Any, b: Any) -> TracedArray:
        if not isinstance(condition, TracedArray):
            raise Untraceable("a condition must be computed in the formula")
        if not isinstance(b, TracedArray) and b == 0:
            return self._call(cpu_choices.choose_or_zero, self._dtype, condition, a)
        return self._call(cpu_choices.choose, self._dtype, condition, a, b)

    def sum(self, x: Any, axis: Any, keepdims: bool = False) -> TracedArray:
        return self._reduce(np.add, x, axis, keepdims)

    def max(self, x: Any, axis: Any, keepdims: bool = False) -> TracedArray:
        return self._reduce(np.maximum, x, axis, keepdims)

    def _reduce(self, ufunc: np.ufunc, x: Any, axis: Any, keepdims: bool) -> TracedArray:
        value, (axes, cut, _) = self._operand(x), self._layout
        if not keepdims or type(axis) is not tuple:
            raise Untraceable("reductions must keep their dimensions and name their axes")
        over = {mine for mine in (axes[at] for at in axis) if mine is not None}
        if any(mine in over and at not in axis for at, mine in enumerate(axes)):
            raise Untraceable("a reduction over a part of the axes that are joined")
        within = tuple(sorted(over - {cut}))
        if within:
            ends = ufunc is np.add and within[-1] == len(value.spans) - 1
            function = _RowSum(within) if ends else _reduction(ufunc, within)
            value = self._reduce_over(within, function, value)
        if cut in over:
            if ufunc is not np.add:
                raise Untraceable("only a sum can go over all pieces")
            value = self._reduce_over((cut,), _accumulation((cut,)), value)
            self._totals.add(value.number)
        return value

    def _reduce_over(
        self, axes: tuple[int, ...], function: Callable[..., Any], value: TracedArray
    ) -> TracedArray:
        if not value.spans or not all(value.spans[axis] for axis in axes):
            raise Untraceable("a reduction of a value that is already reduced")
        spans = tuple(span and at not in axes for at, span in enumerate(value.spans))
        out = self.value(spans, self._dtype)
        self._steps.append((function, (value,), out))
        return out

    def _join_products(self) -> None:
        """Turn a sum of products without other readers into one call."""
        reads = Counter(value.number for _, values, _ in self._steps for value in values)
        products = {
            out.number: values
            for function, values, out in self._steps
            if function is np.multiply
            and reads[out.number] == 1
            and all(value.spans == out.spans for value in values)
        }
        joined: list[Any] = []
        for function, values, out in self._steps:
            if isinstance(function, _RowSum) and values[0].number in products:
                factors = products[values[0].number]
                joined = [step for step in joined if step[2] is not values[0]]
                joined.append((function.of_products, factors, out))
            else:
                joined.append((function, values, out))
        self._steps = joined

    # ------------------------------------------------------------------ the program

    def program(self, operands: int, given: tuple[Any, ...], several: bool) -> Formula:
        """The recorded calls, with a slot for every value."""
        self._join_products()
        made = {out.number for _, _, out in self._steps}
        numbers = [value.number for value in given if isinstance(value, TracedArray)]
        if len(set(numbers)) < len(given) or not made.issuperset(numbers):
            raise Untraceable("a formula returns a value that it did not compute")
        slots = {number: number for number in range(operands)}
        slots.update({number: operands + at for at, number in enumerate(numbers)})
        first = operands + len(numbers)
        for at, (value, _) in enumerate(self._constants.values()):
            slots[value.number] = first + at
        buffers = self._allot(slots, first + len(self._constants))
        steps = tuple(
            FormulaStep(
                function, tuple(slots[value.number] for value in arguments), slots[out.number]
            )
            for function, arguments, out in self._steps
        )
        constants = tuple(array for _, array in self._constants.values())
        outputs = tuple(StepBuffer(value.spans, value.dtype) for value in given)
        return Formula(steps, outputs, several, constants, buffers)

    def _allot(self, slots: dict[int, int], first: int) -> tuple[StepBuffer, ...]:
        """Give each value without a slot one of the buffers, which begin at slot ``first``."""
        last_use = {
            value.number: at for at, (_, values, _) in enumerate(self._steps) for value in values
        }
        buffers: list[StepBuffer] = []
        free: list[int] = []
        for at, (function, arguments, out) in enumerate(self._steps):
            dying = {
                slots[value.number]: value
                for value in arguments
                if slots[value.number] >= first and last_use[value.number] == at
            }
            in_place = isinstance(function, np.ufunc) or function in _IN_PLACE
            free += [slot for slot in dying if in_place]
            if out.number not in slots:
                wanted = StepBuffer(out.spans, out.dtype)
                slot = next((s for s in free if buffers[s - first] == wanted), None)
                if slot is None:
                    slot = first + len(buffers)
                    buffers.append(wanted)
                else:
                    free.remove(slot)
                slots[out.number] = slot
            free += [slot for slot in dying if not in_place]
        return tuple(buffers)


_FLOAT_NAMES = frozenset(_FLOATS.split())
_COMPARISON_NAMES = frozenset(_COMPARISONS.split())


def _reduction(ufunc: np.ufunc, axes: tuple[int, ...]) -> Callable[[Array, Array], Any]:
    reduce: Any = ufunc.reduce
    return lambda x, out: reduce(x, axes, None, out, True)


#: Sums of shorter rows take longer than those of all elements with one place in their rows: with
#: 64 rows in 16 channels 12 us instead of 8 if each has 64 numbers. For products, which have to be
#: made, rows are shorter: with 16 numbers, in 32 channels, 11 us instead of 29.
ROW_MIN = 128
ROW_OF_PRODUCTS_MIN = 32


class _RowSum:
    """A sum over ``axes``, one of which is the last: it takes a third of the time of ``np.sum``."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        first, last = axes[0], axes[-1]
        are_neighbours = len(axes) == last - first + 1
        #: All axes from this one on are a row.
        self._row = first if are_neighbours else last
        self._others = () if are_neighbours else axes[:-1]

    def __call__(self, x: Array, out: Array) -> None:
        if self._others and x.shape[-1] < ROW_MIN:
            reduce: Any = np.add.reduce
            x = reduce(x, self._others, None, None, True)
        x = self._rows(x)
        self._of_rows(x, _ones(x.shape[-1], x.dtype), out)

    def of_products(self, a: Array, b: Array, out: Array) -> None:
        """The sum of ``a * b``."""
        if self._others and a.shape[-1] < ROW_OF_PRODUCTS_MIN:
            self(np.multiply(a, b), out)
        else:
            self._of_rows(self._rows(a), self._rows(b), out)

    def _rows(self, x: Array) -> Array:
        return x if self._row == x.ndim - 1 else x.reshape(*x.shape[: self._row], -1)

    def _of_rows(self, a: Array, b: Array, out: Array) -> None:
        if self._others:
            reduce: Any = np.add.reduce
            reduce(np.vecdot(a, b), self._others, None, out[..., 0], True)
        else:
            np.vecdot(a, b, out=out.reshape(out.shape[: self._row]))


@functools.lru_cache(64)
def _ones(length: int, dtype: np.dtype[Any]) -> Array:
    ones = np.ones(length, dtype)
    ones.flags.writeable = False
    return ones


def _accumulation(axes: tuple[int, ...]) -> Callable[[Array, Array], None]:
    reduce: Any = np.add.reduce

    def accumulate(x: Array, total: Array) -> None:
        total += reduce(x, axes, None, None, True)

    return accumulate


def _clip(x: Array, low: Array, high: Array, out: Array) -> None:
    np.clip(x, low, high, out=out)


#: Functions that may write where they read, besides NumPy's own.
_IN_PLACE = (cpu_choices.larger, cpu_choices.smaller, cpu_choices.choose_or_zero, _clip)
