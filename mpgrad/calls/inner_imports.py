"""Modules of the user's that functions import when they run.

A worker imports them itself. Then what a call's code names in them is what it is in the caller.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.custom_functions.process_state import is_installed_namespace
from mpgrad.wire.code_pickles import imports_in


def imported_by(function: types.FunctionType) -> dict[str, types.ModuleType]:
    """Those among the loaded modules, by name, that a function of the user's imports."""
    found = {}
    names = imports_in(function.__code__)
    if not names or is_installed_namespace(function.__globals__):
        return {}
    package = function.__globals__.get("__package__") or ""
    for written in names:
        is_relative = written.startswith(".")
        if is_relative and not package:
            continue
        name = importlib.util.resolve_name(written, package) if is_relative else written
        module = sys.modules.get(name)
        if type(module) is types.ModuleType and not is_installed_namespace(vars(module)):
            found[name] = module
    return found


@contextmanager
def as_in_caller(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """In a worker, let modules have these values by their names.

    Args:
        modules: by the name of each, values by name.
    """
    if not (modules and engine_slot.is_worker):
        yield
        return
    with ExitStack() as stack:
        for name, values in modules.items():
            namespace = vars(_imported(name))
            before = {one: namespace[one] for one in values if one in namespace}
            stack.callback(namespace.update, before)
            for one in values.keys() - before.keys():
                stack.callback(namespace.pop, one, None)
            namespace.update(values)
        yield


def _imported(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except Exception:  # the caller has made it of nothing, or it cannot be imported twice
        return sys.modules.setdefault(name, types.ModuleType(name))
