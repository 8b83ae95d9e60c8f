"""Where a custom Function's backward may run, and how its code reaches a worker.

``decide`` analyses the class once (see ``purity``) and afterwards only compares the values that the
class reads with their current ones. ``loading`` is the worker's side. It knows neither graphs nor
processes.

Code is sent by value: a worker that imported the user's module could find another version than the
one that ran forward, and of an installed package other settings. Workers import only modules whose
state is known (``process_state``) and, with ``run_on = "worker"``, all installed packages.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import io
import os
import pickle
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.code_reads import storing_line
from mpgrad.calls.custom_functions.constants import MISSING
from mpgrad.calls.custom_functions.contents import fingerprint, is_sparse, reduce_array
from mpgrad.calls.custom_functions.findings import Survey, line_of
from mpgrad.calls.custom_functions.loading import tensor_of_client, thaw
from mpgrad.calls.custom_functions.purity import survey
from mpgrad.calls.custom_functions.remedies import Obstacle, in_one_line, in_words, may_promise
from mpgrad.recording.tensors.refused_reads import refuse
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.code_pickles import CodePickler, by_value

#: The number of classes that are remembered; a dropped class is analysed again.
CACHE_LIMIT = 1024

#: The classes that have raised on a worker what they do not raise in this process, and the words.
_kept_here: weakref.WeakKeyDictionary[type[Function], str] = weakref.WeakKeyDictionary()

#: The classes that have run and have changed nothing that is compared.
_tried: weakref.WeakSet[type[Function]] = weakref.WeakSet()

_lock = threading.RLock()
_entries: OrderedDict[tuple[type, ...], _Entry] = OrderedDict()


@dataclass(frozen=True, slots=True)
class SerializedCode:
    """A Function class as bytes; equal ``code_id`` means equal code and constants."""

    code_id: str
    blob: bytes
    #: Classes in it of which a ctx holds instances.
    held: tuple[type, ...] = ()
    #: Whether its backward could change what it reads, or its ctx.
    may_change: bool = False
    #: Ids of objects that it reads and that are equal to nothing but themselves.
    reached: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """Where backward runs: ``reason`` why not on a worker, ``code`` to send to a worker; ``line``
    is the reason in short."""

    run_on: Literal["worker", "client"]
    reason: str = ""
    code: SerializedCode | None = None
    line: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    asked: str | None
    decision: Decision
    survey: Survey


def decide(cls: type[Function], held: tuple[type, ...] = ()) -> Decision:
    """Where ``cls.backward`` runs now.

    Args:
        cls: the Function.
        held: the user's classes of values on its ctx, which are sent with it.

    A class that was analysed before costs one comparison per value that it reads. A class that
    reads values which can change unseen, but has ``run_on = "worker"``, is packed again.

    Raises:
        ValueError: ``run_on`` is not None, ``"worker"`` or ``"client"``.
        TypeError: ``run_on = "worker"``, but the class cannot be pickled.
    """
    asked = cls._checked_run_on()
    if asked == "client":
        return Decision("client", f'{cls.__qualname__} has run_on = "client"')
    if asked is None and (reason := _kept_here.get(cls)):
        return Decision("client", reason)
    entry = _entries.get((cls, *held))
    if entry is not None and entry.asked == asked and entry.survey.is_current():
        if asked is None or not entry.survey.can_change_unseen:
            return entry.decision
        found = entry.survey
    else:
        found = None
    with _lock:
        entry = _decide(cls, asked, held, found)
        _entries[cls, *held] = entry
        _entries.move_to_end((cls, *held))
        if len(_entries) > CACHE_LIMIT:
            _entries.popitem(last=False)
    return entry.decision


def keep_in_client(cls: type[Function], reason: str) -> None:
    """Let ``cls.backward`` run in the client from now on, unless it has ``run_on = "worker"``."""
    _kept_here[cls] = reason


def keep_changing(cls: type[Function], what: str) -> str:
    """As ``keep_in_client``, because its backward changes ``what``; return that in words."""
    named = re.search("`([^`]*)`", what)
    where = _changing_line(cls, named[1]) if named else ""
    thing = f"{named[0]} in {where}" if named and where else what
    reason = (
        f"{cls.__qualname__} runs in this process from now on: its backward changes {thing}. "
        'Change a copy of it, or set run_on = "client".'
    )
    keep_in_client(cls, reason)
    return reason


def note_tried(functions: Iterable[type[Function]]) -> None:
    """Their backward has run, and has changed nothing that is compared."""
    _tried.update(functions)


def is_tried(cls: type[Function]) -> bool:
    """Whether that is known of ``cls``."""
    return cls in _tried


def _changing_line(cls: type[Function], name: str) -> str:
    """Where the code of ``cls`` changes what it reads as ``name``, in words; empty if unknown."""
    for (one, *_), entry in list(_entries.items()):
        for code in entry.survey.code if one is cls else ():
            if isinstance(code, types.FunctionType) and (line := storing_line(code.__code__, name)):
                return line_of(code, line)
    return ""


def what_changed(cls: type[Function], held: tuple[type, ...] = ()) -> str:
    """The name of one thing that the class reads and that has changed since the decision; empty if
    nothing has changed."""
    entry = _entries.get((cls, *held))
    return "" if entry is None else entry.survey.what_changed()


def compared_of(
    cls: type[Function], held: tuple[type, ...]
) -> list[tuple[str, Callable[[], object]]]:
    """What is compared in each backward of the class: who reads it in words, and what compares."""
    entry = _entries.get((cls, *held))
    if entry is None:
        return []
    found = entry.survey
    contents = [(one.label, one.is_current) for one in found.contents]
    return [
        *contents,
        *((label, partial(fingerprint, [value], found.contents)) for value, label in found.values),
    ]


def names_read(cls: type[Function], held: tuple[type, ...] = ()) -> list[str]:
    """The names that the class's backward reads besides its arguments; empty before a decision."""
    entry = _entries.get((cls, *held))
    if entry is None:
        return []
    found = dict.fromkeys(
        name
        for namespace, name, value in entry.survey.bindings
        if isinstance(namespace, dict) and value is not MISSING and namespace is not vars(builtins)
    )
    found.update(dict.fromkeys(f"{module}.{name}" for module, name in entry.survey.settings))
    return list(found)


# ---------------------------------------------------------------------- deciding


def _decide(
    cls: type[Function], asked: str | None, held: tuple[type, ...], found: Survey | None
) -> _Entry:
    """Pack ``cls``; ``found`` is its survey, if that is current."""
    try:
        found = found or survey(cls, held, is_promised=asked == "worker")
    except Exception as error:  # a global may be an object that raises when it is inspected
        if asked == "worker":
            raise
        why = f"its code cannot be looked through ({type(error).__name__}: {error})"
        return _Entry(asked, _stays(cls, Obstacle(why)), Survey())
    if found.debugger and asked is None:
        why = f"in {cls.__qualname__}, {found.debugger}: it stops in this process"
        return _Entry(asked, Decision("client", why), found)
    if found.problems and asked is None:
        promises = may_promise(found.problems)
        return _Entry(asked, _stays(cls, found.problems[0], may_promise=promises), found)
    try:
        blob = _dump(cls, held, found)
    except Exception as error:  # pickling runs arbitrary user code, so anything may be raised
        why = f"its code cannot be pickled ({type(error).__name__}: {error})"
        if asked is None:
            return _Entry(asked, _stays(cls, Obstacle(why)), found)
        raise TypeError(
            f'{cls.__qualname__} has run_on = "worker", but {why}. Remove values that cannot be '
            'pickled from its globals and closures, or set run_on = "client".'
        ) from error
    if not found.is_current():  # another thread wrote between the survey and the dump
        why = "what it reads changes while it is being read"
        return _Entry(asked, _stays(cls, Obstacle(why)), found)
    name = f"{cls.__module__}.{cls.__qualname__}"
    digest = hashlib.blake2b(
        name.encode(errors="surrogatepass") + b"\0" + blob, digest_size=16
    ).hexdigest()
    may_change = bool(found.values or found.contents or found.sets_attributes)
    serialized = SerializedCode(digest, blob, held, may_change, found.reached)
    return _Entry(asked, Decision("worker", "", serialized), found)


def _stays(cls: type[Function], problem: Obstacle, *, may_promise: bool = False) -> Decision:
    name = cls.__qualname__
    words = in_words(name, problem, may_promise=may_promise)
    return Decision("client", words, line=in_one_line(name, problem))


# ---------------------------------------------------------------------- code as bytes


def _dump(cls: type[Function], held: tuple[type, ...], found: Survey) -> bytes:
    """Pickle the class, with the classes that its ctx holds if there are any. The settings of
    installed modules, and what is expected there, follow in a second pickle if there are any."""
    of_modules = found.settings, found.expected
    settings = pickle.dumps(of_modules, protocol=5) if any(of_modules) else b""
    module = sys.modules.get(cls.__module__)
    if not held and module is not None and found.is_imported(vars(module)):
        return pickle.dumps(cls, protocol=5) + settings
    buffer = io.BytesIO()
    loaded = sys.modules
    with by_value([one for name, one in found.user_modules.items() if loaded.get(name) is one]):
        pickler = _FunctionPickler(buffer, found)
        # One pickle, so that equal objects are one object there, too.
        pickler.dump(((cls, *held), [value for value, _ in found.values], found.readers()))
    return buffer.getvalue() + settings


class _FunctionPickler(CodePickler):
    """A CodePickler without the parts that backward cannot reach.

    It also switches off cloudpickle's class tracking: a worker that loads a second version of a
    class would otherwise get the first one back, changed in place.
    """

    def __init__(self, file: io.BytesIO, found: Survey) -> None:
        super().__init__(file, protocol=5)
        self._found = found

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            return self._reduce_function(obj)
        if isinstance(obj, types.ModuleType):
            return self._reduce_module(obj)
        if type(obj) is complex:  # copyreg has an entry for it, which can be replaced
            return complex, (obj.real, obj.imag)
        if type(obj) is np.ndarray and not obj.dtype.hasobject:
            return reduce_array(obj, self._found.label_of(obj))
        if isinstance(obj, Tensor) and type(obj._array) is np.ndarray:
            return tensor_of_client, (type(obj), obj._array, obj.requires_grad)
        if is_sparse(obj):
            return thaw, (pickle.dumps(obj, protocol=5), self._found.label_of(obj))
        if obj is np.random.mtrand._rand:  # type: ignore[attr-defined]
            return getattr, (np.random.mtrand, "_rand")
        if isinstance(obj, functools._lru_cache_wrapper) and not self._found.is_imported_name(obj):
            # Without this it would be sent by name.
            parameters = obj.cache_parameters()
            return _cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            # (skeleton maker, arguments, state, ...): the last argument but one is the tracker.
            *arguments, _tracker, extra = reduced[1]
            return (reduced[0], (*arguments, None, extra), *reduced[2:])
        return reduced

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if id(function) in self._found.forward_only:
            return _left_out, (function.__qualname__,)
        is_imported = self._found.is_imported(function.__globals__)
        if is_imported and not self._found.is_imported_name(function):
            return _reduce_installed_closure(function)
        reduced = super().reducer_override(function)
        if isinstance(reduced, tuple) and len(reduced) == 6:
            attributes, slots = reduced[2]
            # Annotations are for readers; they could refer to whole libraries.
            return (*reduced[:2], (attributes, {**slots, "__annotations__": {}}), *reduced[3:])
        return reduced

    def _reduce_module(self, module: types.ModuleType) -> Any:
        """A module that travels is sent with only the names that are read."""
        if self._found.is_imported(vars(module)):
            return importlib.import_module, (module.__name__,)
        if id(module) in self._found.whole_modules:
            names = {k: v for k, v in vars(module).items() if not k.startswith("__")}
        else:
            _, names = self._found.module_reads.get(id(module), (module, {}))
        return types.ModuleType, (module.__name__,), names


def _reduce_installed_closure(function: types.FunctionType) -> Any:
    """A decorator's inner function (``once_differentiable``): its globals are installed."""
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return _make_installed_closure, (
        function.__globals__["__name__"],
        function.__code__,
        function.__name__,
        function.__defaults__,
        cells,
        function.__kwdefaults__,
    )


def _make_installed_closure(
    module: str,
    code: types.CodeType,
    name: str,
    defaults: tuple[Any, ...] | None,
    cells: tuple[Any, ...],
    kwdefaults: dict[str, Any] | None,
) -> types.FunctionType:
    namespace = vars(importlib.import_module(module))
    closure = tuple(types.CellType(content) for content in cells)
    function = types.FunctionType(code, namespace, name, defaults, closure)
    function.__kwdefaults__ = kwdefaults
    return function


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


class _LeftOut:
    """Replaces, in a worker, a function that backward was found not to use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise refuse(
            f"{self._name} was called from backward on a worker, where it was not sent; set "
            'run_on = "client" on the Function'
        )


def _left_out(name: str) -> _LeftOut:
    return _LeftOut(name)


def _forget_lock_in_child() -> None:
    # A thread that does not exist in the child may hold it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock_in_child)
