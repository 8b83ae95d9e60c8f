"""InstalledReads: what user code reads of installed modules by name, and why that could differ in
a worker. What those read themselves ``installed_state`` knows.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np

from mpgrad.shipping.constants import MISSING, is_constant
from mpgrad.shipping.findings import Survey, article, registered_in
from mpgrad.shipping.installed_state import (
    InstalledGlobal,
    is_installed_name,
    is_replaced,
    is_trusted,
    patchable_members,
    settings_of,
)
from mpgrad.shipping.process_state import OF_ONE_PROCESS, process_state


class InstalledReads:
    """Part of a survey.

    Args:
        found: what is found goes there.
        seen: functions and classes that were looked through, by id.
    """

    def __init__(self, found: Survey, seen: dict[int, Any]) -> None:
        self._found, self._seen = found, seen

    def check(self, function: Any, label: str) -> None:
        """``from mpgrad import randn``: the same as ``mpgrad.randn``."""
        module = getattr(function, "__module__", None) or ""
        if module != "builtins" and process_state(module, function.__name__):
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
        if isinstance(value, types.FunctionType | type):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.visit(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            if not is_trusted(module.__name__):
                self._cached(value.__wrapped__)
        elif is_constant(value):
            self._setting(InstalledGlobal(module.__name__, vars(module), attribute, value))
        elif not is_trusted(module.__name__) and isinstance(value, list | dict | set | np.ndarray):
            self._found.problems.append(
                f"{label}, {article(type(value).__name__)}, which can change"
            )

    def _cached(self, function: Any) -> None:
        """What the cache has kept may be older than the settings that it was computed with."""
        settings, problems = settings_of(function)
        self._found.problems += problems
        for setting in settings[:1]:
            self._found.problems.append(
                f"{function.__qualname__}() is cached and reads `{setting.module}.{setting.name}`, "
                "so what it has kept may be older than that"
            )

    def visit(self, value: types.FunctionType | type) -> None:
        """A function or class of an installed package, which reads settings of that."""
        if isinstance(value, type):
            for other in registered_in(value):
                if not is_installed_name(other):
                    self._found.problems.append(
                        f"{value.__qualname__}.register({other.__qualname__}) was called here"
                    )
            for name, member in patchable_members(value):
                self._found.bindings.append((vars(value), name, member))
                if is_replaced(value, name, member):
                    self._found.problems.append(f"{value.__qualname__}.{name} was replaced here")
        if not is_trusted(value.__module__):
            settings, problems = settings_of(value)
            for text in problems:
                self._found.problems.append(text)
            for setting in settings:
                self._setting(setting)

    def _setting(self, setting: InstalledGlobal) -> None:
        self._found.bindings.append((setting.namespace, setting.name, setting.value))
        self._found.settings[setting.module, setting.name] = setting.value
