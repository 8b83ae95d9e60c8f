"""InstalledReads: what user code reads by name of modules that workers import themselves, and why
that could differ there.
"""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

from mpgrad.shipping.constants import MISSING, is_constant
from mpgrad.shipping.findings import Survey, registered_in
from mpgrad.shipping.installed_state import is_known_name, is_replaced, patchable_members
from mpgrad.shipping.process_state import (
    DYNAMIC_BUILTINS,
    LOOKUPS,
    OF_ONE_PROCESS,
    STATE_OF_LOGGERS,
    process_state,
)


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
            self._found.problems.append(f"{label}, {OF_ONE_PROCESS}")

    def follow(self, module: types.ModuleType, path: tuple[str, ...], label: str) -> Any:
        """Only look for what belongs to one process: ``np.random.rand``, ``os.environ``.

        Returns:
            What stands at the end of ``path``, or MISSING.
        """
        name: str = module.__name__
        value: Any = module
        for attribute in path:
            if process_state(name, attribute):
                break
            loaded = sys.modules.get(name)
            value = vars(loaded).get(attribute, MISSING) if loaded is not None else MISSING
            if loaded is not None:
                self._found_name(loaded, attribute, value, f"{label}.{'.'.join(path)}`")
            # A lazy package may not have loaded its submodule yet.
            name = value.__name__ if isinstance(value, types.ModuleType) else f"{name}.{attribute}"
        else:
            if not process_state(name, None):
                return value
        self._found.problems.append(f"{label}.{'.'.join(path)}`, {OF_ONE_PROCESS}")
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
                self._found.problems.append(f"it uses .{name} of a logger, {OF_ONE_PROCESS}")

    def _found_name(self, module: types.ModuleType, attribute: str, value: Any, label: str) -> None:
        """What user code reads of an installed module by name."""
        self._found.bindings.append((vars(module), attribute, value))
        if is_replaced(module, attribute, value):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            self._found.problems.append(f"{label}, which was replaced here by {name}")
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

    def visit(self, cls: type) -> None:
        """A class, of which user code may have replaced methods, or registered subclasses."""
        for other in registered_in(cls):
            if not is_known_name(other):
                self._found.problems.append(
                    f"{cls.__qualname__}.register({other.__qualname__}) was called here"
                )
        for name, member in patchable_members(cls):
            self._found.bindings.append((vars(cls), name, member))
            if is_replaced(cls, name, member):
                self._found.problems.append(f"{cls.__qualname__}.{name} was replaced here")
