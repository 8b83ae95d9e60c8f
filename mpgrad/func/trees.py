"""Trees: Tensors, and lists, tuples and dictionaries of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpgrad.recording.tensors.tensor import Tensor


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function`` of each leaf, in the same form."""
    if isinstance(tree, list | tuple):
        return like(tree, (mapped(function, item) for item in tree))
    if isinstance(tree, dict):
        return like(tree, {key: mapped(function, item) for key, item in tree.items()})
    return function(tree)


def like(tree: Any, items: Any) -> Any:
    """A list, tuple, named tuple or dictionary of the type of ``tree`` with other items."""
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def leaves(tree: Any) -> Iterator[Tensor]:
    """The Tensors of a tree, in the order of :func:`mapped`."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()))
    elif isinstance(tree, Tensor):
        yield tree


def filled(tree: Any, values: Iterable[Any]) -> Any:
    """``tree`` with ``values`` in place of its Tensors; other leaves stay."""
    rest = iter(values)
    return mapped(lambda leaf: next(rest) if isinstance(leaf, Tensor) else leaf, tree)


def in_order_of(model: Any, tree: Any) -> Iterator[Tensor]:
    """The Tensors of ``tree``, each at the place of one in ``model``.

    Raises:
        ValueError: the trees have different forms.
    """
    if isinstance(model, list | tuple):
        if not isinstance(tree, list | tuple) or len(tree) != len(model):
            raise ValueError
        for inner, item in zip(model, tree, strict=True):
            yield from in_order_of(inner, item)
    elif isinstance(model, dict):
        if not isinstance(tree, dict) or tree.keys() != model.keys():
            raise ValueError
        for key, inner in model.items():
            yield from in_order_of(inner, tree[key])
    elif isinstance(model, Tensor):
        if not isinstance(tree, Tensor):
            raise ValueError
        yield tree
