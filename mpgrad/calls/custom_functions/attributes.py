"""The attributes that forward has set on ctx: whether they may be sent to a worker, and how.

They are sent unchanged when the backward begins. So a value may be sent if nothing can change it
afterwards that a backward in this process would notice, and if backward cannot distinguish it from
a copy.
"""

from __future__ import annotations

import io
import operator
import pickle
import sys
import types
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mpgrad.calls.custom_functions.constants import (
    MISSING,
    PRIVATE,
    are_plain,
    is_constant,
    is_enum_member,
    references,
    why_no_copy,
)
from mpgrad.calls.custom_functions.contents import is_sparse, reduce_array
from mpgrad.calls.custom_functions.findings import article, what_can_change
from mpgrad.calls.custom_functions.loading import tensor_of_client, tensor_over, thaw
from mpgrad.calls.custom_functions.process_state import is_known_name, is_known_object
from mpgrad.calls.custom_functions.remedies import Obstacle, Remedy, remedy_of
from mpgrad.calls.custom_functions.travelling import parts_of
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.code_pickles import CodePickler


class Look(NamedTuple):
    """What was found on a ctx.

    Attributes:
        problem: why it should stay in the client; None: it may be sent.
        classes: the user's classes among the types of values, each once, in a fixed order. They
            are sent with the Function, by value, so that the class that backward names is the
            class of the values on ctx.
        compared: the names of attributes that are compared after the run. The others cannot be
            changed, or are lists and dictionaries that nobody else holds, which come back.
        objects: ids of objects that are equal to nothing but themselves.
    """

    problem: Obstacle | None = None
    classes: tuple[type, ...] = ()
    compared: tuple[str, ...] = ()
    objects: frozenset[int] = frozenset()


def look_at(attributes: dict[str, Any]) -> Look:
    """Whether the attributes of a ctx may be sent to a worker, and how."""
    if all(map(_is_plain, attributes.values())):
        return _NOTHING
    looked, compared = _Looked(), []
    for name in attributes:
        looked.comes_back = True
        if what := looked.item(attributes, name):
            verb = "is" if looked.culprit is attributes[name] else "holds"
            return Look(Obstacle(f"`ctx.{name}` {verb} {what}", looked.remedy))
        if not looked.comes_back:
            compared.append(name)
    return Look(None, tuple(looked.classes), tuple(compared), frozenset(looked.objects))


def are_scalars(attributes: dict[str, Any]) -> bool:
    """Whether they all are plain numbers and texts, which may always be sent."""
    values = attributes.values()
    # Of these types only a float can be a NaN, which alone differs from itself.
    return _SCALARS.issuperset(map(type, values)) and not [1 for value in values if value != value]


#: They never change and do not need cloudpickle, which takes five times as long.
_SCALARS = frozenset({bool, int, float, str, bytes, type(None)})


def _keys(container: Any) -> Any:
    return tuple(container) if isinstance(container, dict) else range(len(container))


#: What most ctx give.
_NOTHING = Look()


def _is_plain(value: Any) -> bool:
    """Whether it is an array of numbers, a number or a text: what most attributes are."""
    kind = type(value)
    return (kind is np.ndarray and not value.dtype.hasobject) or (
        kind in _SCALARS and value == value
    )


def _is_plain_all_through(values: Iterable[Any]) -> bool:
    """Whether what a private list or dictionary holds is what ``are_plain`` takes, and private
    lists of such."""
    values = list(values)
    while list in (kinds := set(map(type, values))):
        lists = [value for value in values if type(value) is list]
        if max(map(sys.getrefcount, lists)) > _ALONE:
            return False
        if len(kinds) > 1 and not are_plain([one for one in values if type(one) is not list]):
            return False
        values = list(chain.from_iterable(lists))
    return are_plain(values)


def _references_if_alone() -> int:
    """Those of a list that, as above, a container and two lists hold."""
    container: list[Any] = [[]]
    values = list(container)
    lists = [value for value in values if type(value) is list]
    return max(map(sys.getrefcount, lists))


_ALONE = _references_if_alone()


class _Looked:
    """Looks through the attributes of one ctx."""

    def __init__(self) -> None:
        self.classes: dict[type, None] = {}
        self.objects: dict[int, Any] = {}
        #: What may not be sent, and what helps.
        self.culprit: Any = None
        self.remedy = Remedy.VALUE
        #: Whether the current attribute cannot be changed, or is private all through.
        self.comes_back = True

    def item(self, container: Any, key: Any) -> str:
        """What in ``container[key]`` may not be sent, and why, in words; empty: all may.
        ``container`` itself is known to be private."""
        is_private = references(container, key) <= PRIVATE  # before a variable refers to it
        inner = container[key]
        has_odd_keys = type(inner) is dict and not is_constant(tuple(inner))
        if type(inner) not in _CHANGED or not is_private or has_odd_keys:
            return self.value(inner)
        if _is_plain_all_through(inner.values() if type(inner) is dict else inner):
            return ""
        return next(filter(None, (self.item(inner, k) for k in _keys(inner))), "")

    def value(self, value: Any) -> str:
        """The same of ``value``, which others may hold."""
        if are_plain([value]):
            return ""
        self.culprit, kind = value, type(value)
        noun = article(kind.__name__)
        if is_constant(value):
            reason = why_no_copy(value)
            return f"{noun}{reason}" if reason else ""
        if isinstance(value, type):
            if not is_known_name(value):
                self.classes.setdefault(value)
            return ""
        if isinstance(value, types.FunctionType | types.MethodType):
            why = "whose code is not looked through (backward may call it by its global name)"
            return "" if is_known_name(value) else f"{noun}, {why}"
        if is_known_object(value) or is_enum_member(value):
            if isinstance(value, Enum) and not is_known_name(kind):
                self.classes.setdefault(kind)
            return ""
        if id(value) in self.objects:
            return ""
        if isinstance(value, Tensor) and value.requires_grad and kind is Tensor:
            return f"{noun} that requires grad (use save_for_backward)"
        self.remedy = remedy_of(value)
        parts = parts_of(value) if self.remedy is not Remedy.DRAWS else None
        if parts is None and not (kind is np.ndarray and not value.dtype.hasobject):
            return what_can_change(value)
        has_objects = kind is np.ndarray and value.dtype.hasobject
        if has_objects or (kind not in _FIXED and not is_sparse(value)):
            self.comes_back = False
            self.objects[id(value)] = value
        return next(filter(None, map(self.value, parts or ())), "")


#: What cannot be changed on a worker, apart from what is in it.
_FIXED = frozenset({np.ndarray, Tensor, tuple, slice})


# ---------------------------------------------------------------------- changed by backward


def containers_in(attributes: dict[str, Any], compared: Collection[str]) -> dict[str, Any]:
    """The lists and dictionaries among ``attributes`` that come back, in copies that keep what they
    hold now; those that are ``compared`` do not."""
    return {
        name: _copied(value)
        for name, value in attributes.items()
        if type(value) in _CHANGED and name not in compared
    }


def changed_containers(attributes: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The current content of the containers that backward has changed since ``containers_in``."""
    return {
        name: attributes[name]
        for name, old in before.items()
        if name in attributes and not _holds(attributes[name], old)
    }


_CHANGED = (list, dict)


def name_set(attributes: dict[str, Any], before: dict[str, Any]) -> str:
    """One that has been set or deleted, in words; empty if none has."""
    for name in {**before, **attributes}:
        if attributes.get(name, MISSING) is not before.get(name, MISSING):
            return f"`ctx.{name}`"
    return ""


def _copied(value: Any) -> Any:
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _holds(value: Any, old: Any) -> bool:
    """Whether ``value`` holds the same objects as ``old`` in the same order, by identity."""
    if type(value) is not type(old) or type(value) not in _CHANGED:
        return value is old
    if len(value) != len(old):
        return False
    pairs = zip(value, old, strict=True)
    if type(value) is dict:
        if not all(map(operator.is_, value, old)):
            return False
        pairs = zip(value.values(), old.values(), strict=True)
    return all(now is before or _holds(now, before) for now, before in pairs)


def pack_attributes(
    attributes: dict[str, Any], classes: tuple[type, ...], out_of_band: Callable[[Any], None]
) -> bytes:
    """The attributes of a ctx, pickled, with the names of those that are compared if there are any;
    classes that are sent with its Function are numbers.

    They are looked at again: code of the client may have set others since the Function was placed.

    Args:
        attributes: the attributes.
        classes: those of ``look_at``.
        out_of_band: gets the buffers of arrays.
    """
    if not attributes:
        return b""
    if _SCALARS.issuperset(map(type, attributes.values())):
        return pickle.dumps(attributes, protocol=5)
    stream = io.BytesIO()
    pickler = _AttributePickler(stream, protocol=5, buffer_callback=out_of_band)
    if classes:
        numbers = {other: number for number, other in enumerate(classes)}
        pickler.persistent_id = lambda value: (  # type: ignore[method-assign]
            numbers.get(value) if isinstance(value, type) else None
        )
    compared = look_at(attributes).compared
    pickler.dump((attributes, compared) if compared else attributes)
    return stream.getvalue()


class _AttributePickler(CodePickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is complex:  # copyreg has an entry for it, which can be replaced
            return complex, (obj.real, obj.imag)
        if is_sparse(obj):
            # SciPy may sort its arrays in place: a worker needs them in memory of its own.
            return thaw, (pickle.dumps(obj, protocol=5), "")
        if type(obj) is np.ndarray and not obj.flags.forc and not obj.dtype.hasobject:
            return reduce_array(obj)
        if isinstance(obj, Tensor) and type(obj._array) is np.ndarray:
            if type(obj) is Tensor and not obj.requires_grad:
                return tensor_over, (obj._array, vars(obj))
            return tensor_of_client, (type(obj), obj._array, obj.requires_grad)
        return super().reducer_override(obj)
