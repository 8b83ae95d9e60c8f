"""Places: what a function finds outside of its arguments, and what tells that it changed.

Globals, variables of closures, modules, optimizers and objects of the user's are walked once, as
far as the code that can be reached names them. Each *place* (a key of a dict, an index of a list, a
cell) is compared in every call, by value where that is constant, else by identity.
"""

from __future__ import annotations

import builtins
import functools
import sys
import sysconfig
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mpgrad
from mpgrad.base.generated_code import WRITTEN
from mpgrad.calls.custom_functions.constants import is_constant
from mpgrad.nn.module import Module
from mpgrad.nn.module_hooks import OF_ALL
from mpgrad.ops.generators import Generator
from mpgrad.optim.optimizer import Optimizer
from mpgrad.optim.optimizer_hooks import step_hooks
from mpgrad.recording.tensors.tensor import Tensor

#: Places that are compared at most: a function that sees more than this is not compiled.
PLACES_MAX = 5000

_PACKAGE = str(Path(mpgrad.__file__).parent)
_INSTALLED = tuple(
    {
        *(sysconfig.get_path("stdlib"), sys.prefix, sys.base_prefix),
        *(str(path) for path in Path(np.__file__).parents if path.name == "site-packages"),
    }
)
#: What this package calls the files of the source that it writes.
_WRITTEN = (*WRITTEN, "<frozen ")
_GENERATED = frozenset({"<lambda>", "__new__", "__init__", "__eq__", "__repr__", "__hash__"})
_CONTAINERS = (list, tuple, dict, OrderedDict, deque)
#: In a module's dict, beside what its user put there.
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "training"})


class ReadPlace(NamedTuple):
    """Where a value was found.

    Attributes:
        label: as the user would write it.
        expression: reads it, with ``holder`` as a free name of that number.
        holder: the object that it is read from.
        value: what was there.
        name: what the code has to name so that it reads this; "" if it is read with its parent.
        parent: the index of the place that leads here; -1 for a root.
        how: "same": compared by value; "is": by identity; "keys": the value is the list of the
            holder's keys; "length"; "absent": the holder has none of the keys in the value;
            "unknown": cannot be compared.
    """

    label: str
    expression: str
    holder: Any
    value: Any
    name: str
    parent: int
    how: str


def is_library(code: types.CodeType) -> bool:
    """Whether ``code`` is no user's: it belongs to this package, or is installed."""
    file = code.co_filename
    if file.startswith(_WRITTEN) or file.startswith(_PACKAGE):
        return True
    if file.startswith("<"):
        # What an import runs; and what Python writes for named tuples and dataclasses.
        return code.co_name == "<module>" or (file == "<string>" and code.co_name in _GENERATED)
    return file.startswith(_INSTALLED) or code.co_name == "<module>"


def is_ours(code: types.CodeType) -> bool:
    """Whether ``code`` belongs to this package."""
    return code.co_filename.startswith((_PACKAGE, *_WRITTEN))


def names_in(code: types.CodeType) -> Iterator[str]:
    """What ``code`` and the code inside it can name: globals, attributes, variables around it."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant  # for getattr()


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """``code`` and the code inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


class Places:
    """What ``function`` can reach.

    Attributes:
        places: all of them, each after its parent.
        tensors: by id the Tensors that stand there, and how a user would write them.
        codes: the user's code that was found.
    """

    def __init__(self, function: Any) -> None:
        self.places: list[ReadPlace] = []
        self.tensors: dict[int, tuple[Tensor, str]] = {}
        self.optimizers: list[Optimizer] = []
        self.codes: set[types.CodeType] = set()
        self._seen: dict[int, Any] = {}
        self._pending: deque[tuple[Any, str, int]] = deque()
        self._functions: list[tuple[types.FunctionType, str, int]] = []
        self.is_too_large = False
        self.add_root(function, getattr(function, "__name__", "the function"))

    def add_root(self, value: Any, label: str) -> None:
        """Walk what can be reached from ``value``, too."""
        self._pending.append((value, label, -1))
        self._walk()

    def _walk(self) -> None:
        while self._pending and not self.is_too_large:
            value, label, parent = self._pending.popleft()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._visit(value, label, parent)
            self.is_too_large = len(self.places) > PLACES_MAX

    def _add(
        self, label: str, expression: str, holder: Any, value: Any, name: str, parent: int
    ) -> None:
        how = "same" if is_constant(value) else "is"
        if how == "is" and not _is_known(value):
            how = "unknown"
        self.places.append(ReadPlace(label, expression, holder, value, name, parent, how))
        if how == "is":
            self._pending.append((value, label, len(self.places) - 1))

    def _note(
        self, label: str, holder: Any, value: Any, parent: int, how: str, expression: str = ""
    ) -> None:
        self.places.append(ReadPlace(label, expression, holder, value, "", parent, how))

    # ------------------------------------------------------------------ one value

    def _visit(self, value: Any, label: str, parent: int) -> None:
        if isinstance(value, Tensor):
            self.tensors[id(value)] = value, label
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, parent)
        elif isinstance(value, types.MethodType):
            self._pending += [(value.__self__, label, parent), (value.__func__, label, parent)]
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._pending.append((part, label, parent))
        elif isinstance(value, staticmethod | classmethod):
            self._pending.append((value.__func__, label, parent))
        elif isinstance(value, property):
            self._pending += [(value.fget, label, parent), (value.fset, label, parent)]
        elif isinstance(value, Optimizer):
            self._visit_optimizer(value, label, parent)
        elif isinstance(value, types.ModuleType):
            if not _is_installed(value):
                self._visit_dict(vars(value), label, parent)
        elif isinstance(value, dict):
            self._note(f"the keys of {label}", value, list(value), parent, "keys")
            for key in value:
                self._add(f"{label}[{key!r}]", f"[{key!r}]", value, value[key], "", parent)
        elif isinstance(value, list | tuple | deque):
            self._note(f"the length of {label}", value, len(value), parent, "length")
            for at, item in enumerate(value):
                self._add(f"{label}[{at}]", f"[{at}]", value, item, "", parent)
        elif isinstance(value, type):
            self._visit_class(value, label, parent)
        elif not _is_atom(value):
            self._visit_object(value, label, parent)

    def _visit_function(self, function: types.FunctionType, parent: int) -> None:
        code = function.__code__
        if is_library(code):
            wrapped = getattr(function, "__wrapped__", None)
            if wrapped is not None:  # our no_grad() and functools.wraps() around a user's function
                self._pending.append((wrapped, function.__name__, parent))
            return
        self.codes.update(codes_in(code))
        names = set(names_in(code))
        label, table = function.__name__, function.__globals__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self._note(label, function, getattr(function, part), parent, "is", f".{part}")
        self._visit_dict(table, "", parent, names)
        absent = frozenset(names - table.keys())
        self._note(f"the globals of {label}", table, absent, parent, "absent")
        self._visit_dict(vars(builtins), "", parent, set(absent))
        self._visit_dict(sys.modules, "", parent, set(absent))
        found = [table[name] for name in names & table.keys()]
        found += [sys.modules[name] for name in absent & sys.modules.keys()]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._add(name, ".cell_contents", cell, value, name, parent)
            found.append(value)
        for value in found:
            if isinstance(value, types.ModuleType) and _is_installed(value):
                self._visit_library(value, names, parent)
        for defaults in (function.__defaults__, function.__kwdefaults__):
            if defaults is not None:
                self._pending.append((defaults, f"the defaults of {function.__name__}", parent))

    def _visit_dict(
        self,
        table: dict[str, Any],
        label: str,
        parent: int,
        names: set[str] | None = None,
    ) -> None:
        dot = f"{label}." if label else ""
        for key in list(table) if names is None else sorted(names & table.keys()):
            if isinstance(key, str) and not (key.startswith("__") and names is None):
                self._add(f"{dot}{key}", f"[{key!r}]", table, table[key], key, parent)

    def _visit_library(self, module: types.ModuleType, names: set[str], parent: int) -> None:
        """The names of an installed module that the code uses: a test may have replaced them."""
        table = vars(module)
        for key in sorted(names & table.keys()):
            label, value = f"{module.__name__}.{key}", table[key]
            if _is_ours(type(value)):
                self._note(label, table, value, parent, "is", f"[{key!r}]")
            else:
                self._add(label, f"[{key!r}]", table, value, key, parent)

    def _visit_class(self, cls: type, label: str, parent: int) -> None:
        for base in cls.__mro__:
            if _is_installed(base):
                continue
            members = dict(vars(base))
            self._note(f"the names in {label}", vars(base), list(members), parent, "keys")
            for name, member in members.items():
                expression = f".__dict__[{name!r}]"
                if isinstance(member, types.FunctionType | staticmethod | classmethod | property):
                    self._note(f"{label}.{name}", base, member, parent, "is", expression)
                    self._pending.append((member, f"{base.__name__}.{name}", parent))
                elif not name.startswith("__") and not _is_descriptor(member):
                    self._add(f"{label}.{name}", expression, base, member, name, parent)

    def _visit_object(self, value: Any, label: str, parent: int) -> None:
        cls = type(value)
        self._note(f"the class of {label}", value, cls, parent, "is", ".__class__")
        self._pending.append((cls, cls.__name__, parent))
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):  # a new attribute may hide one of the class
            self._note(f"the attributes of {label}", own, list(own), parent, "keys")
        if isinstance(value, Module):
            is_theirs = not _is_installed(cls)
            assert own is not None
            self._note("hooks of all Modules", OF_ALL, len(OF_ALL), parent, "length")
            if value._hooks is not None or OF_ALL:
                self._note(f"{label}._hooks", value, value._hooks, parent, "unknown")
            for key in own:
                if key != "_non_persistent":
                    name = key if is_theirs and key not in _TABLES else ""
                    self._add(f"{label}.{key}", f"[{key!r}]", own, own[key], name, parent)
            return
        if isinstance(own, dict):
            self._visit_dict(own, label, parent)
        for base in cls.__mro__:
            for slot in getattr(base, "__slots__", ()):
                if hasattr(value, slot) and not slot.startswith("__"):
                    content = getattr(value, slot)
                    self._add(f"{label}.{slot}", f".{slot}", value, content, slot, parent)

    def _visit_optimizer(self, optimizer: Optimizer, label: str, parent: int) -> None:
        """Learning rates are read in each step; the other options are compared."""
        self.optimizers.append(optimizer)
        for name, hooks in step_hooks(optimizer):
            self._note(f"{label}.{name}", hooks, len(hooks), parent, "length")
        own = vars(optimizer)
        if not _is_installed(type(optimizer)):
            self._pending.append((type(optimizer), type(optimizer).__name__, parent))
        groups = f"{label}.param_groups"
        self._note(groups, own, own["param_groups"], parent, "is", "['param_groups']")
        self._note(groups, optimizer.param_groups, len(optimizer.param_groups), parent, "length")
        for at, group in enumerate(optimizer.param_groups):
            self._note(groups, optimizer.param_groups, group, parent, "is", f"[{at}]")
            self._note(groups, group, list(group), parent, "keys")
            for key, option in group.items():
                if not (key == "lr" and type(option) is float):
                    self._add(f"{groups}[{at}]", f"[{key!r}]", group, option, "", parent)
            for parameter in group["params"]:
                self._visit_state(optimizer, parameter, label, parent)

    def _visit_state(self, optimizer: Optimizer, parameter: Any, label: str, parent: int) -> None:
        kept = optimizer.state.get(parameter)
        self._note(f"the state of {label}", (optimizer, parameter), kept, parent, "state")
        for name, value in (kept or {}).items():
            if isinstance(value, Tensor):
                self._add(f"{label}.state", f"[{name!r}]", kept, value, "", parent)


# ---------------------------------------------------------------------- what values are


def _is_installed(value: Any) -> bool:
    """Whether a class or a module is of this package, of Python, or installed beside them."""
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return getattr(module, "__name__", "") != "__main__"
    return file.startswith((_PACKAGE, *_INSTALLED))


def _is_ours(cls: type) -> bool:
    """Whether ``cls`` belongs to this package."""
    return cls.__module__.split(".")[0] == "mpgrad"


def _is_atom(value: Any) -> bool:
    """Whether identity says all."""
    if type(getattr(value, "__self__", None)).__module__.startswith("numpy.random"):
        return False  # a method of a generator
    numpys = (np.dtype, np.ufunc, type(np.append))  # a name of the user's may be one of NumPy's
    kinds = (Enum, Generator, types.BuiltinFunctionType, *numpys)
    return is_constant(value) or isinstance(value, kinds)


def _is_descriptor(member: Any) -> bool:
    return isinstance(
        member,
        types.MemberDescriptorType | types.GetSetDescriptorType | types.WrapperDescriptorType,
    )


def _is_known(value: Any) -> bool:
    """Whether a change of ``value`` would be noticed."""
    kind = type(value)
    if kind in _CONTAINERS or isinstance(value, Tensor | Module | Optimizer) or _is_atom(value):
        return True
    if isinstance(
        value,
        types.FunctionType | types.MethodType | types.ModuleType | type | functools.partial
        | staticmethod | classmethod | property,
    ):  # fmt: skip
        return True
    return not _is_installed(kind) and not issubclass(kind, dict | list | set | np.ndarray)
