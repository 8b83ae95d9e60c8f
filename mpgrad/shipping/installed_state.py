"""State in installed code that can be set at run time: settings, caches, replaced functions.

The code is the same in every process, but the values of its globals may differ. NumPy, SciPy, the
standard library and mpgrad are trusted: ``process_state`` lists their parts that belong to one
process. In other packages, everything that a function reaches by name is analysed. The state of C
libraries is not seen.
"""

from __future__ import annotations

import dis
import logging
import random
import sys
import types
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from mpgrad.shipping.code_reads import Access, code_reads
from mpgrad.shipping.constants import MISSING, is_constant, is_importable
from mpgrad.shipping.process_state import is_installed_module, is_installed_namespace

#: The last one is pytest's replacement for ``assert``.
_TRUSTED = frozenset({"numpy", "scipy", "mpgrad", "cupy", "_pytest"}) | sys.stdlib_module_names
#: The number of functions and classes that are followed from one that user code names.
FOLLOWED_MAX = 400
#: Methods that change the container that they belong to.
_CHANGING = frozenset(
    {
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "fill",
        "insert",
        "pop",
        "popitem",
        "put",
        "remove",
        "resize",
        "reverse",
        "setdefault",
        "sort",
        "update",
    }
)
_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_DRAWS = (np.random.Generator, np.random.RandomState, random.Random)


class InstalledGlobal(NamedTuple):
    """A global of an installed module: its namespace, its name and its value."""

    module: str
    namespace: dict[str, Any]
    name: str
    value: Any


def is_installed_name(value: Any) -> bool:
    """True if ``value`` is found under its name in an installed module.

    ``functools.wraps`` gives an installed function the name of the user's that it wraps; such a
    function is not one.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    named = module is not None and is_installed_namespace(vars(module))
    return named and is_importable(value)


def is_installed_object(value: Any) -> bool:
    """Whether every process has an equal object: a logger, a descriptor, or a callable made by
    installed code."""
    if isinstance(value, (*_DESCRIPTORS, logging.Logger)):
        return True
    kind = type(value)
    if kind.__module__ == "dataclasses" or kind.__name__ == "_tuplegetter":
        return True  # the marker of a missing default; a field of a namedtuple
    module = sys.modules.get(getattr(kind, "__module__", ""))
    if module is None or not is_installed_namespace(vars(module)) or not callable(value):
        return False
    home = getattr(value, "__module__", None)
    # numpy's ufuncs have no __module__, but pickle by name.
    return kind.__name__ == "ufunc" or (
        isinstance(home, str) and is_installed_module(home) and is_importable(value)
    )


def is_trusted(module: str | None) -> bool:
    """Whether the state of this module is known."""
    return (module or "").partition(".")[0] in _TRUSTED


def settings_of(start: FunctionType | type) -> tuple[list[InstalledGlobal], list[str]]:
    """The settings that ``start``, of an installed package, and all that it reaches can read.

    Returns:
        Constants, which can be sent along, and the reasons why others cannot.
    """
    settings: dict[tuple[int, str], InstalledGlobal] = {}
    problems: list[str] = []
    seen: dict[int, Any] = {id(start): start}
    queue: deque[Any] = deque([start])

    def read(namespace: dict[str, Any], name: str, reader: str) -> None:
        value, module = namespace.get(name, MISSING), namespace.get("__name__", "")
        if value is MISSING or name.startswith("__") or is_trusted(module):
            return
        if isinstance(value, FunctionType | type):
            if id(value) not in seen and len(seen) < FOLLOWED_MAX and not _is_elsewhere(value):
                seen[id(value)] = value
                queue.append(value)
        elif is_constant(value):
            settings[id(namespace), name] = InstalledGlobal(module, namespace, name, value)
        elif reason := _why_it_can_change(namespace, name, value):
            problems.append(f"{reader}() reads `{module}.{name}`, {reason}")

    while queue:
        value = queue.popleft()
        for function in _functions_of(value):
            namespace = function.__globals__
            for access in code_reads(function.__code__).accesses:
                if access.source != "global" or access.action == "computed":
                    continue
                if access.action == "store":
                    where = f"{namespace.get('__name__', '')}.{access.name}"
                    problems.append(f"{function.__qualname__}() writes `{where}`")
                _read(namespace, access, function.__qualname__, read)
    return list(settings.values()), problems


def patchable_members(cls: type) -> list[tuple[str, FunctionType]]:
    """The methods of an installed class that are written in Python; mpgrad's own are left out."""
    if cls.__module__.partition(".")[0] == "mpgrad":
        return []
    return [(name, value) for name, value in vars(cls).items() if isinstance(value, FunctionType)]


def is_replaced(module: ModuleType | type, attribute: str, value: Any) -> bool:
    """Whether user code has replaced the attribute of a module or class by ``value``."""
    if value is MISSING or isinstance(value, ModuleType) or is_constant(value):
        return False
    if isinstance(value, FunctionType):
        return not is_installed_namespace(value.__globals__)
    if isinstance(value, np.ufunc):
        own = vars(np._core.umath).get(attribute, value)  # type: ignore[attr-defined]
        return is_trusted(module.__name__) and own is not value
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "unittest.mock" and not module.__name__.startswith("unittest"):
        return True
    name = getattr(value, "__module__", None)
    home = sys.modules.get(name if isinstance(name, str) else kind.__module__)
    return home is not None and not is_installed_namespace(vars(home))


def _read(
    namespace: dict[str, Any],
    access: Access,
    reader: str,
    read: Callable[[dict[str, Any], str, str], None],
) -> None:
    """Follow ``a.b.c`` through modules, to the first object that is not a module."""
    name = access.name
    for attribute in access.path:
        module = namespace.get(name)
        if not isinstance(module, ModuleType) or is_trusted(module.__name__):
            break
        namespace, name = vars(module), attribute
    read(namespace, name, reader)


def _is_elsewhere(value: FunctionType | type) -> bool:
    """Whether it belongs to trusted or user code, which is handled elsewhere."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or is_trusted(module.__name__):
        return True
    return not is_installed_namespace(vars(module))


def _functions_of(value: FunctionType | type) -> list[FunctionType]:
    """The function and those that it wraps, or the methods of a class."""
    found: list[Any] = [value]
    if isinstance(value, type):
        found = [getattr(member, "__func__", member) for member in vars(value).values()]
        found += [part for member in found if isinstance(member, property) for part in _of(member)]
    functions = []
    for function in found:
        while isinstance(function, FunctionType):
            functions.append(function)
            function = getattr(function, "__wrapped__", None)
    return functions


def _of(member: property) -> list[Any]:
    return [member.fget, member.fset, member.fdel]


def _why_it_can_change(namespace: dict[str, Any], name: str, value: Any) -> str:
    kind = type(value)
    noun = kind.__name__
    if isinstance(value, logging.Logger | ModuleType | types.BuiltinFunctionType):
        return ""
    if isinstance(value, _DRAWS):
        return f"a {noun}, whose state belongs to one process"
    writer, is_set = _writers(namespace).get(name, ("", False))
    if writer and (is_set or hasattr(kind, "__setitem__") or hasattr(kind, "add")):
        return f"a {noun} that {writer}() can change"
    # An object with methods that change it, such as a configuration.
    if not _is_elsewhere(kind):
        for function in _functions_of(kind):
            if function.__name__ not in ("__init__", "__new__") and any(
                variable == "self" for variable, _, _ in code_reads(function.__code__).stores
            ):
                return f"a {noun}, which can change"
    return ""


def _writers(namespace: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """For each global of a module that its own code may change: a function that does, and whether
    it assigns the name (otherwise it changes the object in place)."""
    found: dict[str, tuple[str, bool]] = {}
    for value in list(namespace.values()):
        if isinstance(value, FunctionType | type) and value.__module__ == namespace["__name__"]:
            for function in _functions_of(value):
                for name, is_set in _written(function.__code__):
                    if is_set or name not in found:
                        found[name] = function.__qualname__, is_set
    return found


@lru_cache(maxsize=4096)
def _written(code: CodeType) -> frozenset[tuple[str, bool]]:
    """Names of globals that a function assigns, or that it may change in place."""
    changes_items = _changes_items(code)
    return frozenset(
        (access.name, access.action == "store")
        for access in code_reads(code).accesses
        if access.source == "global"
        and (
            access.action == "store"
            or (changes_items and not access.path)
            or bool(_CHANGING.intersection(access.path))
        )
    )


def _changes_items(code: CodeType) -> bool:
    return any(
        instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
        for instruction in dis.get_instructions(code)
    )
