"""vmap: a function of each slice of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from mpgrad.func import trees
from mpgrad.ops.by_index.indexing import select
from mpgrad.ops.shapes.shape import stack
from mpgrad.recording.tensors.tensor import Tensor


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """``func`` of each slice of the arguments, one after another; the results are stacked.

    Args:
        func: a function of Tensors, or of lists, tuples and dictionaries of them.
        in_dims: along which dimension there are slices, for each argument or all; None: every call
            gets the whole argument.
        out_dims: where the slices are in the results.
        randomness: without effect: each slice draws its own numbers.
        chunk_size: without effect.

    Returns:
        A function of the same arguments. It can be differentiated.

    Raises (when it is called):
        ValueError: there is nothing to map over, the lengths differ, or a Tensor has no such
            dimension.
    """

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple | list) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: in_dims has {len(dims)} entries for {len(args)} arguments")
        pairs = [*zip(args, dims, strict=True), *((value, 0) for value in kwargs.values())]
        lengths = {n for value, dim in pairs for n in _lengths(value, dim)}
        if len(lengths) != 1:
            raise ValueError(
                "vmap: expected all tensors to have the same size in the mapped dimension, got "
                f"sizes {sorted(lengths)} for the mapped dimension"
            )
        found = [
            func(
                *(_slice(value, dim, at) for value, dim in zip(args, dims, strict=True)),
                **{name: _slice(value, 0, at) for name, value in kwargs.items()},
            )
            for at in range(lengths.pop())
        ]
        return _stacked(found, out_dims)

    return mapped


def _lengths(tree: Any, dim: Any) -> Iterator[int]:
    """The lengths of all leaves along ``dim``, which may be a tree of the same form."""
    if dim is None:
        return
    if isinstance(dim, tuple | list):
        for item, place in zip(tree, dim, strict=True):
            yield from _lengths(item, place)
    elif isinstance(dim, dict):
        for key, item in tree.items():
            yield from _lengths(item, dim[key])
    else:
        for tensor in trees.leaves(tree):
            if not -tensor.ndim <= dim < tensor.ndim:
                raise ValueError(
                    f"vmap: got in_dim={dim}, but the input has {tensor.ndim} dimensions"
                )
            yield tensor.shape[dim]


def _slice(tree: Any, dim: Any, at: int) -> Any:
    if dim is None:
        return tree
    if isinstance(dim, tuple | list):
        return trees.like(tree, (_slice(i, d, at) for i, d in zip(tree, dim, strict=True)))
    if isinstance(dim, dict):
        return {key: _slice(item, dim[key], at) for key, item in tree.items()}
    return trees.mapped(lambda t: select(t, dim, at) if isinstance(t, Tensor) else t, tree)


def _stacked(found: list[Any], dim: Any) -> Any:
    first = found[0]
    if isinstance(first, list | tuple):
        dims = dim if isinstance(dim, tuple | list) else (dim,) * len(first)
        columns = zip(*found, strict=True)
        return trees.like(first, (_stacked(list(c), d) for c, d in zip(columns, dims, strict=True)))
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in found], dim) for key in first}
    if not isinstance(first, Tensor):
        raise ValueError(f"vmap: the function must return Tensors, but it gave {type(first)}")
    return first if dim is None else stack(found, dim)
