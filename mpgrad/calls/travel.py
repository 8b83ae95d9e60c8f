"""How a function and its arguments travel: by value, with everything that they reach.

Functions and classes of the user's own modules are sent with their code (cloudpickle); installed
packages are imported on the other side. Every tensor becomes an input, once, at any depth. Of a
module that is not installed, only the names travel that code in the same pickle mentions.

A pickle has several sections: the value, then what the modules and the context variables in it
hold, as often as new ones appear there. Later pickles may refer to objects of the first one, by
their numbers in its memo.
"""

from __future__ import annotations

import contextvars
import functools
import io
import logging
import os
import pickle
import sys
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running import engine_slot
from mpgrad.calls import classes, context_variables
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.hidden_tensors import hidden, leaves_at_risk
from mpgrad.calls.inner_imports import imported_by
from mpgrad.calls.users_modules import (
    by_name,
    home_of,
    is_imported,
    is_users,
    place_in_package,
    users_modules,
)
from mpgrad.wire.code_pickles import CodePickler, by_value, of_module, words_in

Array: TypeAlias = np.ndarray[Any, Any]

#: By module, the globals that an engine's initializer assigns: each process has its own values.
#: In a client these are the module's, and only the names count here.
OF_PROCESS: dict[str, dict[str, Any]] = {}
_NOT_REBUILT = (
    "raised while what a call reaches was made again of its pickle: a class in it does not say how "
    "(see __reduce__ and __getstate__ of Python's pickle). copy.deepcopy of it tries the same"
)
#: The place of the values of context variables in a section.
_OF_CONTEXT = -1
#: What most objects are, and need not be found among those that were sent; so are short texts.
_ATOMS, _NAME_MAX = frozenset({type(None), bool, int, float}), 64


class Sender:
    """Makes the pickles of one space of identities: what all calls share, then call by call.

    Args:
        library: of the tensors.
        changes: names of attributes that calls may change; arrays there arrive as copies.

    Attributes:
        tensors: those of the shared pickle and of the current call; a tensor's number is its
            position.
        buffers: the Modules' buffers among them, by ``id``.
    """

    def __init__(self, library: ArrayLibrary, changes: frozenset[str] = frozenset()) -> None:
        self.library = library
        self.changes = changes
        #: Arrays that calls may change, by ``id``.
        self.changing: dict[int, Array] = {}
        self.tensors: list[Any] = []
        #: The tensors that are attributes of classes.
        self.held: list[classes.Held] = []
        self.buffers: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._stream = io.BytesIO()
        self._out_of_band: list[Array] = []
        self._pickler = _Pickler(self._stream, self)
        self._shared_count = 0

    def begin_call(self) -> None:
        """What follows belongs to another call."""
        while len(self.tensors) > self._shared_count:
            del self._numbers[id(self.tensors.pop())]

    def number_of(self, tensor: Any) -> int:
        """The number of an input.

        Raises:
            TypeError: it cannot travel.
        """
        number = self._numbers.get(id(tensor))
        if number is None:
            self.library.require_fit(tensor)
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return number

    def dump_shared(self, value: Any) -> tuple[bytes, tuple[Array, ...]]:
        """The pickle of what all later ones may refer to, and the arrays beside it.

        Raises:
            Exception: what the pickling of an object raises.
        """
        found = self._dump(value)
        self._shared_count = len(self.tensors)
        self._pickler.share_memo()
        return found

    def dump(self, value: Any) -> tuple[bytes, tuple[Array, ...]]:
        """A pickle that refers to the shared one alone.

        Raises:
            Exception: what the pickling of an object raises.
        """
        self._pickler.begin()
        return self._dump(value)

    def _dump(self, value: Any) -> tuple[bytes, tuple[Array, ...]]:
        self._stream.seek(0)
        self._stream.truncate()
        self._out_of_band.clear()
        self._pickler.dump(value)
        while section := self._pickler.to_send():
            self._pickler.dump(section)
        self._pickler.dump(None)
        for obj, leaf in self._pickler.at_risk:
            if id(leaf) not in self._numbers:
                raise hidden(obj)
        self._pickler.at_risk.clear()
        return self._stream.getvalue(), tuple(self._out_of_band)

    def keep_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Take the bytes of an array out of the pickle; True leaves them in."""
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        if self.changing and id(memoryview(buffer).obj) in self.changing:
            return True
        array = np.frombuffer(raw, np.uint8)
        array.flags.writeable = False  # what is changed in it would be lost, or change the caller's
        self._out_of_band.append(array)
        return False


class ByValue(CodePickler):
    """Adds to cloudpickle what users' programs hold and it cannot pickle, or only by name; what the
    user's modules define is sent by value."""

    library: ArrayLibrary
    #: Entered when a dump meets the first object that needs it: numbers and tensors need it not.
    _users_modules: AbstractContextManager[None] | None = None

    def dump(self, obj: Any) -> None:
        try:
            super().dump(obj)
        finally:
            entered, self._users_modules = self._users_modules, None
            if entered is not None:
                entered.__exit__(None, None, None)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is OrderedDict:  # of which Modules have many
            return OrderedDict, (), vars(obj) or None, None, iter(obj.items())
        if self._users_modules is None:
            self._users_modules = by_value(users_modules())
            self._users_modules.__enter__()
        if isinstance(obj, type):
            return classes.by_value(obj, super().reducer_override(obj))
        if isinstance(obj, types.FunctionType):
            reduced, home = super().reducer_override(obj), home_of(obj)
            return reduced if home is None else of_module(reduced, home)
        if type(obj) is types.ModuleType and (place := place_in_package(obj)) is not None:
            return getattr, place
        if isinstance(obj, types.ModuleType) and (reduced := by_name(obj)) is not None:
            return reduced
        if isinstance(obj, types.MethodType) and isinstance(obj.__self__, type):
            return getattr, (obj.__self__, obj.__name__)  # a classmethod of a class by value
        if isinstance(obj, functools._lru_cache_wrapper) and is_users(obj.__module__):
            limits = obj.cache_parameters()
            return _cached, (obj.__wrapped__, limits["maxsize"], limits["typed"])
        if isinstance(obj, contextvars.ContextVar):
            return context_variables.reduced(obj)
        if obj is os.environ or obj is os.environb:
            return getattr, (os, "environ" if obj is os.environ else "environb")
        if isinstance(obj, functools.cached_property):
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
        if isinstance(obj, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
            return type(obj), (), None, None, iter(list(obj.items()))
        if isinstance(obj, weakref.WeakSet):
            return type(obj), (list(obj),)
        if type(obj) is weakref.ref:
            return _weakly, (obj(),)
        is_in_memory = isinstance(obj, io.StringIO | io.BytesIO)
        streams = sys.stdin, sys.stdout, sys.stderr
        if isinstance(obj, io.IOBase) and not is_in_memory and obj not in streams:
            raise TypeError(f"cannot pickle an open file ({getattr(obj, 'name', 'no name')!r})")
        if isinstance(obj, logging.Logger):
            return _logger, (obj.name, obj.getEffectiveLevel())
        if "ctypes" in sys.modules and isinstance(obj, sys.modules["ctypes"].CDLL):
            raise TypeError(f"cannot pickle a loaded library ({obj._name!r})")
        if isinstance(obj, typing.NewType):
            return typing.NewType, (obj.__name__, obj.__supertype__), {"__module__": obj.__module__}
        if isinstance(obj, typing.ParamSpec):
            return typing.ParamSpec, (obj.__name__,)
        if isinstance(type(obj).__reduce__, types.FunctionType):
            name = obj.__reduce__()  # a text is the name of a global: a sentinel
            if isinstance(name, str) and is_users(type(obj).__module__):
                return _global, (type(obj).__module__, name, type(obj)), vars(obj) or None
        if callable(found := getattr(type(obj), "_reduce_by_value", None)):
            return found(obj)  # a class of ours that differs here from pickle.dumps()
        reduced = self.library.reduced(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _global(module: str, name: str, cls: type[Any]) -> Any:
    """The global of that name; where the module is not loaded, another object of its class."""
    found = getattr(sys.modules.get(module), name, None)
    return found if type(found) is cls else object.__new__(cls)


def _logger(name: str, level: int) -> logging.Logger:
    """The logger; in a worker with the level that it has in the client."""
    logger = logging.getLogger(name)
    if engine_slot.is_worker:
        logger.setLevel(level)
    return logger


def _weakly(obj: Any) -> weakref.ref[Any]:
    """A weak reference; for None a dead one."""
    return weakref.ref(obj if obj is not None else type("gone", (), {})())


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


class _Pickler(ByValue):
    def __init__(self, stream: io.BytesIO, sender: Sender) -> None:
        # The sender holds this. A cycle would keep the tensors of a map for a while.
        owner = weakref.proxy(sender)
        super().__init__(stream, protocol=5, buffer_callback=lambda one: owner.keep_buffer(one))
        self._sender, self.library = owner, sender.library
        self._names: set[str] = set()
        self._records: bool = self.library.modes()[0]
        #: Objects with tensors that their own pickling may hide.
        self.at_risk: list[tuple[Any, Any]] = []
        #: By ``id`` those that are values, by name those that a function imports when it runs.
        self._modules: dict[int | str, types.ModuleType] = {}
        #: For each module of this pickle or the shared one, the names in it that have been sent;
        #: and those of the shared pickle.
        self._sent: dict[int | str, set[str]] = {}
        self._sent_to_all: dict[int | str, set[str]] = {}
        #: The context variables that were met, and whose values have been sent.
        self._variables: list[contextvars.ContextVar[Any]] = []
        self._values_sent = 0
        #: The objects of the shared pickle by ``id``: their numbers, and themselves.
        self._shared: dict[int, tuple[int, Any]] = {}

    def share_memo(self) -> None:
        """Let later pickles refer to what has been pickled so far."""
        self._shared, self._sent_to_all = self.memo.copy(), self._sent

    def begin(self) -> None:
        """The next pickle refers to the shared one alone."""
        self.clear_memo()
        self._sent = {key: {*names} for key, names in self._sent_to_all.items()}

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _ATOMS or (kind is str and len(obj) < _NAME_MAX):
            return None
        if isinstance(obj, self.library.tensor_class):
            return self._sender.number_of(obj)
        shared = self._shared.get(id(obj))
        if shared is not None:
            return (shared[0],)
        if type(obj) is types.ModuleType and not is_imported(obj) and place_in_package(obj) is None:
            self._add(id(obj), obj)
            return [*self._modules].index(id(obj)), obj.__name__
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            self._names |= words_in(obj.__code__)
            for name, module in imported_by(obj).items():
                self._add(name, module)
            if (home := obj.__globals__.get("__name__")) in OF_PROCESS:
                return _without_globals_of_process(super().reducer_override(obj), home)
        elif isinstance(obj, type):
            self._sender.held += classes.tensors_in(obj, self.library.tensor_class)
        elif self._sender.changes:
            for name in self._sender.changes:
                if isinstance(array := _attribute(obj, name), np.ndarray):
                    self._sender.changing[id(array)] = array
        if type(obj) is contextvars.ContextVar:
            self._variables.append(obj)
        if self._records:
            leaves = leaves_at_risk(obj, self.library.tensor_class)
            self.at_risk += [(obj, leaf) for leaf in leaves]
        if isinstance(found := _attribute(obj, "_buffers"), dict):
            self._sender.buffers.update(map(id, found.values()))
        self.library.require_own(obj)
        return super().reducer_override(obj)

    def _add(self, key: int | str, module: types.ModuleType) -> None:
        self._modules.setdefault(key, module)
        self._sent.setdefault(key, set())

    def to_send(self) -> dict[int | str, Any]:
        """For each module, the values of its names that code mentions and that were not sent; the
        values of the context variables that were not sent."""
        found, here = dict[int | str, Any](), contextvars.copy_context()
        fresh_ones = self._variables[self._values_sent :]
        self._values_sent = len(self._variables)
        if in_context := [(one, here[one]) for one in fresh_ones if one in here]:
            found[_OF_CONTEXT] = in_context
        for number, (key, module) in enumerate(self._modules.items()):
            sent = self._sent.get(key, vars(module).keys())
            fresh = [name for name in vars(module) if name in self._names and name not in sent]
            if fresh:
                self._sent[key].update(fresh)
                values = {name: vars(module)[name] for name in fresh}
                if isinstance(key, str):  # a worker has its own of what cannot travel
                    values = {k: v for k, v in values.items() if travels(v, self.library)}
                found[number if isinstance(key, int) else key] = values
        return found


def _without_globals_of_process(reduced: Any, home: str) -> Any:
    """What cloudpickle makes of a function of ``home``, without what each process has."""
    if not (isinstance(reduced, tuple) and len(reduced) == 6):
        return reduced
    attributes, slots = reduced[2]
    names = OF_PROCESS[home]
    own = {name: value for name, value in slots["__globals__"].items() if name not in names}
    state = reduced[5], (attributes, {**slots, "__globals__": own}), home
    return (*reduced[:2], state, None, None, _with_globals_of_process)


def _with_globals_of_process(function: Any, state: Any) -> None:
    set_state, rest, home = state
    set_state(function, rest)
    module = sys.modules.get(home)
    for name, value in OF_PROCESS.get(home, {}).items():
        if not engine_slot.is_worker and module is not None:
            value = vars(module).get(name)
        function.__globals__[name] = value


def _attribute(obj: Any, name: str) -> Any:
    """An attribute of the object itself; no code of its class runs."""
    found = getattr(obj, "__dict__", None)
    return found.get(name) if type(found) is dict else None


def travels(value: Any, library: ArrayLibrary) -> bool:
    """Whether ``value`` can be pickled."""
    try:
        Sender(library).dump_shared(value)
    except Exception:
        return False
    return True


# ---------------------------------------------------------------------- the other side


class Receiver:
    """Reads the pickles of one Sender.

    Args:
        inputs: the tensors by number.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = inputs
        self._modules: dict[int, types.ModuleType] = {}
        #: The objects of the shared pickle by their numbers.
        self._shared: dict[int, Any] = {}
        self._context: list[tuple[contextvars.ContextVar[Any], Any]] = []
        #: See ``inner_imports.as_in_caller``.
        self.imports: dict[str, dict[str, Any]] = {}

    def set_context(self) -> None:
        """Give the context variables in what was loaded the values that they had."""
        for variable, value in self._context:
            variable.set(value)

    def load_shared(self, data: Any, buffers: Sequence[Any]) -> Any:
        """What ``dump_shared`` has packed."""
        value, self._shared = self._load(data, buffers)
        return value

    def load(self, data: Any, buffers: Sequence[Any]) -> Any:
        """What ``dump`` has packed."""
        return self._load(data, buffers)[0]

    def _load(self, data: Any, buffers: Sequence[Any]) -> tuple[Any, dict[int, Any]]:
        unpickler = ResolvingUnpickler(io.BytesIO(data), buffers=buffers)
        unpickler.resolve = self._resolve
        try:
            value = unpickler.load()
        except Exception as error:
            if not isinstance(error, ImportError):
                error.add_note(_NOT_REBUILT)
            raise
        while (section := unpickler.load()) is not None:
            self._context += section.pop(_OF_CONTEXT, ())
            for where, names in section.items():
                if isinstance(where, str):
                    self.imports.setdefault(where, {}).update(names)
                else:
                    vars(self._modules[where]).update(names)
        return value, unpickler.memo.copy()

    def _resolve(self, found: Any) -> Any:
        if isinstance(found, int):
            return self._inputs[found]
        if len(found) == 1:
            return self._shared[found[0]]
        number, name = found
        module = self._modules.get(number)
        if module is None:
            module = self._modules[number] = types.ModuleType(name)
        return module


class ResolvingUnpickler(pickle.Unpickler):
    resolve: Callable[[Any], Any]

    def persistent_load(self, found: Any) -> Any:
        return self.resolve(found)
