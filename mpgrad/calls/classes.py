"""Classes that travel by value: the client's own stay as they are where a pickle comes to it.

A worker's class takes over what the client's has now. The client has the true one: neither a call
that runs there, nor a result, may replace what it holds. What the user's metaclasses and
``__init_subclass__`` have done travels, so they do not run again.
"""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import numbers
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cloudpickle import cloudpickle

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.custom_functions.process_state import is_installed_namespace

#: The classes of this process that have their state.
_known: weakref.WeakSet[type[Any]] = weakref.WeakSet()
#: What each of them has got from its client.
_names: weakref.WeakKeyDictionary[type[Any], set[str]] = weakref.WeakKeyDictionary()


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
    make, args, *rest = reduced
    return (_skeleton, (make, cls.__bases__, _registered_with(cls), *args), *rest[:3], _set_state)


#: Python's abstract classes that others are registered with, and do not ask what these have.
_ABSTRACT = tuple(
    [
        one
        for module in (collections.abc, numbers)
        for one in vars(module).values()
        if isinstance(one, abc.ABCMeta) and "__subclasshook__" not in vars(one)
    ]
)


def _registered_with(cls: type[Any]) -> tuple[type[Any], ...]:
    """Those that a program has registered it with: ``Sequence.register(cls)``."""
    return tuple([one for one in _ABSTRACT if issubclass(cls, one) and one not in cls.__mro__])


def _quiet(has_dict: bool, has_weakref: bool) -> type[Any]:
    """The first base of a class in the making: its hook runs in place of those of other bases."""
    slots = ("__dict__",) * has_dict + ("__weakref__",) * has_weakref
    hook = classmethod(lambda cls, **_: None)
    return type("quiet", (), {"__slots__": slots, "__init_subclass__": hook})


#: What Python calls of a metaclass for a new class.
_OF_META = ("__prepare__", "__new__", "__init__", "__call__")
#: Python lets a class change its bases for those of the same layout.
_QUIET = {(one, other): _quiet(one, other) for one in (False, True) for other in (False, True)}


def _skeleton(
    make: Callable[..., type[Any]],
    bases: tuple[type[Any], ...],
    registered: tuple[type[Any], ...],
    *args: Any,
) -> type[Any]:
    cls = _known_or_made(make, bases, *args)
    if engine_slot.is_worker:
        for one in registered:
            one.register(cls)  # type: ignore[attr-defined]
    return cls


def _known_or_made(
    make: Callable[..., type[Any]], bases: tuple[type[Any], ...], *args: Any
) -> type[Any]:
    """The class of this process, or a new one without its attributes.

    Args:
        make: what cloudpickle makes it with.
        bases: as they are now; a program may change them.
        args: of that; the last but one is the number that the class has in all processes.
    """
    known: type[Any] | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
    if known is not None:
        if engine_slot.is_worker and known.__bases__ != bases:
            type.__setattr__(known, "__bases__", bases)
        return known
    if make is not cloudpickle._make_skeleton_class:
        return make(*args)
    metaclass, name, _, attributes, number, _ = args
    ancestors = [one for base in bases for one in base.__mro__]
    is_quiet = _is_users(_found(ancestors, "__init_subclass__"))
    if not is_quiet and not any(_is_users(_found(metaclass.__mro__, hook)) for hook in _OF_META):
        return make(*args)
    attributes = {sys.intern(key): value for key, value in attributes.items()}
    first = bases[0]
    quiet = (_QUIET[first.__dictoffset__ != 0, first.__weakrefoffset__ != 0],) * is_quiet
    maker = next(
        one
        for one in metaclass.__mro__
        if "__new__" in vars(one) and not _is_users(vars(one)["__new__"])
    )
    cls = maker.__new__(metaclass, name, (*quiet, *bases), attributes)
    if is_quiet:
        type.__setattr__(cls, "__bases__", bases)
    found: type[Any] = cloudpickle._lookup_class_or_track(number, cls)
    return found


def _found(classes: Sequence[type[Any]], name: str) -> Any:
    """What the first of them that has it has by a name."""
    return next((vars(one)[name] for one in classes if name in vars(one)), None)


def _is_users(hook: Any) -> bool:
    function = getattr(hook, "__func__", hook)
    namespace = getattr(function, "__globals__", None)
    return namespace is not None and not is_installed_namespace(namespace)


def _set_state(cls: type[Any], state: Any) -> Any:
    if not engine_slot.is_worker:
        if cls in _known:
            return cls
        _known.add(cls)
    # What a program has removed since, such as the undo of a patch.
    for name in _names.get(cls, set()) - state[0].keys():
        with contextlib.suppress(AttributeError):
            delattr(cls, name)
    _names[cls] = {*state[0]}
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
