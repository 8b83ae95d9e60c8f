"""Elements chosen by mask, index or place: made of the operators of indexing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import diagonal as diagonal_of
from mpgrad.ops.by_index.indexing import (
    diagonal_scatter,
    getitem,
    index_select,
    narrow,
    pick,
    scatter_index,
)
from mpgrad.ops.by_index.overwriting import masked_fill
from mpgrad.ops.calling.dimensions import as_tuple, one_dim
from mpgrad.ops.elementwise.arithmetic import sub
from mpgrad.ops.elementwise.comparison import logical_xor
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import broadcast_to, cat, clone, reshape
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "diag",
    "diff",
    "masked_select",
    "repeat_interleave",
    "roll",
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
    check_mask("masked_select", mask)
    shape = broadcast_shape(input.shape, mask.shape)
    return getitem(broadcast_to(input, shape), broadcast_to(mask, shape))


def check_mask(name: str, mask: Tensor) -> None:
    """Raise unless ``mask`` is boolean.

    Raises:
        RuntimeError: that is not so.
    """
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
        RuntimeError: not as many shifts as dimensions, or none.
    """
    if as_tuple(shifts) == ():
        raise RuntimeError("`shifts` required")
    if dims is None or as_tuple(dims) == ():
        return reshape(roll(reshape(input, -1), shifts, 0), input.shape)
    steps = as_tuple(shifts)
    along = as_tuple(dims)
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


def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each element along ``dim`` minus the one before it, ``n`` times.

    Args:
        input: any tensor with dimensions.
        n: how often.
        dim: along which the elements follow each other.
        prepend: elements before the first of them.
        append: elements after the last of them.

    Raises:
        RuntimeError: ``n`` is negative, or ``input`` has no dimensions.
    """
    if n < 0:
        raise RuntimeError(f"diff(): order must be non-negative but got {n}")
    if input.ndim == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n == 0:
        return clone(input)
    parts = [part for part in (prepend, input, append) if part is not None]
    input = cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        length = max(input.shape[one_dim(dim, input.ndim)] - 1, 0)
        before = narrow(input, dim, 0, length)
        after = narrow(input, dim, min(1, length), length)
        input = logical_xor(after, before) if input.dtype.kind == "b" else sub(after, before)
    return input


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each slice along ``dim`` (or each element) ``repeats`` times (a number, or one per slice).

    With ``input`` alone the numbers 0, 1, ..., each repeated as often as ``input`` says.

    Raises:
        RuntimeError: a number is negative, there are not as many as slices, or ``output_size`` is
            not the resulting length.
        NotImplementedError: numbers of repetitions are no integers.
    """
    if repeats is None:
        if input.dtype not in (np.int32, np.int64):
            raise NotImplementedError(f"repeat_interleave is not implemented for {input.dtype}")
        if input.ndim != 1:
            raise RuntimeError("repeat_interleave(): repeats must be a vector")
        count = Tensor(np.arange(input._array.size, dtype=input.dtype))
        return repeat_interleave(count, input, 0, output_size=output_size)
    if dim is None:
        return repeat_interleave(reshape(input, -1), repeats, 0, output_size=output_size)
    if isinstance(repeats, str):
        raise TypeError("repeat_interleave(): argument 'repeats' must be int or Tensor, not str")
    if isinstance(repeats, Tensor) and repeats.ndim > 1:
        raise RuntimeError("repeat_interleave(): repeats must be 0-dim or 1-dim tensor")
    if isinstance(repeats, Tensor) and repeats.dtype not in (np.int32, np.int64):
        raise NotImplementedError(f"repeat_interleave is not implemented for {repeats.dtype}")
    counts = on_host(repeats._array) if isinstance(repeats, Tensor) else repeats
    dim = one_dim(dim, input.ndim)
    if np.min(counts, initial=0) < 0:
        raise RuntimeError("repeat_interleave(): Repeats must be non-negative")
    if np.size(counts) not in (1, input.shape[dim]):
        raise RuntimeError(
            f"repeat_interleave(): repeats must have the same size as input along dim, but got "
            f"{np.size(counts)} and {input.shape[dim]}"
        )
    places = np.repeat(np.arange(input.shape[dim]), counts)
    if output_size is not None and output_size != places.size:
        raise RuntimeError(
            f"repeat_interleave(): allocated size does not match required size: {output_size}, "
            f"{places.size}"
        )
    return index_select(input, dim, Tensor(places))


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at ``index`` of the flattened tensor.

    Raises:
        RuntimeError: the index is no int64.
        IndexError: an index is out of range.
    """
    if index.dtype != np.int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index.dtype}")
    return pick(reshape(input, -1), 0, index)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """More elements before and after: ``pad`` is (before, after) for the last dimension first.

    Args:
        input: any tensor.
        pad: an even number of counts; negative ones take elements away.
        mode: ``"constant"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        value: of the new elements of ``"constant"``, by default 0.

    Raises:
        RuntimeError: there are too many counts, an odd number of them, not enough elements, or a
            ``value`` that the mode does not take.
        NotImplementedError: another mode.
    """
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad) - 1, 2)]
    if len(pad) % 2 or len(pairs) > input.ndim:
        raise RuntimeError(
            f"Padding length should be even and at most {2 * input.ndim}, but got {list(pad)}"
        )
    counts = [(0, 0)] * (input.ndim - len(pairs)) + pairs[::-1]
    if mode == "constant":
        return _pad_constant(input, counts, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if not any(map(any, counts)):
        return clone(input)
    for dim, (before, after) in enumerate(counts):
        if before or after:
            places = _places(mode, input.shape[dim], before, after)
            input = index_select(input, dim, Tensor(places))
    return input


_padded = pad


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """The function ``pad`` with its mode ``"constant"``."""
    return _padded(input, pad, value=value)


def _places(mode: str, length: int, before: int, after: int) -> Any:
    """The elements of a dimension, in the order that they have after padding."""
    most = {"reflect": length - 1, "replicate": math.inf if length else 0, "circular": length}
    if max(before, after) > most[mode] or length + before + after < 0:
        raise RuntimeError(
            f"pad: Padding size should be less than the corresponding input dimension, but got: "
            f"padding ({before}, {after}) of {length} elements with mode {mode!r}"
        )
    places = np.arange(-before, length + after)
    if mode == "replicate":
        return np.clip(places, 0, length - 1)
    if mode == "reflect":
        mirrored = np.abs(places)
        return np.where(mirrored < length, mirrored, 2 * (length - 1) - mirrored)
    # Around what is left, where elements are taken away.
    first, rest = max(-before, 0), length + min(before, 0) + min(after, 0)
    return (places - first) % max(rest, 1) + first


def _pad_constant(input: Tensor, counts: list[tuple[int, int]], value: float) -> Tensor:
    if any(n + before + after < 0 for (before, after), n in zip(counts, input.shape, strict=True)):
        raise RuntimeError(f"pad: {counts} takes more away than {list(input.shape)} has")
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
    return masked_fill(padded, beside(padded, around), value)
