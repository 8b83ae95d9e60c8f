"""The backward of a Function as a function of what its ctx has, and what it changes there.

It runs on copies. Attributes that it sets, and lists, dictionaries and sets that only the ctx
holds, come back. Another change would be lost, so it is an error.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import FunctionCtx

from mpgrad.calls.random_numbers import state_of
from mpgrad.calls.results import can_return
from mpgrad.shm.digest import digest_of
from mpgrad.torch.tensors import LIBRARY

_ATOMS = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, slice, range}
    | {torch.dtype, torch.device, torch.Size}
)
_DICTS = frozenset({dict, OrderedDict, defaultdict})
#: Those that are copied; objects of other classes are only watched.
_CONTAINERS = _DICTS | {list, set}
_HOLDERS = _CONTAINERS | {tuple}
#: What code reaches is looked at with the other things that a call reaches.
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)

_IN_PLACE = (
    "{name} has changed `ctx.{attribute}` in place{why}. It works on a copy, so this would be "
    "lost. Assign a new value (`ctx.{attribute} = ...`): what is assigned comes back"
)
_ELSEWHERE = ", which something else holds, too"
_REMEDY = (
    "Set it on ctx (`ctx.x = ...`), which comes back, or do not call parallelize() for this "
    "Function"
)
_STAYS = (
    "{name} has set `ctx.{attribute}` to something that cannot travel to the caller. Set it in "
    "forward, or to what it is made of: tensors, arrays, numbers, texts, objects that hold such"
)


class Ctx(FunctionCtx):
    """What a backward gets in place of torch's Node: its attributes are those of the Node."""

    # What torch keeps for itself is none of them.
    __slots__ = (
        "__name",
        "dirty_tensors",
        "materialize_grads",
        "needs_input_grad",
        "non_differentiable",
        "saved_for_forward",
        "saved_tensors",
        "to_save",
    )

    def __init__(self, name: str, saved: Any, needs: Any, attributes: dict[str, Any]) -> None:
        self.__name, self.saved_tensors, self.needs_input_grad = name, saved, needs
        self.__dict__.update(attributes)

    def name(self) -> str:
        """That of the Node."""
        return self.__name


class Changes(NamedTuple):
    """What a backward has changed on its ctx.

    Attributes:
        attributes: those that are others now.
        removed: the names of those that are gone.
        in_place: the names of those whose old values were changed.
    """

    attributes: dict[str, Any]
    removed: list[str]
    in_place: list[str]

    def bring_back(self, node: Any, held: frozenset[str], name: str) -> None:
        """Change the Node alike.

        Args:
            node: of the call.
            held: see ``held_elsewhere``.
            name: of the backward.

        Raises:
            RuntimeError: something else would not see the change.
        """
        for attribute in self.in_place:
            if attribute in held:
                raise _in_place(name, attribute, _ELSEWHERE)
        for attribute, value in copied(self.attributes, {}).items():
            setattr(node, attribute, value)
        for attribute in self.removed:
            delattr(node, attribute)


class Backward:
    """The backward of a Function. The class itself travels only if that reads it."""

    def __init__(self, cls: Any) -> None:
        is_vjp = cls.vjp is not torch.autograd.Function.vjp
        self.__wrapped__ = cls.vjp if is_vjp else cls.backward
        self.__qualname__ = f"{cls.__qualname__}.backward"
        self.node_name = f"{cls.__name__}Backward"
        self.__module__ = cls.__module__
        #: For ``calls.branch``.
        self.remedy = _REMEDY

    def __call__(
        self, attributes: dict[str, Any], saved: Any, needs: Any, grads: Any
    ) -> tuple[tuple[Any, ...], Changes]:
        """The gradients, and what has changed on the ctx.

        Raises:
            BaseException: what the backward raises.
            RuntimeError: it gives another number of gradients than it should, or has changed
                something that cannot be brought back.
        """
        own = copied(attributes, {})
        ctx, watched = Ctx(self.node_name, saved, needs, own), _Watched(own)
        found = self.gradients(ctx, len(needs), grads)
        watched.require_unchanged(self.__qualname__)
        now = vars(ctx)
        changes = Changes(
            {at: one for at, one in now.items() if not _is_same(attributes.get(at, now), one)},
            [at for at in own if at not in now],
            [at for at, one in own.items() if not _is_same(attributes[at], one)],
        )
        for at, one in changes.attributes.items():
            if not can_return(one, LIBRARY):
                raise RuntimeError(_STAYS.format(name=self.__qualname__, attribute=at))
        return found, changes

    def gradients(self, ctx: Any, count: int, grads: Any) -> tuple[Any, ...]:
        """One for each of the ``count`` arguments of forward.

        Raises:
            BaseException: what the backward raises.
            RuntimeError: it gives another number.
        """
        found = self.__wrapped__(ctx, *grads)
        found = found if isinstance(found, tuple) else (found,)
        given = len(found)
        if given < count or any(one is not None for one in found[count:]):  # as torch says it
            raise RuntimeError(
                f"function {self.node_name} returned an incorrect number of gradients "
                f"(expected {count}, got {given})"
            )
        return found[:count]


class _Watched:
    """What a backward reaches on its ctx and must leave as it is: all but containers."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._marks = [
            (name, one, _mark(one)) for name in attributes for one in _members(attributes[name])
        ]

    def require_unchanged(self, name: str) -> None:
        """Check it.

        Raises:
            RuntimeError: something is another now.
        """
        for attribute, one, mark in self._marks:
            if not _is_same(mark, _mark(one)):
                raise _in_place(name, attribute)


def _in_place(name: str, attribute: str, why: str = "") -> RuntimeError:
    return RuntimeError(_IN_PLACE.format(name=name, attribute=attribute, why=why))


def _members(value: Any) -> Iterator[Any]:
    """The objects in ``value`` that may change, at any depth, without its containers."""
    waiting, seen = [value], dict[int, Any]()
    while waiting:
        one = waiting.pop()
        if type(one) in _ATOMS or id(one) in seen or isinstance(one, _CODE):
            continue
        seen[id(one)] = one
        if type(one) not in _HOLDERS:
            yield one
        if not isinstance(one, torch.Tensor | np.ndarray):
            waiting += _parts(one)


def _parts(one: Any) -> list[Any]:
    """What an object holds: its elements, and its attributes with their names."""
    found: list[Any] = []
    if isinstance(one, dict):
        found += one.items()
    elif isinstance(one, list | tuple | set | frozenset | deque):
        found += one
    elif isinstance(one, types.MethodType):
        return [one.__self__]
    attributes = getattr(one, "__dict__", None)
    if type(attributes) is dict:
        cls = type(one)
        found += [
            (name, value)
            for name, value in attributes.items()
            if not isinstance(getattr(cls, name, None), functools.cached_property)
        ]
    return found


def _mark(one: Any) -> Any:
    """Differs after a change in place."""
    if isinstance(one, torch.Tensor):
        return LIBRARY.version(one)
    if isinstance(one, np.ndarray):
        is_fixed = one.dtype.hasobject or not one.flags.writeable
        return 0 if is_fixed else digest_of(np.ascontiguousarray(one))
    state = state_of(one)
    return copied(_parts(one), {}) if state is None else repr(state)


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """``value`` with copies of the lists, dictionaries and sets in it; all else is the same.

    Args:
        value: anything.
        memo: by ``id``, containers and their copies; grows.
    """
    kind = type(value)
    if kind is tuple:
        parts = tuple([copied(one, memo) for one in value])
        return value if all(map(_is, value, parts)) else parts
    if kind not in _CONTAINERS:
        return value
    if id(value) not in memo:
        found = memo[id(value)] = copy.copy(value)
        if kind is not set:
            for at in value if kind in _DICTS else range(len(value)):
                found[at] = copied(value[at], memo)
    return memo[id(value)]


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or containers of the same objects."""
    kind = type(one)
    if one is other or kind is not type(other):
        return one is other
    if kind in _DICTS:
        return _is_same([*one.items()], [*other.items()])
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return (kind is set or kind in _ATOMS) and bool(one == other)


def held_elsewhere(attributes: dict[str, Any]) -> frozenset[str]:
    """The names of the attributes with a container that something else holds, too."""
    return frozenset([name for name in attributes if not _is_alone(attributes, name)])


def _is_alone(holder: Any, at: Any) -> bool:
    is_held = _references(holder, at) > _ALONE
    value = holder[at]
    kind = type(value)
    if kind not in _HOLDERS or (kind is tuple and not any(type(one) in _HOLDERS for one in value)):
        return True
    if is_held or kind is set:
        return not is_held
    return all(_is_alone(value, one) for one in (value if kind in _DICTS else range(len(value))))


def _references(holder: Any, at: Any) -> int:
    value = holder[at]
    return sys.getrefcount(value)


#: Those to a value that its holder alone has.
_ALONE = _references({"": []}, "")
