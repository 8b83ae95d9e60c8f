"""blockwise(): runs a formula on pieces of its arrays that fit into the cache.

NumPy goes over whole arrays, one function at a time: the gradient of ``tanh`` reads and writes
memory eight times. On pieces, it reads its operands and writes its result once; all intermediate
values stay in the cache. The cuts depend on shapes only, so that the bits are the same wherever the
formula runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.formula_steps import Formula, Layout, Spans, StepBuffer, Untraceable, trace

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Axes = tuple[int, ...]
#: Makes an uninitialised array.
Empty = Callable[[Shape, np.dtype[Any]], Array]

#: Arrays of fewer bytes are not cut: they fit into the cache with all intermediate values.
WHOLE_BYTES = 64 * 1024
#: The bytes of a piece of each array; a formula holds about five at a time. Smaller ones, which
#: would fit into a core's own cache, cost more calls than they save (docs/profiles.md).
PIECE_BYTES = 1024 * 1024
#: A formula runs on whole arrays if they cannot be cut into pieces of at most this many bytes.
PIECE_BYTES_MAX = 2 * 1024 * 1024
#: The least number of consecutive elements in a piece: shorter rows are slower than whole arrays.
RUN_MIN = 512
#: Rows of fewer elements are short, if as many as this share a number: the numbers are repeated
#: along the rows once (docs/profiles.md, "Layers beside PyTorch").
ROW_SHORT = 512
REPEATS_MIN = 8
#: The number of plans that are kept, one for each formula and shapes.
PLANS_MAX = 4096
#: The number of scratch memories that are kept while no thread uses them.
SCRATCHES_MAX = 8
#: The number of plans and pieces for which a scratch memory keeps its arrays.
BUFFERS_MAX = 256
_CACHE_LINE_BYTES = 64
#: The number of elements that NumPy buffers while it adds a number per row to rows at least this
#: long. If the buffer holds several rows, NumPy first copies the numbers, and takes twice as long.
_BUFFERED = 512


class _Result(NamedTuple):
    """A result: its shape for pieces, and its shape for the caller."""

    shape: Shape
    final_shape: Shape
    dtype: np.dtype[Any]
    #: Whether it is a sum over all pieces.
    is_total: bool


class _BlockPlan(NamedTuple):
    """How a formula runs on operands of certain shapes."""

    program: Formula
    #: The operands' shapes with their dimensions joined to a few axes; None for a None.
    shapes: tuple[Shape | None, ...]
    outputs: tuple[_Result, ...]
    dtype: np.dtype[Any]
    #: The lengths of the joined axes.
    lengths: Shape
    #: The axis that is cut, its length, and that of a piece.
    cut: int
    length: int
    step: int
    #: The slots of the arrays that are cut.
    moving: tuple[int, ...]
    #: Whether NumPy's loops go over at least ``_BUFFERED`` elements beside repeated numbers.
    has_long_rows: bool


def blockwise(
    formula: Callable[..., Any], operands: Sequence[Any], axes: Axes | None, empty: Empty
) -> Any:
    """The result of ``formula`` for ``operands``, or NotImplemented if it needs whole arrays.

    Args:
        formula: ``formula(xp, *operands)`` of elementwise functions; with ``axes`` it is
            ``formula(xp, axes, *operands)``, may also take ``sum`` and ``max`` over ``axes``, and
            may return a ``sum`` over all other axes. It has no side effects, and branches only on
            which operands are None.
        operands: an array; others of its shape, or that broadcast to it, or numbers, or None.
        axes: none of them negative; None if each element is computed independently.
        empty: makes the results.
    """
    plan = _planned(formula, axes, tuple([_signature(value) for value in operands]))
    if plan is None:
        return NotImplemented
    given: list[Any] = []
    for value, shape in zip(operands, plan.shapes, strict=True):
        if type(value) is np.ndarray:
            if not value.flags.c_contiguous:
                return NotImplemented
            value = value.reshape(shape)
        elif value is not None:
            value = np.array(value, plan.dtype, ndmin=len(plan.lengths))
        given.append(value)
    results = tuple(
        [
            np.zeros(output.final_shape, output.dtype)
            if output.is_total
            else empty(output.final_shape, output.dtype)
            for output in plan.outputs
        ]
    )
    given += [
        result.reshape(output.shape) for result, output in zip(results, plan.outputs, strict=True)
    ]
    _run(plan, given)
    return results if plan.program.several else results[0]


def _signature(value: Any) -> Any:
    """All that a plan depends on."""
    if type(value) is np.ndarray:
        return value.shape, value.dtype
    return None if value is None else type(value)


# ---------------------------------------------------------------------- planning


@functools.lru_cache(PLANS_MAX)
def _planned(
    formula: Callable[..., Any], axes: Axes | None, operands: tuple[Any, ...]
) -> _BlockPlan | None:
    arrays = [operand for operand in operands if isinstance(operand, tuple)]
    full, dtype = arrays[0]
    if dtype.char not in "fd" or any(other != dtype for _, other in arrays):
        return None
    if not {type(operand) for operand in operands} <= {tuple, type, type(None)}:
        return None
    patterns = [_pattern(operand[0], full) for operand in operands if isinstance(operand, tuple)]
    if None in patterns:
        return None
    axis_of, lengths, summed = _joined(full, axes or (), list(zip(*patterns, strict=True)))
    cut = _cut_axis(lengths, summed, dtype.itemsize)
    if cut is None:
        return None
    shapes = [_joined_shape(operand, axis_of, lengths) for operand in operands]
    spans = tuple(
        None if shape is None else tuple(map(int.__eq__, shape, lengths)) for shape in shapes
    )
    is_short = _is_short(lengths)
    own_axes = tuple(None if n == 1 else axis for axis, n in zip(axis_of, full, strict=True))
    try:
        program = trace(formula, spans, dtype, axes, Layout(own_axes, cut, is_short))
    except Untraceable:
        return None
    if len(program.steps) == 1:
        return None
    outputs = tuple(_output(buffer, lengths, axis_of, full, cut) for buffer in program.outputs)
    every = [*spans, *[buffer.spans for buffer in program.outputs]]
    moving = tuple(slot for slot, span in enumerate(every) if span is not None and span[cut])
    unit = math.prod(lengths) // lengths[cut] * dtype.itemsize
    step = _piece_length(lengths[cut], unit)
    row = lengths[-1] * (step if is_short else 1)
    return _BlockPlan(
        program,
        tuple(shapes),
        outputs,
        dtype,
        lengths,
        cut,
        lengths[cut],
        step,
        moving,
        len(lengths) > 1 and row >= _BUFFERED,
    )


def _pattern(shape: Shape, full: Shape) -> tuple[bool, ...] | None:
    """For each dimension whether an operand extends over it; None if it does not broadcast."""
    padded = (1,) * (len(full) - len(shape)) + shape
    if len(padded) > len(full) or any(
        mine not in (1, whole) for mine, whole in zip(padded, full, strict=True)
    ):
        return None
    return tuple(map(int.__eq__, padded, full))


def _joined(
    shape: Shape, axes: Axes, operands: Sequence[tuple[bool, ...]]
) -> tuple[tuple[int, ...], Shape, list[bool]]:
    """Neighbouring dimensions that are either all summed or all kept, and that each operand either
    extends over or not, joined to one axis.

    Args:
        shape: of the whole.
        axes: those that are summed.
        operands: for each dimension, which operands extend over it.
    """
    axis_of: list[int] = []
    lengths: list[int] = []
    summed: list[bool] = []
    known: tuple[bool, ...] | None = None
    for dimension, length in enumerate(shape):
        # One of length 1 joins any other.
        mine = None if length == 1 else operands[dimension]
        is_other = mine is not None and known is not None and mine != known
        if not summed or summed[-1] != (dimension in axes) or is_other:
            summed.append(dimension in axes)
            lengths.append(1)
            known = None
        lengths[-1] *= length
        known = mine or known
        axis_of.append(len(lengths) - 1)
    return tuple(axis_of), tuple(lengths), summed


def _cut_axis(lengths: Shape, summed: Sequence[bool], itemsize: int) -> int | None:
    """The first axis that can be cut into pieces that are small enough."""
    nbytes = math.prod(lengths) * itemsize
    for axis, (length, is_summed) in enumerate(zip(lengths, summed, strict=True)):
        if is_summed or length < 2 or nbytes // length > PIECE_BYTES_MAX:
            continue
        if axis == 0 or axis < len(lengths) - 1:
            return axis
        if _piece_length(length, nbytes // length) >= RUN_MIN:
            return axis
    return None


def _is_short(lengths: Shape) -> bool:
    """Whether a number for each of the rows is repeated along them in memory."""
    return len(lengths) > 2 and lengths[-1] < ROW_SHORT and lengths[0] >= REPEATS_MIN


def _joined_shape(operand: Any, axis_of: tuple[int, ...], lengths: Shape) -> Shape | None:
    """The shape of an operand in joined axes, 1 where it is repeated."""
    if operand is None:
        return None
    shape = operand[0] if isinstance(operand, tuple) else ()
    joined = [1] * len(lengths)
    for axis, length in zip(reversed(axis_of), reversed(shape), strict=False):
        joined[axis] *= length
    return tuple(joined)


def _output(
    buffer: StepBuffer, lengths: Shape, axis_of: tuple[int, ...], full: Shape, cut: int
) -> _Result:
    shape = _extent(lengths, buffer.spans)
    final = tuple(n if buffer.spans[axis] else 1 for axis, n in zip(axis_of, full, strict=True))
    return _Result(shape, final, buffer.dtype, not buffer.spans[cut])


def _extent(shape: Shape, spans: Spans) -> Shape:
    return tuple([n if span else 1 for n, span in zip(shape, spans, strict=True)])


def _piece_length(length: int, unit: int) -> int:
    """The length of pieces along the cut axis, whose steps have ``unit`` bytes each."""
    pieces = -(-length // max(PIECE_BYTES // max(unit, 1), 1))
    return -(-length // pieces)


# ---------------------------------------------------------------------- running


def _run(plan: _BlockPlan, given: Sequence[Any]) -> None:
    """Run the program on operands and results, which are ``given`` in the shapes of the plan."""
    try:
        scratch = _idle_scratch.pop()
    except IndexError:
        scratch = _Scratch()
    before = np.setbufsize(_BUFFERED) if plan.has_long_rows else 0
    try:
        _run_pieces(plan, given, scratch)
    finally:
        if plan.has_long_rows:
            np.setbufsize(before)
        if len(_idle_scratch) < SCRATCHES_MAX:
            _idle_scratch.append(scratch)


def _run_pieces(plan: _BlockPlan, given: Sequence[Any], scratch: _Scratch) -> None:
    program = plan.program
    slots: list[Any] = [*given, *program.constants, *program.buffers]
    first_buffer = len(slots) - len(program.buffers)
    moving: list[Any] = [(slot, given[slot]) for slot in plan.moving]
    steps, before = program.steps, (slice(None),) * plan.cut
    piece = 0
    for start in range(0, plan.length, plan.step):
        where = (*before, slice(start, start + plan.step))
        for slot, array in moving:
            slots[slot] = array[where]
        shape = slots[plan.moving[0]].shape
        if shape[plan.cut] != piece:
            piece = shape[plan.cut]
            slots[first_buffer:] = scratch.buffers(plan, piece)
        for function, arguments, out in steps:
            function(*[slots[slot] for slot in arguments], slots[out])


class _Scratch:
    """Memory for intermediate results."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        #: By plan and piece; the plan is kept, so that no other one can have its id.
        self._made: dict[tuple[int, int], tuple[_BlockPlan, list[Array]]] = {}

    def buffers(self, plan: _BlockPlan, piece: int) -> list[Array]:
        """Arrays for a piece; what is in earlier ones is lost."""
        key = (id(plan), piece)
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= BUFFERS_MAX:
                self._made.clear()
            found = self._made[key] = plan, self._make(plan, piece)
        return found[1]

    def _make(self, plan: _BlockPlan, piece: int) -> list[Array]:
        shape = (*plan.lengths[: plan.cut], piece, *plan.lengths[plan.cut + 1 :])
        wanted = plan.program.buffers
        shapes = [_extent(shape, buffer.spans) for buffer in wanted]
        starts = [0]
        for own, buffer in zip(shapes, wanted, strict=True):
            nbytes = math.prod(own) * buffer.dtype.itemsize
            starts.append(starts[-1] + -(-nbytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES)
        if starts[-1] > self._memory.nbytes:
            self._made.clear()  # they would keep the smaller memory
            memory = np.empty(starts[-1] + _CACHE_LINE_BYTES, np.uint8)
            skipped = -memory.ctypes.data % _CACHE_LINE_BYTES
            self._memory = memory[skipped : skipped + starts[-1]]
        return [
            np.ndarray(own, buffer.dtype, self._memory, start)
            for own, buffer, start in zip(shapes, wanted, starts, strict=False)
        ]


#: Unused scratch memories: recently used memory is in the cache, and mapped.
_idle_scratch: list[_Scratch] = []
