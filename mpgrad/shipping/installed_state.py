"""Names in NumPy, SciPy, the standard library, mpgrad, and compiled modules, and what user code has
put in their places.

``process_state`` lists their parts that belong to one process. The state of C libraries is not
seen. All other packages are looked through like user code.
"""

from __future__ import annotations

import logging
import sys
import types
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from mpgrad.shipping.constants import MISSING, is_constant, is_importable
from mpgrad.shipping.process_state import (
    is_installed_namespace,
    is_known_module,
    is_known_namespace,
)

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def is_known_name(value: Any) -> bool:
    """True if ``value`` is found under its name in such a module.

    ``functools.wraps`` gives an installed function the name of the user's that it wraps; such a
    function is not one.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    named = module is not None and is_known_namespace(vars(module))
    return named and is_importable(value)


def is_known_object(value: Any) -> bool:
    """Whether every process has an equal object: a logger, a descriptor, or a callable made by
    installed code."""
    if isinstance(value, (*_DESCRIPTORS, logging.Logger)):
        return True
    kind = type(value)
    if kind.__module__ == "dataclasses" or kind.__name__ == "_tuplegetter":
        return True  # the marker of a missing default; a field of a namedtuple
    module = sys.modules.get(getattr(kind, "__module__", ""))
    if module is None or not is_known_namespace(vars(module)) or not callable(value):
        return False
    home = getattr(value, "__module__", None)
    # numpy's ufuncs have no __module__, but pickle by name.
    return kind.__name__ == "ufunc" or (
        isinstance(home, str) and is_known_module(home) and is_importable(value)
    )


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


def is_of_a_package(value: FunctionType | type) -> bool:
    """Whether a function or class belongs to an installed package whose state is not known."""
    if isinstance(value, FunctionType):
        namespace: Any = value.__globals__
    else:
        namespace = getattr(sys.modules.get(value.__module__), "__dict__", {})
    return is_installed_namespace(namespace) and not is_known_namespace(namespace)
