"""Elements chosen by mask, index or place, and put elsewhere: made of the operators of indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.backends.cpu import INDEX
from mpgrad.device_arrays import on_host
from mpgrad.dispatch import unrecorded
from mpgrad.ops.arithmetic import add, mul, sub
from mpgrad.ops.choices import where
from mpgrad.ops.creation import zeros
from mpgrad.ops.device_moves import beside
from mpgrad.ops.dimensions import one_dim
from mpgrad.ops.indexing import diagonal as diagonal_of
from mpgrad.ops.indexing import (
    diagonal_scatter,
    getitem,
    index_select,
    narrow,
    pick,
    scatter_index,
    unbind,
)
from mpgrad.ops.overwriting import masked_fill, put_index
from mpgrad.ops.promotion import as_tensor_operand
from mpgrad.ops.reduction import sum as sum_over
from mpgrad.ops.shape import broadcast_to, cat, clone, contiguous, reshape
from mpgrad.tensor import Tensor

__all__ = [
    "diag",
    "diff",
    "index_add",
    "index_copy",
    "index_fill",
    "masked_scatter",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "roll",
    "scatter",
    "scatter_add",
    "take",
    "trace",
    "tril",
    "triu",
]


# ------------------------------------------------------------------------ by mask


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where ``mask`` is true, 1-d.

    Raises:
        RuntimeError: the mask is not boolean.
    """
    _check_mask("masked_select", mask)
    shape = np.broadcast_shapes(input.shape, mask.shape)
    return getitem(broadcast_to(input, shape), broadcast_to(mask, shape))


def _check_mask(name: str, mask: Tensor) -> None:
    if mask.dtype.kind != "b":
        raise RuntimeError(f"{name} only supports boolean masks, but got mask with {mask.dtype}")


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions, up to ``diagonal``; zero above."""
    kept = np.tri(*_matrix_shape(input), diagonal, dtype=bool)
    return where(beside(input, kept), input, False)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions, from ``diagonal`` on; zero below."""
    gone = np.tri(*_matrix_shape(input), diagonal - 1, dtype=bool)
    return where(beside(input, gone), False, input)


def _matrix_shape(input: Tensor) -> tuple[int, int]:
    if input.ndim < 2:
        raise RuntimeError("input tensor must have at least 2 dimensions")
    return input.shape[-2], input.shape[-1]


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of all elements that are not zero, one row each (or one tensor a dimension)."""
    if as_tuple and input.ndim == 0:
        input = reshape(input, (1,))
    found = unrecorded(lambda xp, x: xp.argwhere(x), input)
    return tuple(contiguous(index) for index in unbind(found, 1)) if as_tuple else found


# ------------------------------------------------------------------------ by place


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix that has this vector as its diagonal.

    Raises:
        RuntimeError: the input has more than two dimensions, or none.
    """
    if input.ndim == 2:
        return clone(diagonal_of(input, diagonal))
    if input.ndim != 1:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    size = input.shape[0] + abs(diagonal)
    return diagonal_scatter(input, (size, size), diagonal, 0, 1)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix.

    Raises:
        RuntimeError: it is no matrix.
    """
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return sum_over(diagonal_of(input))


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """The elements moved on by ``shifts`` along ``dims``; what leaves at the end comes in again.

    Raises:
        RuntimeError: not as many shifts as dimensions.
    """
    if dims is None:
        return reshape(roll(reshape(input, -1), shifts, 0), input.shape)
    steps = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    along = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(steps) != len(along):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {steps}, dims: {along}")
    rolled = input
    for step, d in zip(steps, along, strict=True):
        dim = one_dim(d, input.ndim)
        length = input.shape[dim]
        if length and step % length:
            cut = length - step % length
            tail = narrow(rolled, dim, cut, length - cut)
            rolled = cat([tail, narrow(rolled, dim, 0, cut)], dim)
    return clone(input) if rolled is input else rolled


def diff(input: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Each element along ``dim`` minus the one before it, ``n`` times."""
    for _ in range(n):
        length = max(input.shape[one_dim(dim, input.ndim)] - 1, 0)
        input = sub(narrow(input, dim, 1, length), narrow(input, dim, 0, length))
    return input


def repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """Each slice along ``dim`` (or each element) ``repeats`` times (a number, or one per slice)."""
    if dim is None:
        return repeat_interleave(reshape(input, -1), repeats, 0)
    counts = on_host(repeats._array) if isinstance(repeats, Tensor) else repeats
    places = np.repeat(np.arange(input.shape[one_dim(dim, input.ndim)]), counts)
    return index_select(input, dim, Tensor(places))


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at ``index`` of the flattened tensor."""
    return pick(reshape(input, -1), 0, index)


# ------------------------------------------------------------------------ put or added in place


def _along(input: Tensor, dim: int, index: Tensor, src: Any) -> tuple[list[Tensor], Any]:
    """Where each element of ``index`` points to in ``input``, and what of ``src`` goes there."""
    if index.ndim != input.ndim or (isinstance(src, Tensor) and src.ndim != input.ndim):
        raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
    dim = one_dim(dim, input.ndim)
    grids = np.ix_(*(np.arange(n) for n in index.shape))
    places = [index if d == dim else Tensor(grid) for d, grid in enumerate(grids)]
    if isinstance(src, Tensor):
        src = getitem(src, tuple(slice(0, n) for n in index.shape))
    return places, src


def scatter(input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    """``input`` with each element of ``src`` (or one number) put at ``index`` along ``dim``.

    ``index`` may be shorter than ``src`` and, except along ``dim``, than ``input``. Where it is
    repeated, one of the elements stays.

    Raises:
        RuntimeError: the numbers of dimensions or the dtypes differ.
    """
    if isinstance(src, Tensor) and src.dtype != input.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    places, values = _along(input, dim, index, src)
    return put_index(input, values, (INDEX,) * input.ndim, places)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input`` with each element of ``src`` added at ``index`` along ``dim``.

    ``index`` may be shorter than ``src`` and, except along ``dim``, than ``input``.

    Raises:
        RuntimeError: the numbers of dimensions differ.
    """
    places, values = _along(input, dim, index, src)
    key = (INDEX,) * input.ndim
    return add(input, scatter_index(values, key, places, input.shape) if key else values)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``input`` with the slices of ``source`` put at ``index`` along ``dim``."""
    key = (slice(None),) * one_dim(dim, input.ndim) + (INDEX,)
    return put_index(input, source, key, [index])


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """``input`` with a number (or 0-d tensor) in the slices at ``index`` along ``dim``."""
    dim = one_dim(dim, input.ndim)
    # As a mask, so that the gradient of an index that is repeated counts once.
    length = input.shape[dim] if input.ndim else 1
    marks = put_index(zeros(length, dtype=bool, device=input.device), True, (INDEX,), [index])
    mask = reshape(marks, (-1, *(1,) * (input.ndim - dim - 1)) if input.ndim else ())
    return masked_fill(input, mask, value)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``input`` with the first elements of ``source`` put where ``mask`` is true.

    Raises:
        RuntimeError: the mask is not boolean, or there are not enough elements.
    """
    _check_mask("masked_scatter", mask)
    mask = broadcast_to(mask, input.shape)
    count = int(mask._array.sum())
    if count > source._array.size:
        raise RuntimeError(
            f"masked_scatter: Expected at least {count} elements in the source, got "
            f"{source._array.size}"
        )
    return put_index(input, narrow(reshape(source, -1), 0, 0, count), (INDEX,), [mask])


def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """``input`` plus ``alpha`` times the slices of ``source``, added at ``index`` along ``dim``."""
    key = (slice(None),) * one_dim(dim, input.ndim) + (INDEX,)
    scaled = source if alpha == 1 else mul(source, alpha)
    return add(input, scatter_index(scaled, key, [as_tensor_operand(index)], input.shape))


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """More elements before and after: ``pad`` is (before, after) for the last dimension first.

    Args:
        input: any tensor.
        pad: an even number of counts; negative ones take elements away (``constant`` only).
        mode: ``"constant"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        value: of the new elements of ``"constant"``.

    Raises:
        RuntimeError: there are too many counts, or an odd number of them.
        NotImplementedError: another mode.
    """
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad) - 1, 2)]
    if len(pad) % 2 or len(pairs) > input.ndim:
        raise RuntimeError(
            f"Padding length should be even and at most {2 * input.ndim}, but got {list(pad)}"
        )
    if mode == "constant":
        return _pad_constant(input, [(0, 0)] * (input.ndim - len(pairs)) + pairs[::-1], value)
    numpy_mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}.get(mode)
    if numpy_mode is None:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    for at, counts in enumerate(pairs):
        dim = input.ndim - 1 - at
        places: Any = np.pad(np.arange(input.shape[dim]), counts, mode=numpy_mode)  # type: ignore[call-overload]
        input = index_select(input, dim, Tensor(places))
    return input


def _pad_constant(input: Tensor, counts: list[tuple[int, int]], value: float) -> Tensor:
    inner = tuple(
        slice(max(-before, 0), n + min(after, 0))
        for (before, after), n in zip(counts, input.shape, strict=True)
    )
    kept = getitem(input, inner)
    place = tuple(
        slice(max(before, 0), max(before, 0) + n)
        for (before, _), n in zip(counts, kept.shape, strict=True)
    )
    shape = tuple(
        n + max(before, 0) + max(after, 0)
        for (before, after), n in zip(counts, kept.shape, strict=True)
    )
    padded = scatter_index(kept, place, [], shape)
    if value == 0:
        return padded
    around = np.ones(shape, bool)
    around[place] = False
    return where(beside(padded, around), value, padded)
