"""Which modules and functions are the user's: these travel by value."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from mpgrad.calls.custom_functions.process_state import is_installed_namespace


def is_users(module_name: str) -> bool:
    """Whether a module is the user's, or is not loaded."""
    module = sys.modules.get(module_name)
    return module is None or not is_installed_namespace(vars(module))


def home_of(function: types.FunctionType) -> str | None:
    """The installed module whose globals a function has; None: they are the user's."""
    name = function.__globals__.get("__name__") or ""
    is_there = vars(sys.modules.get(name, types)) is function.__globals__
    return name if is_there and is_installed_namespace(function.__globals__) else None


def is_imported(module: types.ModuleType) -> bool:
    return is_installed_namespace(vars(module)) and sys.modules.get(module.__name__) is module


def place_in_package(module: types.ModuleType) -> tuple[types.ModuleType, str] | None:
    """The module of an installed package and its attribute that is ``module``, where nothing has
    imported it by its name: C code makes such (``torch._C._functions``)."""
    if sys.modules.get(module.__name__) is module:
        return None
    home, _, name = module.__name__.rpartition(".")
    parent = sys.modules.get(home)
    if parent is None or not is_imported(parent) or vars(parent).get(name) is not module:
        return None
    return parent, name


def by_name(module: types.ModuleType) -> tuple[Any, ...] | None:
    """What pickle makes of a module of a class of its own, which packages give those whose parts
    come when they are asked for (``transformers``, ``torch.ops``); None: it is no such."""
    name = vars(module).get("__name__")
    if type(module) is types.ModuleType or not isinstance(name, str):
        return None
    if sys.modules.get(name) is module:
        return importlib.import_module, (name,)
    home, _, last = name.rpartition(".")
    parent = sys.modules.get(home)
    is_there = parent is not None and vars(parent).get(last) is module
    return (getattr, (parent, last)) if is_there else None


def _is_made_by_hand(module: types.ModuleType) -> bool:
    """Whether a program has made a module out of nothing; C code of packages does that, too."""
    if module.__spec__ is not None or hasattr(module, "__path__"):
        return False
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    return not is_installed_namespace(vars(package))


class _UsersModules:
    """The user's modules that are loaded; they change when something is imported."""

    count = -1
    found: tuple[types.ModuleType, ...] = ()


def users_modules() -> tuple[types.ModuleType, ...]:
    if len(sys.modules) != _UsersModules.count:
        modules = list(sys.modules.items())
        _UsersModules.found = tuple(
            [
                module
                for name, module in modules
                if type(module) is types.ModuleType
                and name != "__main__"
                and module.__name__ == name
                and (isinstance(getattr(module, "__file__", None), str) or _is_made_by_hand(module))
                and not is_installed_namespace(vars(module))
            ]
        )
        _UsersModules.count = len(modules)
    return _UsersModules.found
