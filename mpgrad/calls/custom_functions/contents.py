"""What a Function reads from its surroundings and travels by value: compared before each backward
in the calling process, and after each run in a worker.

A worker has a private copy, which code may change like the original. What has changed after a run
is thrown away with the result of that run, and the backward is repeated in the calling process. So
nobody needs to prove from code that it only reads. Arrays are compared byte by byte, everything
else by a ``fingerprint`` of the same object in the same process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds

from mpgrad.calls.custom_functions.generated_members import IGNORED
from mpgrad.calls.custom_functions.process_state import is_known_name
from mpgrad.recording.tensors.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

#: Bytes of an array that may be compared before each backward.
COMPARED_MAX = 8 << 20
#: Bytes of an array below which a copy of them is compared.
COPIED_MAX = 256 << 10
#: Those of SciPy's sparse formats that are a few arrays.
_SPARSE = frozenset({"csr", "csc", "coo", "bsr", "dia"})


class KeptContent(NamedTuple):
    """An array, or a sparse matrix of SciPy, and what was in it.

    ``label`` says in words who reads it: "f() reads the global `X`".
    """

    value: Any
    kept: Any
    label: str

    @classmethod
    def of(cls, value: Any, label: str) -> KeptContent:
        """As it is now."""
        if type(value) is np.ndarray:
            return cls(value, (value.tobytes("A"), _layout(value)), label)
        return cls(value, value.copy(), label)

    def is_current(self) -> bool:
        """Whether it still is the same: an array to its layout, which code can set; a matrix to its
        elements, which SciPy sorts in place when it needs that."""
        if type(self.value) is not np.ndarray:
            pair = self.value, self.kept
            return _same(map(_bytes_of, pair)) or _same(map(_in_order, pair))
        kept, layout = self.kept
        if _layout(self.value) != layout:
            return False
        if len(kept) >= COPIED_MAX and self.value.flags.forc and len(kept) % 8 == 0:
            # Half as long as the copy below takes.
            words = self.value.reshape(-1, order="A").view(np.uint64)
            return np.array_equal(words, np.frombuffer(kept, np.uint64))
        # Bytes are compared at once, elements of a memoryview one by one.
        return bool(self.value.tobytes("A") == kept)


def _layout(array: Array) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.strides


def _same(pair: Iterable[Any]) -> bool:
    first, second = pair
    return bool(first == second)


def what_changed(contents: Sequence[KeptContent]) -> str:
    """One of them that has changed, in words; empty if none has."""
    for content in contents:
        if not content.is_current():
            kind = "an array" if type(content.value) is np.ndarray else "a sparse matrix"
            return f"{kind} ({content.label})"
    return ""


def _bytes_of(matrix: Any) -> list[bytes]:
    """What its arrays hold."""
    found = [value if isinstance(value, tuple) else (value,) for value in vars(matrix).values()]
    return [part.tobytes() for parts in found for part in parts if isinstance(part, np.ndarray)]


def _in_order(matrix: Any) -> tuple[Any, ...]:
    """The same for two matrices with equal elements."""
    rows = matrix.tocsr(copy=True)
    rows.sum_duplicates()
    return rows.shape, rows.dtype, _bytes_of(rows)


def is_comparable(value: Any) -> bool:
    """Whether the content of ``value`` can be kept and compared."""
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return False
    return _span(value)[1] <= COMPARED_MAX


def is_sparse(value: Any) -> bool:
    """Whether ``value`` is a sparse matrix of SciPy that consists of a few arrays."""
    kind = type(value)
    if not kind.__module__.startswith("scipy.sparse.") or not is_known_name(kind):
        return False
    return getattr(value, "format", None) in _SPARSE and not value.dtype.hasobject


# ---------------------------------------------------------------------- arrays that travel


def _span(array: Array) -> tuple[int, int]:
    """Where the memory that ``array`` spans begins, and its bytes."""
    if not array.size:
        return 0, 0
    low, high = byte_bounds(array)
    return low, high - low


def reduce_array(array: Array, label: str = "") -> Any:
    """What pickle needs to make a private copy of the array, with the same strides: NumPy rounds
    otherwise where elements lie otherwise."""
    start, nbytes = _span(array)
    if array.flags.forc or not nbytes:
        data, first = array.tobytes("A"), 0
    else:
        data, first = ctypes.string_at(start, nbytes), array.ctypes.data - start
    layout = array.dtype, array.shape, first, array.strides, array.flags.writeable
    return private_copy, (data, *layout, label)


def private_copy(
    data: bytes,
    dtype: Any,
    shape: tuple[int, ...],
    first: int,
    strides: tuple[int, ...],
    writeable: bool,
    label: str,
) -> Array:
    """An array in memory of its own; ``loading`` knows ``label``."""
    copied = np.ndarray(shape, dtype, bytearray(data), first, strides)
    copied.flags.writeable = writeable
    return copied


# ---------------------------------------------------------------------- all other values


def fingerprint(values: Sequence[Any], contents: Sequence[KeptContent] = ()) -> bytes:
    """Bytes that stay the same as long as nobody changes what ``values`` reach.

    Only those of the same objects in the same process may be compared. The arrays and sparse
    matrices of ``contents``, which are compared as such, count by identity. It is empty if
    something cannot be pickled.
    """
    try:
        return Fingerprint({id(content.value) for content in contents}).of(values)
    except Exception:  # pickling runs code of the user's
        return b""


def described_in(module: str, name: str) -> str | bytes:
    """As ``described``, of what the module of this process has under that name."""
    found = sys.modules.get(module) or importlib.import_module(module)
    return described(vars(found).get(name))


def described(value: Any) -> str | bytes:
    """The same in each process: a function's own name, or bytes of a container of plain values;
    empty if it is neither."""
    if callable(value):
        return str(getattr(value, "__name__", ""))
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.fast = True  # without numbers for objects that occur twice
    try:
        pickler.dump(sorted(value) if isinstance(value, set) else value)
    except Exception:
        return b""
    return stream.getvalue()


class Fingerprint(pickle.Pickler):
    """Pickles values, with numbers in place of code.

    Attributes:
        met: functions, classes and objects that are in them, but no containers of Python.
    """

    def __init__(self, known: Collection[int] = ()) -> None:
        self._known = known
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=5)
        self.met: list[Any] = []
        self._classes: dict[type, None] = {}

    def of(self, values: Sequence[Any]) -> bytes:
        """The fingerprint."""
        self.dump(values)
        done = 0
        while done < len(self._classes):  # code may set attributes of an object's class
            cls = list(self._classes)[done]
            self.dump(_settings_of(cls))
            done += 1
        return self._stream.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        if obj is _number:
            return NotImplemented
        self.met.append(obj)
        if isinstance(obj, type):
            if not is_known_name(obj):
                self._classes.setdefault(obj)
            return _number, (id(obj),)
        if isinstance(obj, types.FunctionType):
            if is_known_name(obj):
                return _number, (id(obj),)
            state = id(obj.__code__), obj.__defaults__, obj.__kwdefaults__, vars(obj)
            return _number, (id(obj), *state)
        if id(obj) in self._known or isinstance(obj, _BY_IDENTITY) or obj is np.random.mtrand._rand:  # type: ignore[attr-defined]
            return _number, (id(obj),)
        if type(obj) is np.ndarray and not obj.flags.writeable:
            return _number, (obj.ctypes.data, obj.shape, obj.strides, obj.dtype)
        if isinstance(obj, Tensor):
            version = obj._version_counter.value
            return _number, (id(obj), id(obj._array), version, obj.requires_grad, vars(obj))
        if isinstance(obj, np.ma.MaskedArray):  # asking for its fill value sets that
            return _number, (
                obj.data.tobytes(),
                obj.mask.tobytes(),
                repr(obj.fill_value),
                vars(obj).get("_hardmask"),
            )
        if isinstance(obj, types.MappingProxyType):
            return _number, (dict(obj),)
        return NotImplemented


_BY_IDENTITY = (
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    np.ufunc,
    functools._lru_cache_wrapper,
)


def _number(*parts: Any) -> Any:
    """Stands in a fingerprint before the numbers of what cannot be compared by its pickle."""


def _settings_of(cls: type) -> list[tuple[str, Any]]:
    """The attributes of a class that are no code."""
    return [
        (name, value)
        for name, value in vars(cls).items()
        if name not in IGNORED and not hasattr(type(value), "__get__")
    ]
