"""Which values may travel to a worker as a copy that is compared, and what is in them.

Everything that pickle copies faithfully may: containers, objects of the user's classes, and of
NumPy, SciPy and mpgrad. What has a state that a copy does not share stays: generators, locks,
files, and classes that say themselves how they are pickled.
"""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable, Iterable
from datetime import date
from enum import Enum
from typing import Any

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.base.hash_seed import fixed_hash_seed
from mpgrad.shipping.constants import is_constant
from mpgrad.shipping.contents import (
    Fingerprint,
    content_of,
    fingerprint,
    is_comparable,
    is_sparse,
)
from mpgrad.shipping.findings import Survey, what_can_change
from mpgrad.shipping.installed_state import is_known_name
from mpgrad.shipping.process_state import is_known_module
from mpgrad.shipping.remedies import Remedy, remedy_of
from mpgrad.tensors.tensor import Tensor

#: Types of Python's whose objects have no state but what is in them.
_SEQUENCES = frozenset({"list", "tuple", "deque", "set", "frozenset"})
_MAPPINGS = frozenset({"dict", "OrderedDict", "Counter", "mappingproxy"})
_OPAQUE = frozenset({"array", "bytearray", "datetime", "time", "timezone", "UUID", "slice"})
_WITH_ATTRIBUTES = frozenset({"ChainMap", "SimpleNamespace", "Template", "UserDict", "UserList"})
#: NumPy's and SciPy's modules whose objects draw random numbers, or hold memory or files.
_NOT_COPIED = ("numpy.random", "scipy.io", "numpy.lib._npyio")
#: Types of which nothing needs to be looked at.
_PLAIN = frozenset({type(None), bool, int, str, bytes})
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
    root = kind.__module__.partition(".")[0]
    if root in ("numpy", "scipy", "mpgrad") and is_known_name(kind):
        return _of_installed(value, root)
    if is_known_name(kind) or kind is types.MappingProxyType:
        return _of_python(value, kind.__name__)
    if is_known_module(kind.__module__) and "__dataclass_fields__" not in vars(kind):
        return None
    return _of_user(value)


def _of_python(value: Any, name: str) -> Iterable[Any] | None:
    if name in _SEQUENCES:
        return None if name.endswith("set") and _has_own_order(value) else _to_look_at(value)
    if name in _MAPPINGS:
        return [*_to_look_at(value), *_to_look_at(value.values())]
    if name == "defaultdict":
        return [value.default_factory, *_to_look_at(value), *_to_look_at(value.values())]
    if name in _WITH_ATTRIBUTES:
        return list(vars(value).values())
    return () if name in _OPAQUE or isinstance(value, date) else None


def _to_look_at(items: Iterable[Any]) -> Iterable[Any]:
    kinds = set(map(type, items))
    if kinds <= _PLAIN:
        return ()
    if kinds <= _WITH_FLOATS:
        return [item for item in items if item != item]
    return items


_WITH_FLOATS = _PLAIN | {float}


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


def _of_user(value: Any) -> Iterable[Any] | None:
    kind = type(value)
    if isinstance(value, Enum | type) or _is_copied_its_own_way(kind):
        return None
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if base not in _BASES and root not in ("mpgrad", "abc", "typing") and is_known_name(base):
            return None
    found: list[Any] = [kind, *getattr(value, "__dict__", {}).values()]
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        slots = {names} if isinstance(names, str) else {*names}
        for name in sorted(slots - {"__dict__", "__weakref__"}):
            found += [getattr(value, name)] if hasattr(value, name) else []
    if isinstance(value, list | tuple | set | frozenset):
        if isinstance(value, set | frozenset) and _has_own_order(value):
            return None
        found += _to_look_at(value)
    elif isinstance(value, dict):
        found += [*_to_look_at(value), *_to_look_at(value.values())]
    return found


#: Classes of Python that a user's class may extend without a state that pickle does not see.
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
            self._found.contents.append(content_of(value, label))
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
            code: list[Any] = [one.function for one in found.functions]
            code += [cls for cls, *_ in found.classes if cls not in (Tensor, Function)]
            found.values += [
                (one, "")
                for one in code
                if id(one) not in found.forward_only and not is_known_name(one)
            ]
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
