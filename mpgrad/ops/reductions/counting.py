"""Values, their numbers and their places in an order. Nothing here has a derivative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.calling.dimensions import as_tuple, one_dim, some_dims
from mpgrad.ops.calling.promotion import as_tensor_operand, require_numbers
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import not_implemented, operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "bincount",
    "bucketize",
    "count_nonzero",
    "histc",
    "isin",
    "nonzero_static",
    "searchsorted",
    "unique",
    "unique_consecutive",
    "unravel_index",
]


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """How many elements over ``dim`` (an int, several, or None for all) are not zero, int64."""
    counts = np.count_nonzero(on_host(input._array), some_dims(dim, None, input.ndim))
    return beside(input, np.asarray(counts, np.int64))


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first ``size`` elements that are not zero, rows of ``fill_value`` after
    them: int64 (size, dimensions).

    Raises:
        RuntimeError: ``size`` is negative.
    """
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = np.argwhere(on_host(input._array))[:size]
    rows = np.full((size, input.ndim), fill_value, np.int64)
    rows[: len(found)] = found
    return beside(input, rows)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """For places in a flattened tensor of ``shape`` their indices along each dimension.

    Raises:
        TypeError: ``shape`` is no length or sequence of lengths.
        ValueError: a place lies outside, or a length is negative.
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    lengths = as_tuple(shape)
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in lengths):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {shape}")
    if any(n < 0 for n in lengths):
        raise ValueError(f"'shape' cannot have negative values, but got {lengths}")
    found = np.unravel_index(on_host(indices._array).astype(np.int64), lengths)
    return tuple(beside(indices, np.asarray(part)) for part in found)


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each of ``elements`` is one of ``test_elements`` (with ``invert``: is none)."""
    first, second = as_tensor_operand(elements), as_tensor_operand(test_elements)
    found = np.isin(on_host(first._array), on_host(second._array), invert=invert)
    return beside(first, found)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 occurs, or the sum of its ``weights``.

    Raises:
        RuntimeError: ``input`` is no vector of integers from 0, or ``weights`` has another shape.
        NotImplementedError: the elements are no integers.
    """
    array = on_host(input._array)
    if array.dtype.kind not in "iu":
        raise NotImplementedError(f"bincount is not implemented for {input.dtype}")
    if array.ndim != 1 or np.min(array, initial=0) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is None:
        return beside(input, np.bincount(array, minlength=minlength))
    if weights.shape != input.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    sums = np.bincount(array, on_host(weights._array), minlength)
    return beside(input, sums.astype(np.float32 if weights.dtype == np.float32 else np.float64))


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of ``bins`` equal parts of [``min``, ``max``].

    Where both limits are equal, they are those of the elements. What lies outside is not counted.

    Raises:
        RuntimeError: ``bins`` is not positive, ``max`` is less than ``min``, or not finite.
        NotImplementedError: the elements are not floating.
    """
    require_numbers("histc", bins=bins, min=min, max=max)
    array = on_host(input._array)
    if array.dtype.kind != "f":
        raise NotImplementedError(f"histc is not implemented for {array.dtype}")
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    if min == max and array.size:
        min, max = float(array.min()), float(array.max())
    if min == max:
        min, max = min - 1, max + 1
    if not (np.isfinite(min) and np.isfinite(max)):
        raise RuntimeError(f"range of [{min}, {max}] is not finite")
    if min > max:
        raise RuntimeError("max must be larger than min")
    low, high = array.dtype.type(min), array.dtype.type(max)  # and the width is rounded, too
    inside = array[(array >= low) & (array <= high)]
    with np.errstate(over="ignore", invalid="ignore"):
        places = (inside - low) * bins / (high - low)
    counts = np.bincount(np.minimum(places.astype(np.int64), bins - 1), minlength=bins)
    return beside(input, counts.astype(array.dtype))


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where ``input`` goes into ``sorted_sequence``, so that that stays in order.

    Args:
        sorted_sequence: ascending along its last dimension.
        input: a number or a tensor; the dimensions before its last are those of the sequence,
            which may also be a vector.
        out_int32: int32 in place of int64.
        right: behind equal elements; ``side``: ``"left"`` or ``"right"`` says the same.
        sorter: the indices that sort the sequence, if it is not sorted.

    Raises:
        RuntimeError: the shapes do not fit, or ``side`` contradicts ``right``.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(f"searchsorted(): side is {side!r} and right is {right}")
    where = "right" if right or side == "right" else "left"
    values = as_tensor_operand(input)
    sequence, wanted = on_host(sorted_sequence._array), on_host(values._array)
    if not sequence.ndim or (sequence.ndim > 1 and not wanted.ndim):
        raise RuntimeError(
            "searchsorted(): the sequence must have a dimension, and only one beside a number, but "
            f"got {list(sequence.shape)} and {list(wanted.shape)}"
        )
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape or sorter.dtype != np.int64:
            raise RuntimeError(
                f"searchsorted(): sorter must be of dtype int64 and of the shape of the sequence, "
                f"{list(sequence.shape)}, not {sorter.dtype} of {list(sorter.shape)}"
            )
        sequence = np.take_along_axis(sequence, on_host(sorter._array), -1)
    if sequence.ndim == 1:
        places = np.asarray(np.searchsorted(sequence, wanted, where))  # type: ignore[call-overload]
    else:
        if sequence.shape[:-1] != wanted.shape[:-1]:
            raise RuntimeError(
                "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
                f"dimensions of boundaries tensor and input value tensor must match, but got "
                f"{list(sequence.shape)} and {list(wanted.shape)}"
            )
        places = np.empty(wanted.shape, np.int64)
        for at in np.ndindex(sequence.shape[:-1]):
            places[at] = np.searchsorted(sequence[at], wanted[at], where)  # type: ignore[call-overload]
    return beside(sorted_sequence, places.astype(np.int32 if out_int32 else np.int64))


def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Between which of the ascending ``boundaries`` each element lies.

    Raises:
        RuntimeError: ``boundaries`` is no vector.
    """
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in order (or slices along ``dim``).

    With ``return_inverse`` also where each element is among them, with ``return_counts`` also how
    often each occurs, as a tuple.

    Raises:
        RuntimeError: slices along ``dim`` have no elements.
    """
    axis = None if dim is None else _slices_dim(input, dim)
    array = on_host(input._array)
    values, inverse, counts = np.unique(
        array, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    inverse = inverse.reshape(array.shape if axis is None else -1)
    return _chosen(input, values, (inverse, return_inverse), (counts, return_counts))


def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The elements (or slices along ``dim``) without those that equal the one before them.

    The options are those of :func:`unique`.

    Raises:
        RuntimeError: slices along ``dim`` have no elements.
    """
    array = on_host(input._array)
    axis = 0 if dim is None else _slices_dim(input, dim)
    flat = array.reshape(-1) if dim is None else array
    rows = np.moveaxis(flat, axis, 0)
    rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows[1:] != rows[:-1]).any(1)
    inverse = np.cumsum(is_new) - 1
    counts = np.diff(np.append(np.flatnonzero(is_new), len(rows)))
    inverse = inverse.reshape(array.shape) if dim is None else inverse
    values = np.compress(is_new, flat, axis)
    return _chosen(input, values, (inverse, return_inverse), (counts, return_counts))


def _slices_dim(input: Tensor, dim: int) -> int:
    """``dim`` counted from the front, along which slices are compared.

    Raises:
        RuntimeError: the slices have no elements.
    """
    dim = one_dim(dim, input.ndim)
    if any(n == 0 for d, n in enumerate(input.shape) if d != dim):
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    return dim


_unique = operator(
    "unique", lambda xp, input, values: xp.copy(values), input=not_implemented("unique: input")
)


def _chosen(input: Tensor, values: Any, *others: tuple[Any, bool]) -> Any:
    kept = (beside(input, array) for array, is_wanted in others if is_wanted)
    tensors = (call(_unique, input, beside(input, values)), *kept)
    return tensors if len(tensors) > 1 else tensors[0]
