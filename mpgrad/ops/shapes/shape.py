"""Shape, order and place of elements: reshape, transpose, expand, join."""

from __future__ import annotations

import math
import operator as python_operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mpgrad.base.memory_formats import MemoryFormat, contiguous_format, preserve_format
from mpgrad.ops.calling.dimensions import either, one_dim
from mpgrad.ops.calling.promotion import as_tensor_operand, cast, result_dtype
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "broadcast_to",
    "cat",
    "clone",
    "contiguous",
    "expand",
    "flatten",
    "flip",
    "movedim",
    "permute",
    "ravel",
    "repeat",
    "reshape",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
]

_reshape = operator(
    "reshape",
    lambda xp, input, *, shape: xp.reshape(input, shape),
    input=lambda xp, grad, input_shape: xp.reshape(grad, input_shape),
    view="reshape",
)


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """The same elements in another shape (one length may be -1); a view where possible.

    Raises:
        RuntimeError: the number of elements differs.
    """
    return call(_reshape, input, shape=_complete_shape(input, _sizes(shape)))


def view(input: Tensor, *shape: Any) -> Tensor:
    """Like :func:`reshape`, but never a copy; ``view(dtype)`` is not supported.

    Raises:
        RuntimeError: the elements' order in memory does not allow it.
    """
    result = reshape(input, *shape)
    if result._array.size and not np.may_share_memory(result._array, input._array):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return result


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the dimensions from ``start_dim`` to ``end_dim`` into one.

    Raises:
        RuntimeError: ``start_dim`` comes after ``end_dim``.
    """
    first, last = one_dim(start_dim, input.ndim), one_dim(end_dim, input.ndim)
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if first == last and input.ndim:
        return input
    joined = math.prod(input.shape[first : last + 1])
    return reshape(input, (*input.shape[:first], joined, *input.shape[last + 1 :]))


def squeeze(input: Tensor, dim: Any = None, *, axis: Any = None) -> Tensor:
    """Without the dimensions of length 1 (all of them, or those named)."""
    dim = either("dim", dim, "axis", axis)
    named = range(input.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    gone = {one_dim(d, input.ndim) for d in named}
    return reshape(input, tuple(n for i, n in enumerate(input.shape) if not (i in gone and n == 1)))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a dimension of length 1 put in at ``dim``."""
    dim = one_dim(dim, input.ndim + 1)
    return reshape(input, (*input.shape[:dim], 1, *input.shape[dim:]))


_permute = operator(
    "permute",
    lambda xp, input, *, dims: xp.transpose(input, dims),
    input=lambda xp, grad, dims: xp.transpose(grad, _inverse(dims)),
    view="transpose",
)


def _inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(dims)
    for place, dim in enumerate(dims):
        inverse[dim] = place
    return tuple(inverse)


def permute(input: Tensor, *dims: Any) -> Tensor:
    """A view with the dimensions in the order ``dims``.

    Raises:
        RuntimeError: ``dims`` is no permutation of the dimensions.
    """
    order = tuple(one_dim(d, input.ndim) for d in _sizes(dims))
    if sorted(order) != list(range(input.ndim)):
        raise RuntimeError(
            f"permute: the number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {input.ndim} is not "
            f"equal to len(dims) = {len(order)}"
            if len(order) != input.ndim
            else "permute(): duplicate dims are not allowed."
        )
    return call(_permute, input, dims=order)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions swapped."""
    order = list(range(input.ndim))
    first, second = one_dim(dim0, input.ndim), one_dim(dim1, input.ndim)
    if order:
        order[first], order[second] = order[second], order[first]
    return call(_permute, input, dims=tuple(order))


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; fewer dimensions stay as they are.

    Raises:
        RuntimeError: there are more than two dimensions.
    """
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return (
        transpose(input, 0, 1)
        if input.ndim == 2
        else call(_permute, input, dims=tuple(range(input.ndim)))
    )


#: PyTorch's other name for it.
swapdims = transpose


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """``transpose`` with NumPy's names of the dimensions."""
    return transpose(input, axis0, axis1)


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """A view with dimension ``source`` moved to ``destination`` (or several, as tuples).

    Raises:
        RuntimeError: a dimension is named twice, or the tuples differ in length.
    """
    starts, ends = (
        [one_dim(d, input.ndim) for d in (dims if isinstance(dims, tuple | list) else (dims,))]
        for dims in (source, destination)
    )
    if len(starts) != len(ends) or len({*starts}) != len(starts) or len({*ends}) != len(ends):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({source}) and destination "
            f"({destination}) must name as many dimensions, each once"
        )
    if not input.ndim:
        return call(_permute, input, dims=())
    order: list[int | None] = [None] * input.ndim
    for start, end in zip(starts, ends, strict=True):
        order[end] = start
    rest = iter(d for d in range(input.ndim) if d not in starts)
    return call(_permute, input, dims=tuple(next(rest) if d is None else d for d in order))


moveaxis = movedim


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """A view with dimension ``dim`` in several, of lengths ``sizes`` (one may be -1).

    Raises:
        RuntimeError: ``sizes`` do not multiply to the length, or ``input`` has no dimensions.
    """
    if not input.ndim:
        raise RuntimeError("unflatten: the tensor has no dimensions")
    dim = one_dim(dim, input.ndim)
    known = math.prod(n for n in sizes if n != -1)
    length = input.shape[dim]
    if (-1 in sizes and (not known or length % known)) or (-1 not in sizes and known != length):
        raise RuntimeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} "
            f"({length}) in the input tensor"
        )
    whole = tuple(length // known if n == -1 else n for n in sizes)
    return reshape(input, (*input.shape[:dim], *whole, *input.shape[dim + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """In one dimension; a view only of a tensor whose elements lie in order without gaps."""
    return reshape(contiguous(input), -1)


_expand = operator(
    "expand",
    lambda xp, input, *, shape: xp.broadcast_to(input, shape),
    input=lambda xp, grad, input_shape: xp.sum_to(grad, input_shape),
    view="broadcast_to",
)


def expand(input: Tensor, *shape: Any) -> Tensor:
    """A view, broadcast to ``shape`` (-1 keeps a length).

    Raises:
        RuntimeError: a length that is not 1 would have to change.
    """
    sizes = _sizes(shape)
    lead = len(sizes) - input.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(sizes)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({input.ndim})"
        )
    if -1 in sizes[:lead]:
        raise RuntimeError(
            "expand: The expanded size of the tensor (-1) isn't allowed in a leading, "
            f"non-existing dimension {sizes.index(-1)}"
        )
    full = tuple(input.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(sizes))
    for wanted, length in zip(full[lead:], input.shape, strict=True):
        if length not in (1, wanted):
            raise RuntimeError(
                f"The expanded size of the tensor ({wanted}) must match the existing size "
                f"({length}). Target sizes: {list(full)}. Tensor sizes: {list(input.shape)}"
            )
    return call(_expand, input, shape=full)


def broadcast_to(input: Tensor, shape: Any) -> Tensor:
    """The same as :func:`expand`."""
    return expand(input, shape)


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """Copies of ``input`` side by side, ``repeats`` times along each dimension.

    Raises:
        TypeError: no numbers are given.
        RuntimeError: there are fewer than dimensions, or one is negative.
    """
    times = _sizes(repeats)
    if not repeats:
        raise TypeError('repeat() missing 1 required positional arguments: "repeats"')
    if len(times) < input.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            f"tensor: repeat{times} of a {input.ndim}D tensor"
        )
    if any(r < 0 for r in times):
        raise RuntimeError(f"Trying to create tensor with negative dimension: repeat{times}")
    shape = (1,) * (len(times) - input.ndim) + input.shape
    pairs = [(r, n) for r, n in zip(times, shape, strict=True)]
    spread = reshape(input, tuple(x for _, n in pairs for x in (1, n)))
    spread = expand(spread, tuple(x for pair in pairs for x in pair))
    repeated = reshape(spread, tuple(r * n for r, n in pairs))
    return clone(repeated) if repeated._view is not None else repeated


_flip = operator(
    "flip",
    lambda xp, input, *, dims: xp.flip(input, dims),
    input=lambda xp, grad, dims: xp.flip(grad, dims),
)


def flip(input: Tensor, *along: Any, dims: Any = None) -> Tensor:
    """A copy with the order of elements reversed along ``dims``: ``flip(x, 0, 1)``, ``flip(x, (0,
    1))`` or ``flip(x, dims=(0, 1))``.

    Raises:
        TypeError: there are no ``dims``.
    """
    if not along and dims is None:
        raise TypeError("flip() missing 1 required positional argument: 'dims'")
    named = along if dims is None else (dims,)
    return call(_flip, input, dims=tuple(one_dim(d, input.ndim) for d in _sizes(named)))


_clone = operator("clone", lambda xp, input: xp.copy(input), input=lambda xp, grad: grad)


def clone(input: Tensor, *, memory_format: MemoryFormat = preserve_format) -> Tensor:
    """A differentiable copy, C-contiguous."""
    return call(_clone, input)


def contiguous(input: Tensor, *, memory_format: MemoryFormat = contiguous_format) -> Tensor:
    """``input`` itself if its elements lie in order without gaps, else a copy."""
    return input if input._array.flags.c_contiguous else clone(input)


# ------------------------------------------------------------------------ joining


def _cat_grads(xp: Any, grad: Any, tensors_shape: Any, needs: Any, dim: int) -> list[Any]:
    lengths = [shape[dim] for shape in tensors_shape]
    keys = [
        slice(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)
    ]
    return _taken_apart(xp, grad, keys, needs, dim)


def _taken_apart(
    xp: Any, grad: Any, keys: Iterable[slice | int], needs: Sequence[bool], dim: int
) -> list[Any]:
    """Of what was joined along ``dim`` the gradient of each part, None where not needed."""
    before = (slice(None),) * dim
    return [
        xp.getitem(grad, (*before, key)) if needed else None
        for key, needed in zip(keys, needs, strict=True)
    ]


_cat = operator("cat", lambda xp, *tensors, dim: xp.concatenate(tensors, dim), joint=_cat_grads)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join tensors along an existing dimension.

    Raises:
        ValueError: there are none.
        TypeError: it is a single tensor, or one of them is none.
        RuntimeError: their shapes differ elsewhere than in ``dim``.
    """
    parts = _of_one_dtype("cat", tensors)
    # An empty vector fits to everything, for historical reasons.
    filled = [part for part in parts if part.shape != (0,)]
    dim = dim if axis is None else axis
    if not filled:
        return call(_cat, *parts, dim=0)
    if len(filled) < len(parts):
        parts = filled
    dim = one_dim(dim, parts[0].ndim)
    shapes = {p.shape[:dim] + p.shape[dim + 1 :] for p in parts if p.ndim == parts[0].ndim}
    if len(shapes) > 1 or parts[0].ndim == 0 or any(p.ndim != parts[0].ndim for p in parts):
        raise RuntimeError(
            f"cat: Sizes of tensors must match except in dimension {dim}, and none may be 0-d. Got "
            f"{[tuple(p.shape) for p in parts]}"
        )
    return call(_cat, *parts, dim=dim)


_stack = operator(
    "stack",
    lambda xp, *tensors, dim: xp.stack(tensors, dim),
    joint=lambda xp, grad, needs, dim: _taken_apart(xp, grad, range(len(needs)), needs, dim),
)


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join tensors of one shape along a new dimension.

    Raises:
        RuntimeError: there are none, or their shapes differ.
    """
    parts = _of_one_dtype("stack", tensors)
    if any(part.shape != parts[0].shape for part in parts):
        raise RuntimeError(
            f"stack expects each tensor to be equal size, but got {[p.shape for p in parts]}"
        )
    return call(_stack, *parts, dim=one_dim(dim if axis is None else axis, parts[0].ndim + 1))


def _of_one_dtype(name: str, tensors: Sequence[Any]) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        raise TypeError(f"{name}(): argument 'tensors' must be a tuple of Tensors, not a Tensor")
    for at, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor | np.ndarray):
            raise TypeError(
                f"{name}(): expected Tensor as element {at}, but got {type(tensor).__name__}"
            )
    parts = [as_tensor_operand(tensor) for tensor in tensors]
    if not parts:
        error = ValueError if name == "cat" else RuntimeError
        raise error(f"{name}(): expected a non-empty list of Tensors")
    dtype = result_dtype(*parts)
    return [cast(part, dtype) for part in parts]


# ------------------------------------------------------------------------ arguments


def _sizes(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Integers that were given as ``f(2, 3)`` or as ``f((2, 3))``."""
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    return tuple(python_operator.index(size) for size in sizes)


def _complete_shape(input: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with its -1 replaced."""
    total = input._array.size
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if shape.count(-1) == 1 and known and total % known == 0:
            return tuple(total // known if n == -1 else n for n in shape)
    elif math.prod(shape) == total:
        return shape
    raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {total}")
