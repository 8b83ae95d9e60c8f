"""HarmlessObjects: what a file that nobody vouches for may make, and of which arguments.

Names of the file are looked up here, and never imported. No function gets an argument that was not
looked at.
"""

from __future__ import annotations

import enum
import importlib
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.base.device import Device
from mpgrad.base.dtype import DTYPES, DType
from mpgrad.base.size import Size
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.serialization.byte_source import Budget, ByteSource
from mpgrad.serialization.harmless_arrays import HarmlessArrays, checked_dtype
from mpgrad.serialization.harmless_keys import HarmlessKeys
from mpgrad.tensor_methods.copies import _rebuild

_BUILTINS = "set frozenset slice complex bytes bytearray"
#: The classes that a file of tensors needs, by module.
_CLASSES = {
    "mpgrad": "Tensor Device Size",
    "mpgrad.nn.parameter": "Parameter Buffer UninitializedParameter UninitializedBuffer",
    "mpgrad.base.dtype": "DType",
    "numpy": "ndarray dtype",
    "collections": "Counter OrderedDict",
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,  # in pickles of protocol 2
}


class _Function(enum.Enum):
    """Stands for a function that a file calls and never gets hold of."""

    REBUILD = enum.auto()
    RECONSTRUCT = enum.auto()
    SCALAR = enum.auto()
    FROM_BUFFER = enum.auto()
    ENCODE = enum.auto()


#: The functions that it needs. NumPy's core has had two names.
_FUNCTIONS = {
    "mpgrad.tensor_methods.copies._rebuild": _Function.REBUILD,
    "_codecs.encode": _Function.ENCODE,  # bytes in pickles of protocol 2
    **{
        f"numpy.{core}.{name}": function
        for core in ("_core", "core")
        for name, function in (
            ("multiarray._reconstruct", _Function.RECONSTRUCT),
            ("multiarray.scalar", _Function.SCALAR),
            ("numeric._frombuffer", _Function.FROM_BUFFER),
        )
    },
}
#: The memory of an item of a set or a dictionary.
_ITEM_BYTES = 100


class HarmlessObjects:
    """The objects of one file.

    Args:
        source: where the file is read.
    """

    def __init__(self, source: ByteSource) -> None:
        self._budget = Budget(source)
        self._arrays = HarmlessArrays(self._budget)
        self._keys = HarmlessKeys(self._budget)
        self._makers: dict[Any, Callable[..., Any]] = {
            _Function.REBUILD: self._tensor,
            _Function.RECONSTRUCT: self._arrays.array,
            _Function.SCALAR: self._arrays.scalar,
            _Function.FROM_BUFFER: self._arrays.array_over,
            _Function.ENCODE: self._bytes_of_text,
            np.dtype: self._arrays.dtype,
            Device: _device,
            Size: _size,
            DType: _dtype,
            OrderedDict: lambda: OrderedDict(),
            Counter: self._counter,
            set: self._set,
            frozenset: self.frozenset_of,
            slice: _slice,
            complex: _complex,
            bytes: lambda: b"",
            bytearray: self._bytearray,
        }

    # ------------------------------------------------------------------ what pickles do

    def find(self, module: Any, name: Any) -> Any:
        """What the file calls ``module.name``.

        Raises:
            pickle.UnpicklingError: it is not among what a file of tensors needs.
        """
        if type(module) is str and type(name) is str:
            if name in _CLASSES.get(module, "").split():
                known = "builtins" if module == "__builtin__" else module
                return getattr(importlib.import_module(known), name)
            function = _FUNCTIONS.get(f"{module}.{name}")
            if function is not None:
                return function
        raise pickle.UnpicklingError(
            f"Weights only load failed: the file asks for {_shown(module)}.{_shown(name)}, and "
            "loading it could run any code. If you trust the file, use "
            "mg.load(..., weights_only=False)."
        )

    def make(self, function: Any, arguments: Any) -> Any:
        """What ``function`` makes of ``arguments``."""
        if not isinstance(function, type | _Function) or function not in self._makers:
            raise pickle.UnpicklingError(f"{_shown(function)} makes nothing in a file")
        return self._makers[function](*_checked(arguments, tuple))

    def build(self, instance: Any, state: Any) -> None:
        """Give an object the state that follows it in the file."""
        if isinstance(instance, Tensor):
            attributes, _slots = state
            if attributes is not None:
                _set_attributes(instance, attributes)
        elif type(instance) in (OrderedDict, Counter):
            _set_attributes(instance, state)
        elif type(instance) is np.ndarray:
            self._arrays.finish_array(instance, state)
        elif isinstance(instance, np.dtype):
            self._arrays.finish_dtype(instance, state)
        else:
            raise pickle.UnpicklingError(f"{type(instance).__name__} has no state")

    # ------------------------------------------------------------------ containers

    def tuple_of(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """A tuple of ``items``."""
        return self._keys.nest(tuple(items), items)

    def set_items(self, container: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Put items into a dictionary."""
        if type(container) not in (dict, OrderedDict, Counter):
            raise TypeError(f"{type(container).__name__} has no keys")
        self._keys.check(container, keys)
        for key, value in zip(keys, values, strict=True):
            container[key] = value

    def add_items(self, container: Any, items: Sequence[Any]) -> None:
        """Put items into a set."""
        self._keys.check(container, items)
        _checked(container, set).update(items)

    def frozenset_of(self, items: Any) -> frozenset[Any]:
        """A frozenset of ``items``."""
        return self._keys.nest(frozenset(self._set(items)), items)

    def _set(self, items: Any) -> set[Any]:
        self._budget.spend(_ITEM_BYTES * len(_checked(items, list)))
        made: set[Any] = set()
        self.add_items(made, items)
        return made

    def _counter(self, counts: Any) -> Counter[Any]:
        self._budget.spend(_ITEM_BYTES * len(_checked(counts, dict)))
        made: Counter[Any] = Counter()
        self.set_items(made, list(counts), list(counts.values()))
        return made

    # ------------------------------------------------------------------ tensors and bytes

    def _tensor(self, kind: Any, array: Any, requires_grad: Any, device: Any = "cpu") -> Tensor:
        if not (isinstance(kind, type) and issubclass(kind, Tensor)):
            raise pickle.UnpicklingError("a tensor has no class")
        dtype = _checked(array, np.ndarray).dtype
        if dtype.kind not in "biufc" or (_checked(requires_grad, bool) and dtype.kind not in "fc"):
            raise pickle.UnpicklingError(f"a tensor of dtype {dtype} is none, or requires no grad")
        self._budget.spend(array.nbytes)
        return _rebuild(kind, array, requires_grad, _checked(device, str))

    def _bytes_of_text(self, text: Any, encoding: Any) -> bytes:
        if _checked(encoding, str) != "latin1":
            raise pickle.UnpicklingError("bytes are no latin1")
        self._budget.spend(len(_checked(text, str)))
        return text.encode("latin1")  # type: ignore[no-any-return]

    def _bytearray(self, data: Any = b"") -> bytearray:
        self._budget.spend(len(_checked(data, bytes)))
        return bytearray(data)


def _checked(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _set_attributes(instance: Any, attributes: Any) -> None:
    for name in _checked(attributes, dict):
        # NumPy reads some of them, for instance the address in ``__array_interface__``.
        if _checked(name, str).startswith("__"):
            raise pickle.UnpicklingError(f"a file may not set the attribute {_shown(name)}")
    instance.__dict__.update({sys.intern(name): value for name, value in attributes.items()})


def _device(kind: Any, index: Any) -> Device:
    try:
        return Device(_checked(kind, str), index if index is None else _checked(index, int))
    except RuntimeError as error:
        raise pickle.UnpicklingError(str(error)) from error


def _size(lengths: Any) -> Size:
    if not all(isinstance(length, int | np.integer) for length in _checked(lengths, tuple)):
        raise pickle.UnpicklingError("a Size has a length that is none")
    return Size(lengths)


def _dtype(name: Any) -> DType:
    return DTYPES[checked_dtype(name)]


def _slice(*limits: Any) -> slice:
    if not all(limit is None or isinstance(limit, int | np.integer) for limit in limits):
        raise pickle.UnpicklingError("a slice has a limit that is no integer")
    return slice(*limits)


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(_checked(real, float), _checked(imaginary, float))


def _shown(name: Any) -> str:
    """A name that can be printed, whatever it holds."""
    return ascii(name[:80])[1:-1] if isinstance(name, str) else type(name).__name__
