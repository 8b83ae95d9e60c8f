"""Elements in other places: windows, blocks, turned images, and parts that are written over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cpu.cpu_views import strided_places
from mpgrad.base.size import Size
from mpgrad.ops.by_index.indexing import tensor_split
from mpgrad.ops.by_index.overwriting import index_put
from mpgrad.ops.by_index.scattering import index_copy
from mpgrad.ops.by_index.selection import diag, pad
from mpgrad.ops.calling.dimensions import INTEGERS, as_tuple, one_dim
from mpgrad.ops.calling.promotion import cast, result_dtype
from mpgrad.ops.elementwise.minimum_maximum import nonzero
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.ordering import sort
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.joining import hstack
from mpgrad.ops.shapes.shape import cat, clone, flip, permute, reshape, transpose, unsqueeze
from mpgrad.ops.shapes.tiles_and_pairs import atleast_3d
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import storage_offset as place_in_memory

__all__ = [
    "argwhere",
    "as_strided",
    "block_diag",
    "broadcast_shapes",
    "column_stack",
    "diagflat",
    "diagonal_scatter",
    "dsplit",
    "dstack",
    "hsplit",
    "msort",
    "put",
    "rot90",
    "select_scatter",
    "slice_scatter",
    "sum_to_size",
    "unfold",
    "vsplit",
]


def _windows_grad(
    xp: Any, grad: Any, input_shape: tuple[int, ...], dim: int, size: int, step: int
) -> Any:
    beside_dim = (*range(dim + 1), grad.ndim - 1, *range(dim + 1, grad.ndim - 1))
    places = np.add.outer(np.arange(grad.shape[dim]) * step, np.arange(size))
    key = (*(slice(None),) * dim, INDEX)
    indices = (xp.constant_beside(grad, places),)
    return xp.scatter_index(xp.transpose(grad, beside_dim), key, indices, input_shape)


_unfold = operator(
    "unfold",
    lambda xp, input, *, dim, size, step: xp.unfold(input, dim, size, step),
    input=_windows_grad,
    view="unfold",
)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """The windows along a dimension, as a last dimension: a view (on a GPU a copy).

    Args:
        input: any tensor.
        dimension: along which they lie.
        size: of each.
        step: between their beginnings.

    Raises:
        RuntimeError: ``size`` is larger than the dimension, or ``step`` is not positive.
    """
    dim = one_dim(dimension, input.ndim)
    length = input.shape[dim] if input.ndim else 1
    if size < 0 or size > length:
        raise RuntimeError(
            f"maximum size for tensor at dimension {dim} is {length} but size is {size}"
        )
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if input.ndim == 0:
        return reshape(input, 1)[:size]  # type: ignore[no-any-return]
    return call(_unfold, input, dim=dim, size=size, step=step)


def _strided_grad(
    xp: Any,
    grad: Any,
    input_shape: tuple[int, ...],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> Any:
    places = strided_places(size, stride, offset).reshape(-1)
    flat, total = xp.reshape(grad, (places.size,)), (math.prod(input_shape),)
    indices = (xp.constant_beside(grad, places),)
    return xp.reshape(xp.scatter_index(flat, (INDEX,), indices, total), input_shape)


_as_strided = operator(
    "as_strided",
    lambda xp, input, *, size, stride, offset: xp.as_strided(input, size, stride, offset),
    input=_strided_grad,
    view="as_strided",
)


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements of the memory of ``input`` at distances that are given: a view (on a GPU a copy).

    Args:
        input: contiguous, or a view of a contiguous tensor; then elements outside of it can be
            reached where no gradient is wanted.
        size: of the result.
        stride: how far apart neighbours are along each dimension, in elements.
        storage_offset: the place of the first element in the memory, by default that of ``input``.

    Raises:
        RuntimeError: the memory is not contiguous, or a place lies outside.
    """
    if len(size) != len(stride) or min([*stride, 0]) < 0:
        raise RuntimeError("mismatch in length of strides and shape, or a negative stride")
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else -1
    source, offset = input, 0
    if storage_offset is not None:
        offset = storage_offset - place_in_memory(input)
    if not input.is_contiguous() or offset < 0 or offset + reach >= input.numel():
        source, offset = _memory_of(input), offset + place_in_memory(input)
    if offset < 0 or offset + reach >= source.numel():
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} are "
            f"out of bounds for {source.numel()} elements"
        )
    return call(_as_strided, source, size=tuple(size), stride=tuple(stride), offset=offset)


def _memory_of(input: Tensor) -> Tensor:
    """The tensor whose elements are all that ``input`` is a view of."""
    base = input if input._view is None else input._view.base
    wanted = input.requires_grad and is_grad_enabled()
    if not base.is_contiguous() or (base is not input and wanted):
        raise RuntimeError(
            "as_strided: the input is not contiguous, or the result reaches outside of it and it "
            "requires grad; call contiguous() first"
        )
    return base


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees ``k`` times, from the first of ``dims`` towards the second.

    Raises:
        RuntimeError: ``dims`` are not two different dimensions.
    """
    if len(dims) != 2 or input.ndim < 2:
        raise RuntimeError(
            f"expected total rotation dims == 2 and total dims >= 2, but got dims = {len(dims)} "
            f"and total dims = {input.ndim}"
        )
    first, second = (one_dim(d, input.ndim) for d in dims)
    if first == second:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    turns = k % 4
    if turns == 1:
        return transpose(flip(input, second), first, second)
    if turns == 2:
        return flip(input, (first, second))
    if turns == 3:
        return flip(transpose(input, first, second), second)
    return clone(input)


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with these on its diagonal, zeros elsewhere; vectors count as rows.

    Raises:
        RuntimeError: one has more than two dimensions.
    """
    for at, tensor in enumerate(tensors):
        if tensor.ndim > 2:
            raise RuntimeError(
                "block_diag: Input tensors must have 2 or fewer dimensions. Input "
                f"{at} has {tensor.ndim} dimensions"
            )
    if not tensors:
        return empty(1, 0)
    dtype = result_dtype(*tensors)
    blocks = [cast(reshape(t, (1, -1)) if t.ndim < 2 else t, dtype) for t in tensors]
    width, before, rows = sum(b.shape[1] for b in blocks), 0, []
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(pad(block, (before, after)))
        before += block.shape[1]
    return cat(rows, 0)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices side by side; vectors count as columns."""
    return hstack([reshape(t, (t.numel(), 1)) if t.ndim <= 1 else t for t in tensors])


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third dimension, which vectors and matrices get.

    Raises:
        RuntimeError: there are none.
    """
    if not tensors:
        raise RuntimeError("dstack expects a non-empty TensorList")
    return cat([atleast_3d(t) for t in tensors], 2)


def _split_along(name: str, input: Tensor, parts: Any, dim: int, least: int) -> Any:
    if input.ndim < least:
        raise RuntimeError(
            f"{name} requires a tensor with at least {least} dimension, but got a tensor with "
            f"{input.ndim} dimensions!"
        )
    if isinstance(parts, INTEGERS) and (parts <= 0 or input.shape[dim] % parts):
        raise RuntimeError(
            f"{name} attempted to split along dimension {dim}, but the size of the dimension "
            f"{input.shape[dim]} is not divisible by the split_size {parts}!"
        )
    return tensor_split(input, parts, dim)


def hsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts along the second dimension (of a vector along its only one).

    Raises:
        RuntimeError: they are not equal, or there is no dimension.
    """
    return _split_along("hsplit", input, indices_or_sections, min(input.ndim - 1, 1), 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts along the first dimension.

    Raises:
        RuntimeError: they are not equal, or there are fewer than two dimensions.
    """
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """Parts along the third dimension.

    Raises:
        RuntimeError: they are not equal, or there are fewer than three dimensions.
    """
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix that has all elements on a diagonal."""
    return diag(reshape(input, (-1,)), offset)


def msort(input: Tensor) -> Tensor:
    """Sorted along the first dimension."""
    return sort(input, 0).values


def argwhere(input: Tensor) -> Tensor:
    """The indices of all elements that are not zero, a row each."""
    return nonzero(input)  # type: ignore[no-any-return]


def broadcast_shapes(*shapes: Any) -> Any:
    """The shape to which tensors of these shapes broadcast.

    Raises:
        RuntimeError: they do not.
    """
    for shape in shapes:
        if not isinstance(shape, int | tuple | list):
            raise RuntimeError(
                f"broadcast_shapes(): shapes are ints or tuples of them, not {shape!r}"
            )
    return Size(broadcast_shape(*(as_tuple(s) for s in shapes)))


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum down to ``size``, from which broadcasting could have made the shape of ``input``.

    Raises:
        RuntimeError: it could not.
    """
    wanted = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], INTEGERS) else tuple(size)
    if not wanted:
        return sum_over(input)
    lead = input.ndim - len(wanted)
    rest = tuple(input.shape[max(lead, 0) :])
    if lead < 0 or any(n not in (1, m) for n, m in zip(wanted, rest, strict=True)):
        raise RuntimeError(f"size {list(wanted)} is not expandable to size {list(input.shape)}.")
    dims = [*range(lead), *(lead + at for at, n in enumerate(wanted) if n == 1 != rest[at])]
    return reshape(sum_over(input, tuple(dims)), wanted) if dims else input


# --------------------------------------------------------------------------- parts written over


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """``input`` with ``src`` at ``index`` along ``dim``.

    Raises:
        RuntimeError: the shapes do not fit.
        IndexError: there is no such index.
    """
    dim = one_dim(dim, input.ndim)
    length = input.shape[dim]
    if not -length <= index < length:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input.shape)} at "
            f"dimension {dim}"
        )
    if tuple(src.shape) != (*input.shape[:dim], *input.shape[dim + 1 :]):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, input size = {list(input.shape)}"
        )
    return index_copy(input, dim, beside(input, np.array([index % length])), unsqueeze(src, dim))


def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """``input`` with ``src`` at ``start:end:step`` along ``dim``.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    dim = one_dim(dim, input.ndim)
    places = np.arange(input.shape[dim])[slice(start, end, step)]
    if src.shape[dim] != len(places) or src.ndim != input.ndim:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, slice of {len(places)} along {dim}"
        )
    return index_copy(input, dim, beside(input, places), src) if len(places) else clone(input)


def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """``input`` with ``src`` on a diagonal.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    first, second = one_dim(dim1, input.ndim), one_dim(dim2, input.ndim)
    order = [d for d in range(input.ndim) if d not in (first, second)] + [first, second]
    turned = permute(input, *order)
    count = max(min(turned.shape[-2] + min(offset, 0), turned.shape[-1] - max(offset, 0)), 0)
    if tuple(src.shape) != (*turned.shape[:-2], count):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, diagonal of {[*turned.shape[:-2], count]}"
        )
    rows, columns = np.arange(count) - min(offset, 0), np.arange(count) + max(offset, 0)
    flat = reshape(turned, (*turned.shape[:-2], turned.shape[-2] * turned.shape[-1]))
    places = beside(input, rows * turned.shape[-1] + columns)
    written = reshape(index_copy(flat, flat.ndim - 1, places, src), tuple(turned.shape))
    return permute(written, *np.argsort(order).tolist())


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """``input`` with ``source`` at places of the flattened tensor; ``accumulate``: added there.

    Raises:
        RuntimeError: there are not as many elements as places, or the dtypes differ.
    """
    if index.numel() != source.numel() or input.dtype != source.dtype:
        raise RuntimeError(
            "put_(): Expected source and index to have the same number of elements and source and "
            f"input one dtype, but got {source.numel()}, {index.numel()}, {source.dtype}, "
            f"{input.dtype}"
        )
    flat = clone(reshape(input, (-1,)))
    written = index_put(flat, (reshape(index, (-1,)),), reshape(source, (-1,)), accumulate)
    return reshape(written, tuple(input.shape))
