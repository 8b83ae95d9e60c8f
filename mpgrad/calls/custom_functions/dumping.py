"""dump(): the bytes of a custom Function's code; ``loading`` makes the class of them in a worker.

Code is sent by value: a worker that imported the user's module could find another version than the
one that ran forward, and of an installed package other settings. Workers import only modules whose
state is known (``process_state``) and, with ``run_on = "worker"``, all installed packages.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from typing import Any

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.calls.custom_functions.contents import is_sparse, reduce_array
from mpgrad.calls.custom_functions.findings import Survey
from mpgrad.calls.custom_functions.loading import tensor_of_client, thaw
from mpgrad.recording.tensors.refused_reads import refuse
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.code_pickles import CodePickler, by_value, of_module


def dump(cls: type[Function], held: tuple[type, ...], found: Survey) -> bytes:
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
            # A decorator's inner function (``once_differentiable``).
            reduced = super().reducer_override(function)
            return of_module(reduced, function.__globals__["__name__"])
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
