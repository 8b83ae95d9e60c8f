"""InstalledReads: what user code reads by name of modules that workers import themselves, and what
it can replace in them or in Python although no name of its own changes.

The state of C libraries is not seen.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import types
from collections.abc import Iterable
from enum import Enum
from operator import attrgetter
from typing import Any

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.constants import MISSING, is_constant
from mpgrad.calls.custom_functions.contents import described
from mpgrad.calls.custom_functions.findings import Survey, article, class_state, registered_in
from mpgrad.calls.custom_functions.process_state import (
    CHANGING_BUILTINS,
    DYNAMIC_BUILTINS,
    LOOKUPS,
    NAMES_AND_WORDS,
    OF_ONE_PROCESS,
    STATE_OF_LOGGERS,
    is_known_name,
    is_known_namespace,
    is_own_builtin,
    process_state,
)
from mpgrad.calls.custom_functions.remedies import Remedy, remedy_in
from mpgrad.recording.tensors.tensor import Tensor

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
                if _is_replaced(type(value), attribute, member):
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
        if _is_replaced(module, attribute, value):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            self._found.add(f"{label}, which was replaced here by {name}")
            return
        if callable(value) and getattr(value, "__name__", attribute) != attribute:
            # An alias, or another function in its place: the worker looks what it has there.
            self._found.expected[module.__name__, attribute] = described(value)
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
            if not name.startswith("_") and type(value) in _CHANGEABLE and described(value):
                self._found.bindings.append((function.__globals__, name, value))
                self._container(function.__module__, name, value, "")

    def _container(self, module: str, name: str, value: Any, label: str) -> None:
        if type(value) not in _CHANGEABLE:
            return
        if kept := described(value):
            self._found.expected[module, name] = kept
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
        is_ours = cls.__module__.partition(".")[0] == "mpgrad"
        for name, member in () if is_ours else vars(cls).items():
            if isinstance(member, types.FunctionType):
                self._found.bindings.append((vars(cls), name, member))
                if _is_replaced(cls, name, member):
                    self._found.add(f"{cls.__qualname__}.{name} was replaced here")

    def _constants_of(self, cls: type) -> None:
        """A worker gets them as it gets those of modules; built-in classes cannot be changed."""
        is_fixed = not cls.__flags__ & _IS_HEAP_TYPE or issubclass(cls, Enum)
        if is_fixed or cls in (Tensor, Function) or not is_known_name(cls):
            return
        self._found.note(class_state, cls, cls.__qualname__)
        for owner in reversed(cls.__mro__):  # what is deleted here is that of a base again
            for name, value in vars(owner).items():
                if owner is not object and not name.startswith("__") and is_constant(value):
                    self._found.bindings.append((vars(owner), name, value))
                    self._found.settings[cls.__module__, f"{cls.__qualname__}.{name}"] = value

    # ------------------------------------------------------------------ without another name

    def builtin(self, name: str, where: str) -> None:
        """Code at ``where`` reads a name that its module does not have."""
        value = vars(builtins).get(name, MISSING)
        self._found.bindings.append((vars(builtins), name, value))
        if name in DYNAMIC_BUILTINS and value is not MISSING:
            remedy = Remedy.CHANGES if name in CHANGING_BUILTINS else Remedy.OF_PROCESS
            self._found.add(f"{where} calls {name}(), whose effect cannot be foreseen", remedy)
        elif not is_own_builtin(name, value):
            self._found.add(f"{where} reads the builtin `{name}`, which was put there at run time")

    def names_of_ours(self, names: Iterable[str]) -> None:
        """Code looks ``names`` up on tensors, Functions, or objects that could not be followed."""
        for cls in (Tensor, Function):
            self._found.note(class_state, cls, cls.__qualname__)
            for name in sorted(names):
                if (value := vars(cls).get(name)) is not None:
                    self._found.bindings.append((vars(cls), name, value))
                    is_new = is_constant(value) and name not in cls.__annotations__
                    if _is_replaced(cls, name, value) or (is_new and not name.startswith("__")):
                        self._found.add(f"{cls.__name__}.{name} was replaced here")

    def name_of(self, value: Any, attribute: str) -> None:
        """Code reads ``value.__name__`` or its like."""
        if attribute in NAMES_AND_WORDS and isinstance(value, types.FunctionType | type):
            self._found.note(attrgetter(attribute), value, f"`{attribute}`")

    def parts_of_partial(self, value: functools.partial[Any], label: str) -> None:
        """Code reads a partial, which ``__setstate__`` changes."""
        if vars(value) or type(value) is not functools.partial:
            self._found.add(f"{label}, a partial with attributes, which can change")
        self._found.note(_parts_of_partial, value, label)

    def members_of(self, cls: type[Enum]) -> None:
        """Code reads an Enum."""
        for member in cls._member_map_.values():
            self._found.note(attrgetter("_name_", "_value_"), member, f"`{cls.__qualname__}`")


def _parts_of_partial(value: functools.partial[Any]) -> tuple[Any, ...]:
    return value.func, value.args, tuple(value.keywords.items())


def _is_replaced(module: types.ModuleType | type, attribute: str, value: Any) -> bool:
    """Whether user code has replaced the attribute of a module or class by ``value``."""
    if value is MISSING or isinstance(value, types.ModuleType) or is_constant(value):
        return False
    if isinstance(value, types.FunctionType):
        return not is_known_namespace(value.__globals__)
    if isinstance(value, np.ufunc):
        own = vars(np._core.umath).get(attribute, value)  # type: ignore[attr-defined]
        return own is not value
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "unittest.mock" and not module.__name__.startswith("unittest"):
        return True
    name = getattr(value, "__module__", None)
    home = sys.modules.get(name if isinstance(name, str) else kind.__module__)
    return home is not None and not is_known_namespace(vars(home))


def hooks_of_all_modules() -> str:
    """In words, if user code has put hooks around the calls of all Modules, which workers have not;
    else empty."""
    module = sys.modules.get("mpgrad.nn.module_hooks")
    return "hooks of all Modules" if module is not None and len(module.OF_ALL) else ""
