"""Which values may travel to a worker as a copy that is compared, and what is in them.

Everything that pickle copies faithfully may: containers, objects of the user's classes, and of
NumPy, SciPy and mpgrad. What has a state that a copy does not share stays: generators, locks,
files, and classes that say themselves how they are pickled.
"""

from __future__ import annotations

import copyreg
import itertools
import types
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any

import numpy as np

from mpgrad.base.hash_seed import fixed_hash_seed
from mpgrad.calls.custom_functions.constants import are_plain, is_constant
from mpgrad.calls.custom_functions.contents import (
    Fingerprint,
    KeptContent,
    fingerprint,
    is_comparable,
    is_sparse,
)
from mpgrad.calls.custom_functions.findings import Survey, what_can_change
from mpgrad.calls.custom_functions.process_state import (
    is_known_module,
    is_known_name,
    process_state,
)
from mpgrad.calls.custom_functions.remedies import Remedy, remedy_of
from mpgrad.recording.tensors.tensor import Tensor

#: NumPy's and SciPy's modules whose objects draw random numbers, or hold memory or files.
_NOT_COPIED = ("numpy.random", "scipy.io", "numpy.lib._npyio")
#: Types of Python's whose objects have no state but what is in them.
_BUILTIN = frozenset({list, tuple, dict, set, frozenset, bytearray, slice})
#: Methods by which a class says how it is copied, or which a copy calls.
_WHEN_COPIED = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__", "__new__"),
    *("__getnewargs__", "__getnewargs_ex__", "__setattr__"),
)
#: Methods by which a copy of a container gets its items.
_FILLING = ("__setitem__", "append", "extend", "add", "update")


def parts_of(value: Any) -> Iterable[Any] | None:
    """What is in a value that may travel, as far as it needs to be looked at; None: it may not."""
    kind = type(value)
    if kind is np.ndarray:
        if value.dtype.hasobject:
            return list(value.flat)
        return () if is_comparable(value) else None
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if kind is types.MappingProxyType:
        return _of_container(dict(value))
    root = kind.__module__.partition(".")[0]
    if root in ("numpy", "scipy", "mpgrad") and is_known_name(kind):
        return _of_installed(value, root)
    if is_known_name(kind):
        has_state = kind not in _BUILTIN and process_state(kind.__module__, kind.__name__)
        # Python 3.14 copies no iterators any more.
        return None if has_state or root == "itertools" else _of_container(value)
    if is_known_module(kind.__module__) and "__dataclass_fields__" not in vars(kind):
        return None
    if isinstance(value, Enum | type) or _is_copied_its_own_way(kind):
        return None
    parts = None if any(map(_has_a_state, kind.__mro__)) else _of_container(value)
    return None if parts is None else [kind, *parts]


def _of_container(value: Any) -> Iterable[Any] | None:
    """What pickle takes of it: arguments, attributes and items."""
    if isinstance(value, set | frozenset) and _has_own_order(value):
        return None
    if type(value) in (list, tuple, set, frozenset):
        return _to_look_at(value)
    if type(value) is dict:
        return [*_to_look_at(value), *_to_look_at(value.values())]
    try:
        _, arguments, *more = value.__reduce_ex__(5)
    except Exception:
        return None
    state, items, pairs = (*more, None, None, None)[:3]
    found = [part for part in arguments if part is not type(value)]
    for held in state if isinstance(state, tuple) else (state,):  # of __dict__, and of slots
        found += held.values() if isinstance(held, dict) else [held]
    return [*found, *_to_look_at(list(items or ())), *itertools.chain(*(pairs or ()))]


def _to_look_at(items: Collection[Any]) -> Iterable[Any]:
    return () if are_plain(items) else items


def _has_own_order(value: Any) -> bool:
    """Whether a set may have another order in another process."""
    is_known = fixed_hash_seed() is not None and all(map(is_constant, value))
    if is_known or all(isinstance(item, int | float | complex) for item in value):
        return list(value) != list(type(value)(list(value)))
    return len(value) > 1 or not all(map(is_constant, value))


def _of_tensor(value: Tensor) -> Iterable[Any] | None:
    # The package looks its names up when they are used, Tensor too.
    is_ours = type(value) is Tensor or is_known_name(type(value))
    is_simple = is_ours and value.grad_fn is None and not vars(value)
    if not is_simple or value._leaf_hooks or value._post_accumulate_hooks:
        return None
    return [value._array] if type(value._array) is np.ndarray else None


def _of_installed(value: Any, root: str) -> Iterable[Any] | None:
    """Objects of NumPy and SciPy are copied faithfully, whatever is in them; of mpgrad's those
    that have attributes alone."""
    kind = type(value)
    if root == "mpgrad":
        is_plain = kind.__reduce_ex__ is object.__reduce_ex__ and hasattr(value, "_parameters")
        return list(vars(value).values()) if is_plain else None
    if kind.__module__.startswith(_NOT_COPIED) or isinstance(value, np.memmap):
        return None
    if is_sparse(value):
        return ()
    seen = Fingerprint()
    try:
        seen.of([value])
    except Exception:
        return None
    return [met for met in seen.met if met is not value and _is_foreign(met)]


def _is_foreign(value: Any) -> bool:
    """Whether a part of an object of NumPy's or SciPy's is neither theirs nor a plain container."""
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return not is_known_name(value)
    if type(value) is np.ndarray or type(value).__module__ == "builtins":
        return type(value) is np.ndarray
    return not is_known_name(type(value))


def _has_a_state(base: type) -> bool:
    """Whether a user's class that extends ``base`` has a state which pickle does not see."""
    root = base.__module__.partition(".")[0]
    return base not in _BASES and root not in ("mpgrad", "abc", "typing") and is_known_name(base)


#: Classes of Python that a user's class may extend.
_BASES = (object, list, tuple, dict, set, frozenset, int, float, str)


def _is_copied_its_own_way(kind: type) -> bool:
    """Whether a copy may be something else, or is made or ended by code of the user's."""
    if kind in copyreg.dispatch_table:
        return True
    names = _FILLING if issubclass(kind, list | dict | set) else ()
    methods = [getattr(kind, name, None) for name in (*_WHEN_COPIED, *names)]
    return any(isinstance(method, property) or _is_users(method) for method in methods)


def _is_users(method: Any) -> bool:
    """Whether it is a function that neither an installed module has nor Python has generated."""
    if not isinstance(method, types.FunctionType) or is_known_module(method.__module__):
        return False
    return method.__code__.co_filename != "<string>" and not method.__module__.startswith(
        "namedtuple_"
    )


class TravellingValues:
    """Part of a survey: values that could change, and travel as copies, which are compared.

    Args:
        found: what is found goes there.
        visit: looks at what is in them.
    """

    def __init__(self, found: Survey, visit: Callable[[Any, str], None]) -> None:
        self._found, self._visit = found, visit
        #: How deep inside such a value the analysis is.
        self._depth = 0

    def add(self, value: Any, label: str) -> None:
        """Code reads ``value``; ``label`` says who in words."""
        parts = None if remedy_of(value) is Remedy.DRAWS else parts_of(value)
        if parts is None:
            self._found.add(f"{label}, {what_can_change(value)}", remedy_of(value))
        elif is_comparable(value) or is_sparse(value):
            self._found.contents.append(KeptContent.of(value, label))
        else:
            if not self._depth:
                self._found.values.append((value, label))
            self._depth += 1
            for item in parts:
                self._visit(item, f"{label} (inside a {type(value).__name__})")
            self._depth -= 1

    def settle(self, seen: Iterable[Any]) -> None:
        """All code has been looked through, and ``seen``: take the fingerprint."""
        found = self._found
        if found.sets_attributes:
            own = [one for one in found.code if id(one) not in found.forward_only]
            found.values += [(one, "") for one in own if not is_known_name(one)]
        found.kept = found.fingerprint()
        if found.values and not found.kept:
            every = found.values
            value, label = next((one for one in every if not fingerprint([one[0]])), every[0])
            found.add(f"{label}, {what_can_change(value)}", remedy_of(value))
            found.values.clear()
        found.reached = frozenset([id(value) for value in seen if _is_like_no_other(value)])


def _is_like_no_other(value: Any) -> bool:
    """Whether an object is equal to nothing but itself, and has copies in workers."""
    return type(value).__eq__ is object.__eq__ and not isinstance(value, types.FunctionType)
