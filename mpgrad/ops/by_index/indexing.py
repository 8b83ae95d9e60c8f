"""Elements picked by index: ``x[key]``, ``gather``, ``split`` and their adjoints."""

from __future__ import annotations

import itertools
import operator as python_operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.index_checks import (
    as_vector,
    check_bounds,
    check_covered,
    check_index_dtype,
)
from mpgrad.ops.calling.dimensions import INTEGERS, either, one_dim
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "chunk", "diagonal", "gather", "index_select", "narrow", "select", "split", "split_with_sizes",
    "take_along_axis", "tensor_split", "unbind",
]  # fmt: skip

_getitem = operator(
    "getitem",
    lambda xp, input, *indices, key: xp.getitem(input, key, indices),
    input=lambda xp, grad, indices, key, input_shape: xp.scatter_index(
        grad, key, indices, input_shape
    ),
    wirtinger=True,
    view="getitem",
)


def getitem(input: Tensor, key: Any) -> Tensor:
    """``input[key]``; index arrays may repeat an element."""
    plain, indices = split_key(key)
    if indices:
        input, plain = selected(input, plain, indices)
    return call(_getitem, input, *indices, key=plain)


def selected(
    input: Tensor, key: tuple[Any, ...], indices: Sequence[Tensor]
) -> tuple[Tensor, tuple[Any, ...]]:
    """Beside index arrays: ``input`` at the numbers of ``key``, and the rest of the key.

    For NumPy a number beside arrays is one of them, and decides where their dimensions come; for
    PyTorch its dimension is gone before.
    """
    if not any(type(item) is int for item in key):
        return input, key
    left = iter(indices)
    numbers: list[Any] = []
    for item in key:
        if item == INDEX:
            numbers += [slice(None)] * _dims_taken(next(left))
        elif item is not None:
            numbers.append(slice(None) if isinstance(item, slice) else item)
    rest = tuple(item for item in key if type(item) is not int)
    return call(_getitem, input, key=tuple(numbers)), rest


def _dims_taken(index: Tensor) -> int:
    """The number of dimensions that an index array replaces: for a mask its own number."""
    return index.ndim if index._array.dtype.kind == "b" else 1


def split_key(key: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """A key as an attribute that can be sent (``INDEX`` for each array), and the arrays.

    Raises:
        IndexError: an array holds neither integers nor booleans.
        ValueError: a slice goes backwards.
    """
    plain: list[Any] = []
    indices: list[Tensor] = []
    for item in _items(key):
        if item is None or item is Ellipsis:
            plain.append(item)
        elif isinstance(item, slice):
            plain.append(slice(*(_whole(x) for x in (item.start, item.stop, item.step))))
            if item.step is not None and plain[-1].step < 1:
                raise ValueError("slice step must be greater than zero; use flip() to go backwards")
        elif _is_whole(item):
            plain.append(python_operator.index(item))
        else:
            plain.append(INDEX)
            indices.append(_index_tensor(item))
    return tuple(plain), indices


def _items(key: Any) -> Sequence[Any]:
    """The items of a key; a list is one item, but for those that PyTorch takes for a tuple."""
    if isinstance(key, tuple):
        return key
    if not isinstance(key, list) or len(key) >= _LIST_MAX:
        return (key,)
    if not any(item is None or item is Ellipsis or isinstance(item, _NOT_ALONE) for item in key):
        return (key,)
    warnings.warn(
        "Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] "
        "instead of x[seq], or x[mg.tensor(seq)] for an index tensor.",
        UserWarning,
        stacklevel=4,
    )
    return key


#: A longer list is an index, as in the NumPy version whose rule PyTorch uses.
_LIST_MAX = 32
_NOT_ALONE = (slice, list, tuple, Tensor, np.ndarray)


def _is_whole(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.ndim == 0 and item._array.dtype.kind in "iu" and item.dtype != np.uint8
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def _whole(value: Any) -> int | None:
    return None if value is None else python_operator.index(value)


def _index_tensor(item: Any) -> Tensor:
    if isinstance(item, str):
        raise TypeError(f"a tensor has no element {item!r}: an index is a number, slice or tensor")
    if not isinstance(item, Tensor):
        array = np.asarray(item)
        item = Tensor(array if array.size else array.astype(np.int64))
    if item._array.dtype.kind not in "biu":
        raise IndexError(
            "tensors used as indices must be long, int, byte or bool tensors, not "
            f"{item._array.dtype}"
        )
    if item._array.dtype == np.uint8:
        warnings.warn(
            "indexing with dtype uint8 is deprecated: it is taken as a mask. Use bool, or int64 "
            "for places.",
            UserWarning,
            stacklevel=4,
        )
        item = cast(item, bool)
    return item


_scatter_index = operator(
    "scatter_index",
    lambda xp, input, *indices, key, shape: xp.scatter_index(input, key, indices, shape),
    input=lambda xp, grad, indices, key: xp.getitem(grad, key, indices),
    wirtinger=True,
)


def scatter_index(
    input: Tensor, key: tuple[Any, ...], indices: Sequence[Tensor], shape: tuple[int, ...]
) -> Tensor:
    """Zeros of ``shape`` with ``input`` added at ``key``: the adjoint of :func:`getitem`."""
    return call(_scatter_index, input, *indices, key=key, shape=shape)


_take_along_axis = operator(
    "take_along_axis",
    lambda xp, input, indices, *, dim: xp.take_along_axis(input, indices, dim),
    input=lambda xp, grad, indices, input_shape, dim: xp.scatter_along_axis(
        grad, indices, dim, input_shape[dim]
    ),
    wirtinger=True,
)


def take_along_axis(input: Tensor, indices: Tensor, dim: int) -> Tensor:
    """The elements at ``indices`` along ``dim``; other dimensions have equal lengths."""
    return call(_take_along_axis, input, indices, dim=one_dim(dim, input.ndim))


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """The elements at ``index`` along ``dim``; ``index`` may be shorter in other dimensions.

    ``sparse_grad`` changes nothing: gradients are dense.

    Raises:
        RuntimeError: ``index`` has another number of dimensions, another dtype than int32 and
            int64, or is out of range.
    """
    dim = one_dim(dim, input.ndim)
    check_index_dtype("gather", index)
    if not index._array.size and index.ndim != input.ndim:
        return reshape(narrow(reshape(input, -1), 0, 0, 0), index.shape)
    source, places = as_vector(input), as_vector(index)
    check_covered("gather", places, source, dim)
    check_bounds("gather", places._array, dim, source.shape[dim], RuntimeError)
    key = tuple(slice(0, source.shape[i] if i == dim else n) for i, n in enumerate(places.shape))
    covered = all(s.stop == n for s, n in zip(key, source.shape, strict=True))
    found = take_along_axis(source if covered else getitem(source, key), places, dim)
    return found if index.ndim else reshape(found, ())


_scatter_along_axis = operator(
    "scatter_along_axis",
    lambda xp, input, indices, *, dim, size: xp.scatter_along_axis(input, indices, dim, size),
    input=lambda xp, grad, indices, dim: xp.take_along_axis(grad, indices, dim),
    wirtinger=True,
)


def scatter_along_axis(input: Tensor, indices: Tensor, dim: int, size: int) -> Tensor:
    """The adjoint of :func:`take_along_axis`: repeated indices add up."""
    return call(_scatter_along_axis, input, indices, dim=dim, size=size)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at ``index`` (1-d) along ``dim``.

    Raises:
        RuntimeError: ``index`` is no int32 or int64.
        IndexError: it is no vector, or out of range.
    """
    dim = one_dim(dim, input.ndim)
    check_index_dtype("index_select", index)
    if index.ndim > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector, not {index.ndim}-D")
    source, places = as_vector(input), as_vector(index)
    check_bounds("index_select", places._array, dim, source.shape[dim])
    picked = pick(source, dim, places)
    if input.ndim:
        return picked
    if places.shape[0] != 1:
        raise RuntimeError(
            f"index_select(): Index to scalar can have only 1 value, got {places.shape[0]}"
        )
    return reshape(picked, ())


def pick(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at ``index`` along ``dim``: a copy, with the dimensions of ``index`` there."""
    key = (slice(None),) * dim + (INDEX,)
    if index.ndim:
        return call(_getitem, input, index, key=key)
    # An index without dimensions would give a view.
    picked = call(_getitem, input, reshape(index, (1,)), key=key)
    return reshape(picked, input.shape[:dim] + input.shape[dim + 1 :])


_split = operator(
    "split",
    lambda xp, input, *, sizes, dim: _pieces(xp, input, sizes, dim),
    input=lambda xp, grads, dim: xp.concatenate(grads, dim),
    outputs=None,
    view="split",
)


def _pieces(xp: Any, input: Any, sizes: tuple[int, ...], dim: int) -> tuple[Any, ...]:
    stops = list(itertools.accumulate(sizes))
    return tuple(
        xp.getitem(input, (slice(None),) * dim + (slice(stop - size, stop),))
        for size, stop in zip(sizes, stops, strict=True)
    )


def split(
    input: Tensor, split_size: Any = None, dim: int = 0, *, split_size_or_sections: Any = None
) -> tuple[Tensor, ...]:
    """Views of ``split_size`` elements each along ``dim`` (or of the sizes in a list).

    Raises:
        TypeError: no ``split_size`` (or, by its other name, ``split_size_or_sections``) is given.
        RuntimeError: the sizes in the list do not add up to the length, the size is not positive,
            or the tensor has no dimensions.
    """
    split_size = either("split_size", split_size, "split_size_or_sections", split_size_or_sections)
    if split_size is None:
        raise TypeError("split() missing 1 required argument: split_size")
    if input.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    dim = one_dim(dim, input.ndim)
    length = input.shape[dim]
    if isinstance(split_size, INTEGERS):
        if split_size < 0 or (split_size == 0 and length):
            text = "split expects split_size be non-negative, and 0 only of nothing, but got"
            raise RuntimeError(f"{text} split_size={split_size} and {length} elements")
        split_size = split_size or 1
        starts = range(0, max(length, 1), split_size)
        sizes = tuple(min(split_size, length - start) for start in starts)
    else:
        sizes = tuple(split_size)
        if sum(sizes) != length:
            text = "split_with_sizes expects split_sizes to sum exactly to"
            where = f"(input tensor's size at dimension {dim})"
            raise RuntimeError(f"{text} {length} {where}, but got split_sizes={list(sizes)}")
    return call(_split, input, sizes=sizes, dim=dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` views of equal length along ``dim``, the last perhaps shorter.

    Raises:
        RuntimeError: ``chunks`` is not positive, or the tensor has no dimensions.
    """
    if chunks < 1:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if input.ndim == 0:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    length = input.shape[one_dim(dim, input.ndim)]
    return split(input, -(-length // chunks) if length else [0] * chunks, dim)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the lengths in ``split_sizes`` along ``dim``, as :func:`split` gives them."""
    return split(input, list(split_sizes), dim)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views along ``dim``: that many of nearly equal length, or cut at the indices in a list.

    Raises:
        RuntimeError: the number of sections is not positive.
    """
    dim = one_dim(dim, input.ndim)
    length = input.shape[dim]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = on_host(indices_or_sections._array).tolist()
    if isinstance(indices_or_sections, INTEGERS):
        sections = indices_or_sections
        if sections < 1:
            raise RuntimeError(f"number of sections must be larger than 0, got {sections}")
        short, more = divmod(length, sections)
        sizes = [short + 1] * more + [short] * (sections - more)
        cuts = list(itertools.accumulate(sizes))[:-1]
    else:
        cuts = [python_operator.index(cut) for cut in indices_or_sections]
    starts, stops = [None, *cuts], [*cuts, None]
    before = (slice(None),) * dim
    return tuple(
        getitem(input, (*before, slice(start, stop)))
        for start, stop in zip(starts, stops, strict=True)
    )


_unbind = operator(
    "unbind",
    lambda xp, input, *, dim: tuple(
        xp.getitem(input, (slice(None),) * dim + (i,)) for i in range(input.shape[dim])
    ),
    input=lambda xp, grads, dim: xp.stack(grads, dim),
    outputs=None,
    view="unbind",
)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The views along ``dim``, without that dimension.

    Raises:
        IndexError: the tensor has no dimensions.
    """
    if input.ndim == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return call(_unbind, input, dim=one_dim(dim, input.ndim))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The view at ``index`` along ``dim``, without that dimension.

    Raises:
        IndexError: there is no such dimension or index.
    """
    if input.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    place = python_operator.index(index)
    return getitem(input, (slice(None),) * one_dim(dim, input.ndim) + (place,))


def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The view of ``length`` elements from ``start`` on along ``dim``.

    Raises:
        RuntimeError: the piece does not lie inside, ``start`` is more than one integer, or the
            tensor has no dimensions.
        IndexError: it begins outside.
    """
    if input.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    if isinstance(start, Tensor) and (start.ndim or start.dtype.kind not in "iu"):
        raise RuntimeError("narrow(): start must be an 0-dim integral Tensor.")
    dim = one_dim(dim, input.ndim)
    total, start = input.shape[dim], python_operator.index(start)
    if not -total <= start <= total:
        raise IndexError(
            f"narrow(): start out of range (expected to be in range of [{-total}, {total}], but "
            f"got {start})"
        )
    begin = start + total if start < 0 else start
    if length < 0 or begin < 0 or begin + length > total:
        raise RuntimeError(
            f"narrow(): start ({start}) + length ({length}) exceeds dimension size ({total})."
        )
    return getitem(input, (slice(None),) * dim + (slice(begin, begin + length),))


_diagonal = operator(
    "diagonal",
    lambda xp, input, *, offset, dim1, dim2: xp.diagonal(input, offset, dim1, dim2),
    input=lambda xp, grad, input_shape, offset, dim1, dim2: xp.diagonal_scatter(
        grad, input_shape, offset, dim1, dim2
    ),
    view="diagonal",
)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The view of the elements with equal indices in two dimensions; it comes last.

    Raises:
        RuntimeError: the two dimensions are the same.
    """
    first, second = one_dim(dim1, input.ndim), one_dim(dim2, input.ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return call(_diagonal, input, offset=offset, dim1=first, dim2=second)


_diagonal_scatter = operator(
    "diagonal_scatter",
    lambda xp, input, *, shape, offset, dim1, dim2: xp.diagonal_scatter(
        input, shape, offset, dim1, dim2
    ),
    input=lambda xp, grad, offset, dim1, dim2: xp.diagonal(grad, offset, dim1, dim2),
)


def diagonal_scatter(
    input: Tensor, shape: tuple[int, ...], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Zeros of ``shape`` with ``input`` on a diagonal: the adjoint of :func:`diagonal`."""
    return call(_diagonal_scatter, input, shape=shape, offset=offset, dim1=dim1, dim2=dim2)
