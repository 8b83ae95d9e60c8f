"""Context variables in calls: a call finds the values that they have where it is asked for.

Variables of installed packages are found by their names there; others are new objects.
"""

from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from mpgrad.calls.custom_functions.process_state import is_installed_namespace

Variable: TypeAlias = contextvars.ContextVar[Any]

#: By ``id``, with the variables themselves: their module and their name there, if it is installed.
_homes: dict[int, tuple[Variable, tuple[str, str] | None]] = {}
#: NumPy's and mpgrad's own settings travel in other ways.
_OWN = ("numpy", "mpgrad")


def home_of(variable: Variable) -> tuple[str, str] | None:
    """The installed module that has a variable as a global, and its name there; None: none has."""
    known = _homes.get(id(variable))
    if known is None:
        known = _homes[id(variable)] = variable, _search(variable)
    return known[1]


def _search(variable: Variable) -> tuple[str, str] | None:
    for module_name, module in list(sys.modules.items()):
        if type(module) is types.ModuleType and is_installed_namespace(vars(module)):
            for name, value in list(vars(module).items()):
                if value is variable:
                    return module_name, name
    return None


def reduced(variable: Variable) -> Any:
    """How a variable is pickled, without its value."""
    home = home_of(variable)
    if home is not None:
        return _of_module, home
    try:
        return _made, (variable.name, contextvars.Context().run(variable.get))
    except LookupError:
        return _made, (variable.name,)


def _of_module(module: str, name: str) -> Variable:
    __import__(module)
    found: Variable = getattr(sys.modules[module], name)
    return found


def _made(name: str, *default: Any) -> Variable:
    if default:
        return contextvars.ContextVar(name, default=default[0])
    return contextvars.ContextVar(name)


def of_packages(travels: Callable[[Any], bool]) -> Iterator[Variable]:
    """The variables of installed packages that have a value here which can travel."""
    for variable, value in contextvars.copy_context().items():
        home = home_of(variable)
        if home is not None and home[0].partition(".")[0] not in _OWN and travels(value):
            yield variable
