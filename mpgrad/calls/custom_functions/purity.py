"""survey(): everything that a Function's backward can read, and what of it could change.

A wrong gradient from a stale global would be the worst fault, so the analysis is careful: what it
cannot see counts as a problem. It follows functions, classes, closures, default arguments and
``module.NAME``. Installed code (site-packages, the standard library, mpgrad) is the same in every
process and is not analysed.
"""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import types
from abc import ABCMeta
from collections import deque
from enum import Enum
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.base.hash_seed import fixed_hash_seed
from mpgrad.calls.custom_functions.code_reads import Access, CodeReads, code_reads
from mpgrad.calls.custom_functions.constants import (
    FOR_ORDER,
    MISSING,
    is_constant,
    is_copied,
    is_enum_member,
    why_no_copy,
)
from mpgrad.calls.custom_functions.debuggers import is_debugger
from mpgrad.calls.custom_functions.findings import Survey, article, cell_contents, line_of
from mpgrad.calls.custom_functions.generated_members import (
    IGNORED,
    OF_ENUM,
    OF_NAMEDTUPLE,
    generated_in,
    is_bookkeeping,
)
from mpgrad.calls.custom_functions.installed_reads import InstalledReads
from mpgrad.calls.custom_functions.process_state import (
    OF_ONE_OBJECT,
    OF_ONE_PROCESS,
    SUSPECT_ATTRIBUTES,
    TOLD_TO_LOGGERS,
    is_known_module,
    is_known_name,
    is_known_object,
    is_mixed,
    is_of_a_package,
    process_state,
)
from mpgrad.calls.custom_functions.remedies import Remedy, remedy_in, remedy_of_attribute
from mpgrad.calls.custom_functions.travelling import TravellingValues

#: Functions and classes of installed packages whose state is not known that are looked through.
FOLLOWED_MAX = 400
#: Parts of a Function that backward does not need unless it names them.
_FORWARD_ONLY = frozenset({"forward", "setup_context"})
#: Methods of cached functions.
_OF_CACHES = frozenset({"cache_info", "cache_clear"})


def survey(
    cls: type[Function], held: tuple[type, ...] = (), *, is_promised: bool = False
) -> Survey:
    """Analyse ``cls.backward`` and everything that it can reach.

    Args:
        cls: the Function.
        held: the classes of values on its ctx.
        is_promised: see ``Survey``.
    """
    return _Surveyor(is_promised=is_promised).run(cls, held)


class _Surveyor:
    def __init__(self, *, is_promised: bool) -> None:
        self._found = Survey(is_promised)
        self._queue: deque[types.FunctionType | type] = deque()
        #: By id; it holds the objects, so that no id is used twice.
        self._seen: dict[int, Any] = {}
        self._installed = InstalledReads(self._found, self._seen)
        self._followed = 0
        self._values = TravellingValues(self._found, self._visit)
        self._names: set[str] = set()
        #: Functions (by id) that the standard library has generated.
        self._generated: set[int] = set()
        self._forward: list[tuple[type, str, Any]] | None = []
        #: The analysed class with its bases and mixins, whose forward is left out.
        self._lineage: tuple[type, ...] = ()

    def run(self, cls: type[Function], held: tuple[type, ...]) -> Survey:
        self._lineage = cls.__mro__
        self._visit(cls, cls.__name__)
        for other in held:
            self._visit(other, f"ctx holds {article(other.__name__)}")
        self._drain()
        postponed, self._forward = self._forward or [], None
        if self._names & {*_FORWARD_ONLY, "apply"}:
            for owner, name, value in postponed:
                self._class_attribute(owner, name, value)
            self._drain()
        else:
            own = {id(getattr(value, "__func__", value)) for _, _, value in postponed}
            self._found.forward_only = own - self._seen.keys()
        self._installed.names_of_ours(self._names)
        self._installed.names_of(self._names)
        self._values.settle(self._seen.values())
        return self._found

    def _drain(self) -> None:
        while self._queue:
            value = self._queue.popleft()
            if is_of_a_package(value) and not self._may_follow():
                continue
            if isinstance(value, types.FunctionType):
                self._function(value)
            else:
                self._class(value)

    def _may_follow(self) -> bool:
        """Whether one more function or class of an installed package is to be looked through."""
        self._followed += 1
        if self._followed > FOLLOWED_MAX:
            text = f"it reaches more than {FOLLOWED_MAX} functions of installed packages"
            self._problem(text, Remedy.CODE)
        return not self._found.problems

    def _problem(self, text: str, remedy: Remedy = Remedy.TOLD) -> None:
        self._found.add(text, remedy)

    # ------------------------------------------------------------------ values

    def _visit(self, value: Any, label: str) -> None:
        """Analyse a value; ``label`` is the reader in words: "f() reads `X`"."""
        if is_constant(value):
            if reason := why_no_copy(value):
                self._problem(label + reason)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.FunctionType | type):
            if isinstance(value, type) and is_known_name(value):
                self._installed.check(value, label)
                if value in (set, frozenset):  # under a name that ``code_reads`` does not recognise
                    self._makes_a_set(f"{label}, which makes a set")
            self._queue.append(value)
        elif isinstance(value, staticmethod | classmethod):
            self._visit(value.__func__, label)
        elif isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                self._visit(part, label)
        elif isinstance(value, functools.partial):
            self._partial(value, label)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._cached(value, label)
        elif is_enum_member(value):
            self._visit(type(value), label)
        elif isinstance(value, types.ModuleType):
            self._module(value, label)
        elif not self._is_harmless_object(value, label):
            self._values.add(value, label)

    def _partial(self, value: functools.partial[Any], label: str) -> None:
        self._installed.parts_of_partial(value, label)
        for part in (value.func, value.args, *value.keywords.values()):
            self._visit(part, label)

    def _cached(self, cached: functools._lru_cache_wrapper[Any], label: str) -> None:
        """A cached result must be what a worker computes, whose cache is empty."""
        self._visit(cached.__wrapped__, label)
        inner = _Surveyor(is_promised=self._found.is_promised)
        caches = [seen for seen in self._seen.values() if type(seen) is type(cached)]
        inner._seen.update((id(seen), seen) for seen in caches)  # they may call one another
        inner._visit(cached.__wrapped__, label)
        inner._drain()
        bound = [(f"`{name}`", value) for _, name, value in inner._found.bindings]
        cells = [state for state in inner._found.states if state[0] is cell_contents]
        bound += [("a variable of its closure", value) for _, _, value, _ in cells]
        for name, value in bound:
            mutable = (*inner._found.values, *inner._found.contents)
            if is_constant(value) or any(value is one[0] for one in mutable):
                self._problem(
                    f"{cached.__wrapped__.__qualname__}() is cached and reads {name}, so its "
                    "cached results may be older than that; pass it as an argument"
                )
                return

    def _module(self, module: types.ModuleType, label: str) -> None:
        """A module used as a value: the names that are read from it are unknown."""
        if self._found.is_imported(vars(module)):
            if process_state(module.__name__, None) or is_mixed(module.__name__):
                self._problem(f"{label}, {OF_ONE_PROCESS}", remedy_in(module.__name__, None))
            self._installed.modules.append((module, label))
        else:
            self._found.whole_modules.add(id(module))
            text = f"{label}, a module, in a way that hides which of its names are used"
            self._problem(text, Remedy.VALUE)

    def _is_harmless_object(self, value: Any, label: str) -> bool:
        """Loggers, descriptors, methods, functions in C, and objects made by installed code."""
        if isinstance(value, types.BuiltinFunctionType | types.MethodType):
            owner = value.__self__
            is_free = owner is None or isinstance(owner, types.ModuleType | type)
            if not is_free and not isinstance(value, types.MethodType):
                return is_constant(owner)
            self._by_value(value.__module__)
            if isinstance(value, types.MethodType):
                self._visit(value.__func__, label)
                self._visit(owner, label)
            else:
                self._installed.check(value, label)
            return True
        if type(value).__name__ == "cython_function_or_method" and is_known_name(value):
            self._installed.check(value, label)
            return True
        return is_known_object(value)

    # ------------------------------------------------------------------ functions

    def _function(self, function: types.FunctionType) -> None:
        if self._found.is_imported_name(function):
            self._installed.check(function, f"it calls {function.__qualname__}()")
            return
        free = self._function_state(function)
        if id(function) in self._generated:
            return
        if self._found.is_imported(function.__globals__):
            return  # a decorator's inner function: only the wrapped function is the user's
        self._by_value(function.__module__)
        reads = code_reads(function.__code__)
        for access in reads.accesses:
            self._access(access, function, free)
        self._names.update(attribute for attribute, _ in reads.attributes)
        self._uses(function, reads)

    def _uses(self, function: types.FunctionType, reads: CodeReads) -> None:
        """What is done with objects that the analysis cannot follow. What is set on objects, ctx,
        and the user's functions and classes is found after the run."""
        self._found.sets_attributes |= bool(reads.stores)
        names = {access.name for access in reads.accesses}
        for _, attribute, line in reads.stores if "type" in names else ():
            text = f"{line_of(function, line)} sets .{attribute} of an object that may be shared"
            self._problem(text, Remedy.CHANGES)
        for attribute, line in reads.attributes:
            if attribute in SUSPECT_ATTRIBUTES or attribute in OF_ONE_OBJECT:
                text = f"{line_of(function, line)} uses .{attribute} of an unknown object"
                self._problem(text, remedy_of_attribute(attribute))
        for line in reads.sets:
            self._makes_a_set(f"{line_of(function, line)} makes a set")

    def _makes_a_set(self, label: str) -> None:
        if fixed_hash_seed() is None:
            order = "whose order of strings and objects differs in each process"
            self._problem(f"{label}, {order}; {FOR_ORDER}")

    def _function_state(self, function: types.FunctionType) -> dict[str, Any]:
        """Analyse the state of the function; return the variables of its closure."""
        found, code, name = self._found, function.__code__, function.__qualname__
        kwdefaults = function.__kwdefaults__ or {}
        found.note_code(function)
        if function.__builtins__ is not vars(builtins):  # type: ignore[attr-defined]
            self._problem(f"{name}() has builtins of its own")
        for value in (*(function.__defaults__ or ()), *kwdefaults.values()):
            self._visit(value, f"{name}() has a default argument")
        for attribute, value in vars(function).items():
            if attribute in IGNORED:
                continue
            found.bindings.append((vars(function), attribute, value))
            self._visit(value, f"{name}() has the attribute `{attribute}`")
        free: dict[str, Any] = {}
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            free[variable] = content = cell_contents(cell)
            if is_bookkeeping(variable, function):
                continue
            found.note(cell_contents, cell, "a variable of a closure")
            if content is MISSING:
                self._problem(f"{name}() reads `{variable}`, a closure variable without a value")
            elif not isinstance(content, types.ModuleType):
                self._visit(content, f"{name}() reads the closure variable `{variable}`")
        return free

    def _by_value(self, module_name: str | None) -> None:
        module = sys.modules.get(module_name or "")
        if module is None or self._found.is_imported(vars(module)):
            return
        if str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES)):
            text = f"it uses {module_name}, compiled code, whose state cannot be seen"
            self._problem(text, Remedy.CODE)
        else:
            self._found.user_modules[module.__name__] = module

    def _access(self, access: Access, function: types.FunctionType, free: dict[str, Any]) -> None:
        self._names.update(access.path)
        where = line_of(function, access.line)
        full_name = ".".join((access.name, *access.path))
        if is_debugger(access, function, free):
            self._found.debugger = self._found.debugger or f"{where} uses {full_name}"
        if not OF_ONE_OBJECT.isdisjoint(access.path):
            text = f"{where} uses `{full_name}`, which another process may see otherwise"
            self._problem(text, Remedy.OF_PROCESS)
        if access.action == "store":
            self._problem(f"{where} writes `{full_name}`", Remedy.CHANGES)
        elif not _OF_CACHES.isdisjoint(access.path):
            text = f"{where} uses `{full_name}`, and each process has a cache of its own"
            self._problem(text, Remedy.OF_PROCESS)
        elif access.action == "computed":
            self._problem(f"{where} calls {access.name}() with a name computed at run time")
        elif access.source == "import":
            self._import(access, where)
        elif access.source == "free":
            self._follow(free.get(access.name), access, f"{where} reads the closure variable")
        else:
            namespace = function.__globals__
            value = namespace.get(access.name, MISSING)
            self._found.bindings.append((namespace, access.name, value))
            if value is not MISSING:
                self._follow(value, access, f"{where} reads the global")
            else:
                self._installed.builtin(access.name, where)

    def _identity(self, name: str, where: str) -> None:
        self._problem(
            f"{where} compares {name} by `is`, which is another object on a worker; write `==`"
        )

    def _import(self, access: Access, where: str) -> None:
        if access.name.startswith(".") or not is_known_module(access.name):
            self._problem(
                f"{where} imports {access.name}, which a worker could find in another state; "
                "import it at the top of the module"
            )
            return
        if process_state(access.name, access.path[0] if access.path else "*"):
            remedy = remedy_in(access.name, access.path[0] if access.path else "*")
            self._problem(f"{where} uses {access.name}, {OF_ONE_PROCESS}", remedy)
        module = sys.modules.get(access.name)
        if module is not None:
            self._follow(module, access, f"{where} imports")

    def _follow(self, value: Any, access: Access, label: str) -> None:
        """Follow ``a.b.c`` through modules, classes and functions, and analyse the value there."""
        name = access.name
        for position, attribute in enumerate(access.path):
            if isinstance(value, types.ModuleType):
                if self._found.is_imported(vars(value)):
                    found = self._installed.follow(
                        value, access.path[position:], f"{label} `{name}"
                    )
                    if access.action == "identity" and is_copied(found):
                        full = ".".join((access.name, *access.path))
                        self._identity(f"`{full}`", label.rpartition(" reads")[0] or label)
                    return
                value = self._module_attribute(value, attribute, f"{label} `{name}.{attribute}`")
            else:
                self._installed.name_of(value, attribute)
                if isinstance(value, logging.Logger) and attribute not in TOLD_TO_LOGGERS:
                    text = f"{label} `{name}.{attribute}`, which belongs to one process"
                    self._problem(text, Remedy.OF_PROCESS)
                break  # functions and classes are analysed with all their attributes
            name = f"{name}.{attribute}"
            if value is MISSING:
                return
        if access.action == "member" and is_constant(value):
            return
        if access.action == "identity" and not _is_single(value):
            self._identity(f"`{name}`", label.rpartition(" reads")[0] or label)
        if not (isinstance(value, types.ModuleType) and access.action == "alias"):
            self._visit(value, f"{label} `{name}`")

    def _module_attribute(self, module: types.ModuleType, attribute: str, label: str) -> Any:
        namespace = vars(module)
        value = namespace.get(attribute, MISSING)
        self._found.bindings.append((namespace, attribute, value))
        if type(module) is not types.ModuleType or (
            value is MISSING and "__getattr__" in namespace
        ):
            text = f"{label}, which the module may compute when it is asked for"
            self._problem(text, Remedy.OF_PROCESS)
        if value is MISSING:
            return MISSING
        _, names = self._found.module_reads.setdefault(id(module), (module, {}))
        names[attribute] = value
        return value

    # ------------------------------------------------------------------ classes

    def _class(self, cls: type) -> None:
        module = sys.modules.get(cls.__module__)
        if module is not None and self._found.is_imported(vars(module)):
            self._installed.visit(cls)
            return
        self._by_value(cls.__module__)
        self._found.note_code(cls)
        if isinstance(cls, ABCMeta) and "__subclasshook__" in vars(cls):
            self._problem(f"{cls.__qualname__}.__subclasshook__() is asked once in each process")
        for base in (*cls.__bases__, type(cls)):
            self._visit(base, cls.__name__)
        attributes = vars(cls)
        if issubclass(cls, Enum):
            attributes = types.MappingProxyType(
                {k: v for k, v in attributes.items() if k not in OF_ENUM}
            )
            self._installed.members_of(cls)
        of_namedtuple = cls.__bases__ == (tuple,) and "_fields" in attributes
        for name, value in attributes.items():
            if of_namedtuple and name == "__new__":  # it has the defaults
                self._found.note_code(value.__func__)
            if name in IGNORED or (of_namedtuple and name in OF_NAMEDTUPLE):
                continue
            if "__dataclass_fields__" in attributes:
                self._generated.update(map(id, generated_in(name, value)))
            unneeded = name in _FORWARD_ONLY and cls in self._lineage
            if unneeded and self._forward is not None:
                self._forward.append((cls, name, value))
            else:
                self._class_attribute(cls, name, value)

    def _class_attribute(self, cls: type, name: str, value: Any) -> None:
        self._found.bindings.append((vars(cls), name, value))
        self._visit(value, f"{cls.__name__} has the attribute `{name}`")


def _is_single(value: Any) -> bool:
    """Whether every process has exactly one object for ``value``: code, or a constant like None."""
    if is_constant(value):
        return not is_copied(value)
    return callable(value) or isinstance(value, types.ModuleType | Enum)
