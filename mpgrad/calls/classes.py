"""Classes that travel by value: the client's own stay as they are where a pickle comes to it.

A worker's class takes over what the client's has now. The client has the true one: neither a call
that runs there, nor a result, may replace what it holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cloudpickle import cloudpickle

from mpgrad.autograd.running import engine_slot

#: The classes of this process that have their state.
_known: weakref.WeakSet[type[Any]] = weakref.WeakSet()


class Held(NamedTuple):
    """A tensor that is an attribute of a class: there a call in the client finds the input."""

    cls: type[Any]
    name: str
    tensor: Any


def by_value(cls: type[Any], reduced: Any) -> Any:
    """What cloudpickle makes of a class, so that it leaves the client's own alone."""
    if not (isinstance(reduced, tuple) and len(reduced) == 6):
        return reduced  # by name
    _known.add(cls)
    return (*reduced[:5], _set_state)


def _set_state(cls: type[Any], state: Any) -> Any:
    if not engine_slot.is_worker:
        if cls in _known:
            return cls
        _known.add(cls)
    return cloudpickle._class_setstate(cls, state)


def tensors_in(cls: type[Any], tensor_class: type[Any]) -> list[Held]:
    """The tensors that are attributes of ``cls`` itself."""
    return [
        Held(cls, name, value)
        for name, value in vars(cls).items()
        if isinstance(value, tensor_class)
    ]


@contextmanager
def held_by_classes(places: Sequence[tuple[type[Any], str, Any]]) -> Iterator[None]:
    """Let attributes of the client's classes be the inputs of a call while it runs.

    Args:
        places: class, name, input.
    """
    before = [(cls, name, vars(cls)[name]) for cls, name, _ in places]
    for cls, name, value in places:
        setattr(cls, name, value)
    try:
        yield
    finally:
        for cls, name, value in before:
            setattr(cls, name, value)
