"""InstalledReads: what user code reads by name of modules that workers import themselves, and why
that could differ there.
"""

from __future__ import annotations

import logging
import sys
import types
from enum import Enum
from typing import Any

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.shipping.constants import MISSING, is_constant
from mpgrad.shipping.contents import plain_bytes
from mpgrad.shipping.findings import Survey, article, attribute_count, registered_in
from mpgrad.shipping.installed_state import is_known_name, is_replaced, patchable_members
from mpgrad.shipping.process_state import (
    DYNAMIC_BUILTINS,
    LOOKUPS,
    OF_ONE_PROCESS,
    STATE_OF_LOGGERS,
    process_state,
)
from mpgrad.shipping.remedies import Remedy, remedy_in
from mpgrad.tensors.tensor import Tensor

#: The flag of classes that are written in Python (``Py_TPFLAGS_HEAPTYPE``).
_IS_HEAP_TYPE = 1 << 9


#: What a program may change in a module without giving it another name.
_CHANGEABLE = frozenset({list, dict, set, bytearray, np.ndarray})


class InstalledReads:
    """Part of a survey.

    Args:
        found: what is found goes there.
        seen: classes that were looked through, by id.
    """

    def __init__(self, found: Survey, seen: dict[int, Any]) -> None:
        self._found, self._seen = found, seen
        #: Modules that are used as values, and their readers.
        self.modules: list[tuple[types.ModuleType, str]] = []

    def check(self, function: Any, label: str) -> None:
        """``from mpgrad import randn``: the same as ``mpgrad.randn``."""
        module = getattr(function, "__module__", None) or ""
        if module == "builtins":
            belongs = function.__name__ in DYNAMIC_BUILTINS | LOOKUPS
        else:
            belongs = process_state(module, function.__name__)
        if belongs:
            remedy = remedy_in(module, function.__name__)
            self._found.add(f"{label}, {OF_ONE_PROCESS}", remedy)
        self._tables_of(function)

    def follow(self, module: types.ModuleType, path: tuple[str, ...], label: str) -> Any:
        """Only look for what belongs to one process: ``np.random.rand``, ``os.environ``.

        Returns:
            What stands at the end of ``path``, or MISSING.
        """
        name: str = module.__name__
        value: Any = module
        attribute: str | None
        for attribute in path:
            if process_state(name, attribute):
                break
            loaded = sys.modules.get(name)
            if loaded is None and isinstance(value, type):
                members = (vars(base).get(attribute) for base in value.__mro__)
                member = next((found for found in members if found is not None), None)
                if type(member) in _CHANGEABLE:
                    text = f"{label}.{'.'.join(path)}`, which the program may have changed"
                    self._found.add(text, Remedy.VALUE)
            elif loaded is None and type(own := getattr(value, "__dict__", None)) is dict:
                member = own.get(attribute, MISSING)
                self._found.bindings.append((own, attribute, member))
                if is_replaced(type(value), attribute, member):
                    self._found.add(f"{label}.{'.'.join(path)}`, which was replaced here")
            value = vars(loaded).get(attribute, MISSING) if loaded is not None else MISSING
            if loaded is not None:
                self._found_name(loaded, attribute, value, f"{label}.{'.'.join(path)}`")
            # A lazy package may not have loaded its submodule yet.
            name = value.__name__ if isinstance(value, types.ModuleType) else f"{name}.{attribute}"
        else:
            if not process_state(name, None):
                return value
            attribute = None
        remedy = remedy_in(name, attribute)
        self._found.add(f"{label}.{'.'.join(path)}`, {OF_ONE_PROCESS}", remedy)
        return MISSING

    def names_of(self, names: set[str]) -> None:
        """Any of ``names``, which are looked up on unknown objects, may be a module's or a
        logger's."""
        for module, label in self.modules:
            for name in sorted(names):
                inner = self.follow(module, (name,), f"{label}, perhaps `{module.__name__}")
                if isinstance(inner, types.ModuleType) and id(inner) not in self._seen:
                    self._seen[id(inner)] = inner
                    self.modules.append((inner, label))
        has_loggers = "getLogger" in names or id(logging.getLogger) in self._seen
        if has_loggers or any(isinstance(seen, logging.Logger) for seen in self._seen.values()):
            for name in sorted(STATE_OF_LOGGERS & names):
                text = f"it uses .{name} of a logger, {OF_ONE_PROCESS}"
                self._found.add(text, Remedy.OF_PROCESS)

    def _found_name(self, module: types.ModuleType, attribute: str, value: Any, label: str) -> None:
        """What user code reads of an installed module by name."""
        self._found.bindings.append((vars(module), attribute, value))
        if is_replaced(module, attribute, value):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            self._found.add(f"{label}, which was replaced here by {name}")
            return
        if (name := getattr(value, "__name__", attribute)) != attribute and callable(value):
            # An alias, or another function in its place: the worker looks what it has there.
            self._found.aliases[module.__name__, attribute] = name
        if isinstance(value, type):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.visit(value)
        elif is_constant(value):
            self._found.settings[module.__name__, attribute] = value
        else:
            self._container(module.__name__, attribute, value, label)
        self._tables_of(value)

    def _tables_of(self, function: Any) -> None:
        """A function of NumPy, SciPy or the standard library reads public containers of its module:
        those that the program may have changed."""
        if not isinstance(function, types.FunctionType) or function.__module__.startswith("mpgrad"):
            return
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if not name.startswith("_") and type(value) in _CHANGEABLE and plain_bytes(value):
                self._found.bindings.append((function.__globals__, name, value))
                self._container(function.__module__, name, value, "")

    def _container(self, module: str, name: str, value: Any, label: str) -> None:
        if type(value) not in _CHANGEABLE or (module, name) in self._found.tables:
            return
        if kept := plain_bytes(value):
            self._found.tables[module, name] = value, kept
        else:
            text = f"{label}, {article(type(value).__name__)}, which the program may have changed"
            self._found.add(text, Remedy.VALUE)

    def visit(self, cls: type) -> None:
        """A class, of which user code may have replaced methods, set constants, or registered
        subclasses."""
        for base in cls.__mro__:
            self._constants_of(base)
        for other in registered_in(cls):
            if not is_known_name(other):
                self._found.add(
                    f"{cls.__qualname__}.register({other.__qualname__}) was called here"
                )
        for name, member in patchable_members(cls):
            self._found.bindings.append((vars(cls), name, member))
            if is_replaced(cls, name, member):
                self._found.add(f"{cls.__qualname__}.{name} was replaced here")

    def _constants_of(self, cls: type) -> None:
        """A worker gets them as it gets those of modules; built-in classes cannot be changed."""
        is_fixed = not cls.__flags__ & _IS_HEAP_TYPE or issubclass(cls, Enum)
        if is_fixed or cls in (Tensor, Function) or not is_known_name(cls):
            return
        self._found.classes.append((cls, cls.__bases__, attribute_count(cls)))
        for owner in reversed(cls.__mro__):  # what is deleted here is that of a base again
            for name, value in vars(owner).items():
                if owner is not object and not name.startswith("__") and is_constant(value):
                    self._found.bindings.append((vars(owner), name, value))
                    self._found.settings[cls.__module__, f"{cls.__qualname__}.{name}"] = value
