"""Functions that a debugger may stop: those that call one, and those in files with breakpoints.

They run in this process: a worker has no terminal, and no debugger would stop there.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.code_reads import Access
from mpgrad.calls.custom_functions.process_state import DEBUGGERS


def is_debugger(access: Access, function: types.FunctionType, free: dict[str, Any]) -> bool:
    """Whether ``access`` in the code of ``function`` names a debugger.

    Args:
        access: one use of a name.
        function: whose code it is in.
        free: the variables of its closure.
    """
    if access.source == "import":
        module = access.name
    else:
        names = free if access.source == "free" else function.__globals__
        if access.name not in names:
            return access.name == "breakpoint"
        value = names[access.name]
        is_module = isinstance(value, types.ModuleType)
        module = getattr(value, "__name__" if is_module else "__module__", None) or ""
    return str(module).partition(".")[0] in DEBUGGERS


def files_with_breakpoints() -> frozenset[str]:
    """The files, with all symbolic links resolved; empty if no debugger watches this thread.

    It knows pdb and what is built on ``bdb`` (ipdb, pudb), and pydevd (debugpy, PyCharm, VS Code).
    """
    found: set[str] = set()
    if (bdb := sys.modules.get("bdb")) is not None and _traces(bdb):
        found.update(file for file, _ in bdb.Breakpoint.bplist)
    if (pydevd := sys.modules.get("pydevd")) is not None:
        debugger = pydevd.get_global_debugger()
        found.update(getattr(debugger, "breakpoints", None) or ())
    return frozenset(map(os.path.realpath, found))


def file_of(function: type[Function]) -> str:
    """The file of a Function's backward, with all symbolic links resolved; empty if it has none."""
    code = getattr(inspect.unwrap(function._backward_rule()), "__code__", None)
    return "" if code is None else os.path.realpath(code.co_filename)


def _traces(bdb: Any) -> bool:
    if isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb):
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
