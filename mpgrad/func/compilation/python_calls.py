"""Watch: what the user's Python calls while a function is traced.

A program does again what was done with arrays. What Python does beside that, it does once, while
the function is traced: so whatever has an effect, or gives something else each time, is refused.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from mpgrad.func.compilation.read_places import is_library, is_ours
from mpgrad.func.compilation.traced_call import CallProgram

#: Functions of Python that have an effect, or give something else each time.
_IMPURE = frozenset(
    {"print", "input", "open", "exec", "eval", "compile", "__import__", "breakpoint", "globals"}
)
#: Modules whose functions give the same for the same arguments, and have no other effect.
_PURE_MODULES = frozenset(
    {
        *("builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "copy"),
        *("_functools", "collections", "_collections", "_collections_abc", "contextlib", "typing"),
        *("dataclasses", "enum", "abc", "_abc", "re", "string", "numbers", "numpy", "types"),
        *("inspect", "fractions", "statistics", "bisect", "heapq", "copyreg", "weakref"),
    }
)


class Watch:
    """Watches what the user's code calls while it is traced.

    Attributes:
        codes: the user's code that ran.
    """

    def __init__(self, program: CallProgram) -> None:
        self._program = program
        self.codes: set[types.CodeType] = set()
        self._before: Any = None

    def __enter__(self) -> Watch:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if not is_library(frame.f_code):
                self.codes.add(frame.f_code)
            elif not is_ours(frame.f_code):
                caller = frame.f_back
                if caller is not None and not is_library(caller.f_code):
                    self._check(frame.f_globals.get("__name__", ""), frame.f_code.co_name)
        elif event == "c_call" and not is_library(frame.f_code):
            owner = getattr(argument, "__self__", None)
            module = getattr(argument, "__module__", None) or type(owner).__module__
            name = getattr(argument, "__name__", "")
            if module == "builtins" and name in _IMPURE and type(owner) is types.ModuleType:
                self._program.give_up(f"{name}() is not compiled")
            else:
                self._check(module, name)

    def _check(self, module: str, name: str) -> None:
        if module.startswith("numpy.random"):
            self._program.give_up(f"{name}() of numpy.random draws numbers that it cannot know of")
        elif module.partition(".")[0] not in _PURE_MODULES | {"mpgrad"}:
            self._program.give_up(f"a call of {module}.{name}() is not compiled")
