"""Tensors whose elements lie in memory in a given order, and elements put at places in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cpu.cpu_views import strided_places
from mpgrad.arrays.cuda.device_arrays import usable
from mpgrad.base.dtype import default_float
from mpgrad.ops.by_index.overwriting import put_index
from mpgrad.ops.new_tensors.creation import shape_from, tensor
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import storage_offset as place_in_memory

__all__ = ["as_strided_scatter", "empty_permuted", "empty_strided", "scalar_tensor"]


def scalar_tensor(s: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    """A tensor without dimensions, by default of the default floating dtype."""
    return tensor(s, dtype=dtype or default_float(), **_plain(options))


def empty_permuted(size: Any, physical_layout: Sequence[int], **options: Any) -> Tensor:
    """Uninitialised; ``physical_layout`` lists the dimensions from the outermost in memory on.

    Raises:
        RuntimeError: it does not list each dimension once.
    """
    shape = shape_from((size,))
    if sorted(physical_layout) != list(range(len(shape))):
        raise RuntimeError(
            f"empty_permuted: expected physical_layout to be a permutation of {len(shape)} "
            f"dimensions, but got {list(physical_layout)}"
        )
    back = [list(physical_layout).index(dim) for dim in range(len(shape))]
    made = _empty([shape[dim] for dim in physical_layout], options)
    return _of_array(made.transpose(back), options)


def empty_strided(size: Any, stride: Sequence[int], **options: Any) -> Tensor:
    """Uninitialised; ``stride`` says how far neighbours are apart in memory, in elements.

    Raises:
        RuntimeError: there are not as many strides as dimensions, or a stride is negative.
    """
    shape = shape_from((size,))
    if len(shape) != len(stride) or min([*stride, 0]) < 0:
        raise RuntimeError(
            f"empty_strided: mismatch in length of strides and shape, or a negative stride: "
            f"{list(shape)} and {list(stride)}"
        )
    reach = sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
    memory = _empty([reach if all(shape) else 0], options)
    steps = [step * memory.itemsize for step in stride]
    return _of_array(np.lib.stride_tricks.as_strided(memory, shape, steps), options)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    ignored = ("layout", "pin_memory", "memory_format")
    return {name: value for name, value in options.items() if name not in ignored}


def _empty(shape: Sequence[int], options: dict[str, Any]) -> Any:
    dtype = options.get("dtype") or default_float()
    return storage.empty(tuple(shape), dtype, usable(options.get("device")))


def _of_array(array: Any, options: dict[str, Any]) -> Tensor:
    return Tensor(array).requires_grad_(bool(options.get("requires_grad")))


def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """``input`` with the elements of ``src`` at the places that ``as_strided`` would show.

    Raises:
        RuntimeError: ``src`` has another shape than ``size``, or a place lies outside.
    """
    if tuple(src.shape) != tuple(size):
        raise RuntimeError(
            f"as_strided_scatter: expected src to have a size equal to {list(size)}, but it has "
            f"{list(src.shape)}"
        )
    offset = 0 if storage_offset is None else storage_offset - place_in_memory(input)
    memory = strided_places(tuple(input.shape), tuple(input.stride()), 0).reshape(-1)
    number = np.full(max(memory, default=0) + 1, -1)
    number[memory] = np.arange(memory.size)
    places = strided_places(tuple(size), tuple(stride), offset).reshape(-1)
    if places.size and not 0 <= places.min() <= places.max() < number.size:
        raise RuntimeError(
            f"as_strided_scatter: sizes {list(size)}, strides {list(stride)}, storage offset "
            f"{storage_offset} are out of bounds for {math.prod(input.shape)} elements"
        )
    shown = np.flatnonzero(number[places] >= 0)
    values = reshape(src, -1)[beside(src, shown)] if shown.size < places.size else reshape(src, -1)
    targets = beside(input, number[places[shown]])
    return reshape(put_index(reshape(input, -1), values, (INDEX,), [targets]), input.shape)
