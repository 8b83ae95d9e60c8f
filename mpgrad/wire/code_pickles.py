"""Pickles of functions and classes by value, whose code travels as the interpreter's own bytes.

They keep the names of their files, which tracebacks and warnings of another process need. A process
that gets the same code again has it already, specialized by the runs before.
"""

from __future__ import annotations

import dis
import functools
import importlib
import io
import marshal
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as parts

#: The code objects that are kept as bytes, and those that were made of bytes.
CODES_MAX = 4096
#: The modules that functions name which have been packed: these modules themselves, and those of
#: the functions and classes that they name.
NAMED_MODULES: set[str] = set()
#: What a function has besides its code, its globals and its closure.
_ATTRIBUTES = (
    "__name__",
    "__qualname__",
    "__annotations__",
    "__kwdefaults__",
    "__defaults__",
    "__module__",
    "__doc__",
    "__closure__",
)


class CodePickler(cloudpickle.Pickler):
    """cloudpickle's Pickler, except for code."""

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        # cloudpickle's own would go through all loaded modules for each function.
        code, globals_ = function.__code__, function.__globals__
        reached = {
            name: globals_[name] for name in parts._extract_code_globals(code) if name in globals_
        }
        cells = map(_content, function.__closure__ or ())
        named = (*reached.values(), *cells)
        packages = [one for one in named if isinstance(one, ModuleType)]
        submodules = [
            name
            for package in packages
            for name in _submodules(package.__name__, names_in(code), len(sys.modules))
            if name in sys.modules
        ]
        NAMED_MODULES.update(submodules)
        NAMED_MODULES.update([_module_of(one) for one in named])
        state = {
            **{name: getattr(function, name) for name in _ATTRIBUTES},
            "__globals__": reached,
            "_cloudpickle_submodules": [sys.modules[name] for name in submodules],
        }
        made_of = self._function_getnewargs(function)
        # What has been warned is known by module, so that a warning comes once.
        made_of[1].setdefault("__warningregistry__", _Registry(globals_.get("__name__", "")))
        return (
            parts._make_function,
            made_of,
            (dict(vars(function)), state),
            None,
            None,
            parts._function_setstate,
        )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            try:
                return _code_of, (_bytes_of(obj, obj.co_filename, obj.co_qualname),)
            except ValueError:  # a program has put constants into it that no source could
                return NotImplemented
        return super().reducer_override(obj)


@functools.lru_cache(CODES_MAX)
def _bytes_of(code: CodeType, *compared: Any) -> bytes:
    # ``compared`` is what ``==`` of code passes over. Bytes are kept, because those of one and the
    # same code may differ from time to time.
    return marshal.dumps(code)


def _code_of(data: bytes) -> CodeType:
    # torch.compile keeps what it makes by the code, and names it in the globals of the function,
    # which each call has anew.
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    has_compiled = compiler is not None and getattr(compiler, "FRAME_COUNTER", 1) > 0
    return _loaded.__wrapped__(data) if has_compiled else _loaded(data)


@functools.lru_cache(CODES_MAX)
def _loaded(data: bytes) -> CodeType:
    found: CodeType = marshal.loads(data)
    return found


def class_that_came(module: str, qualname: str) -> type[Any] | None:
    """The last class of that name that this process has got by value; None: it has not."""
    known = [one for one in parts._DYNAMIC_CLASS_TRACKER_BY_ID.values() if isinstance(one, type)]
    found = [cls for cls in known if (cls.__module__, cls.__qualname__) == (module, qualname)]
    return found[-1] if found else None


class _Registry:
    """Stands for ``__warningregistry__`` of a module: the one of the process that reads it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return _registry_of, (self._module,)


def _registry_of(module: str) -> dict[Any, Any]:
    namespace = vars(sys.modules[module]) if module in sys.modules else {}
    found: dict[Any, Any] = namespace.setdefault("__warningregistry__", {})
    return found


def _module_of(one: Any) -> str:
    """The name of a module, or of a function's or a class's; "" for anything else."""
    if isinstance(one, ModuleType):
        return one.__name__
    has_home = isinstance(one, FunctionType | BuiltinFunctionType | type)
    return (one.__module__ or "") if has_home else ""


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.lru_cache(CODES_MAX)
def names_in(code: CodeType) -> tuple[str, ...]:
    """What code names, and code inside of it: globals, and attributes, which may have the same
    names."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return tuple(
        dict.fromkeys([*code.co_names, *[name for one in inner for name in names_in(one)]])
    )


@functools.lru_cache(CODES_MAX)
def words_in(code: CodeType) -> frozenset[str]:
    """The same with the texts in it: ``getattr(module, "name")``."""
    found = frozenset([*code.co_names, *[one for one in code.co_consts if isinstance(one, str)]])
    return found.union(*[words_in(one) for one in code.co_consts if isinstance(one, CodeType)])


@functools.lru_cache(CODES_MAX)
def imports_in(code: CodeType) -> tuple[str, ...]:
    """The modules that code imports when it runs, and code inside of it; relative ones begin with
    dots. A name that is imported from a module may be a module, too."""
    found: list[str] = []
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, names = steps[at - 2].argval, steps[at - 1].argval or ()
            start = "." * level + step.argval
            inside = start if start.endswith(".") else f"{start}."
            found += [start, *[f"{inside}{name}" for name in names]]
    if "import_module" in code.co_names:
        found += [one for one in code.co_consts if isinstance(one, str)]
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return tuple(dict.fromkeys([*found, *[name for one in inner for name in imports_in(one)]]))


def of_module(reduced: Any, module: str) -> Any:
    """What a function by value is reduced to, if its globals are those of an imported module.

    Args:
        reduced: what ``CodePickler`` makes of it; by name it stays.
        module: its name.
    """
    if not (isinstance(reduced, tuple) and len(reduced) == 6):
        return reduced
    code, _, *_, cells = reduced[1]
    attributes, state = reduced[2]
    state = {**state, "__globals__": {}, "_cloudpickle_submodules": []}
    return (_function_of, (module, code, cells), (attributes, state), *reduced[3:])


def _function_of(module: str, code: CodeType, cells: Any) -> FunctionType:
    namespace = vars(importlib.import_module(module))
    return FunctionType(code, namespace, None, None, cells)


@functools.lru_cache(CODES_MAX)
def _submodules(package: str, names: tuple[str, ...], loaded: int) -> tuple[str, ...]:
    """The loaded submodules of a package that code with these names may reach through it.

    Args:
        package: its full name.
        names: those of ``names_in``.
        loaded: the number of modules; a new one may be another submodule.
    """
    start, known = f"{package}.", set(names)
    return tuple(
        [
            name
            for name in list(sys.modules)
            if name.startswith(start) and known.issuperset(name[len(start) :].split("."))
        ]
    )


def dumps(obj: object) -> bytes:
    """The pickle of ``obj``."""
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5).dump(obj)
    return buffer.getvalue()


#: cloudpickle has one list of such modules, so one dump at a time may change it.
_lock = threading.RLock()


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Let cloudpickle send what ``modules`` define by value, for one dump of this thread."""
    with _lock:
        already = cloudpickle.list_registry_pickle_by_value()
        added = [module for module in modules if module.__name__ not in already]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def _forget_lock_in_child() -> None:
    # A thread that does not exist in the child may hold it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
