"""Values that can never change, and whether two of them are equal to the last bit."""

from __future__ import annotations

import datetime
import decimal
import fractions
import re
import struct
import sys
import types
from collections.abc import Collection
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np

from mpgrad.base.device import CPU
from mpgrad.base.dtype import DType
from mpgrad.base.hash_seed import fixed_hash_seed
from mpgrad.base.size import Size

#: The value of a name that is not bound.
MISSING: Any = object()

_IMMUTABLE_TYPES = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        type(...),
        type(NotImplemented),
        decimal.Decimal,
        fractions.Fraction,
        re.Pattern,
        datetime.date,
        datetime.timedelta,
        DType,
        Size,
    }
)
#: The remedy for code that depends on the order of a set.
FOR_ORDER = "write sorted(set(...)), or start Python with PYTHONHASHSEED"
#: Each process has exactly one object for a constant of these types.
_SINGLE = frozenset({type(None), bool, type(...), type(NotImplemented), DType, type(CPU)})
#: Equal values of these types are interchangeable; a float needs its bits compared.
_EQUAL_IS_SAME = frozenset({bool, int, str, bytes, range, DType, Size})


#: What ``are_plain`` takes at once. Of these types only floats can be a NaN.
_FLOATS = frozenset({float, np.float32, np.float64})
_PLAIN = _FLOATS | {bool, int, str, bytes, type(None), tuple, np.bool_, np.int32, np.int64}


def are_plain(values: Collection[Any]) -> bool:
    """Whether all are numbers but NaN, texts, and tuples of such; it may miss some that are.

    Of many values this takes a tenth of the time of asking for each.
    """
    while values:
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        if kinds & _FLOATS and [1 for one in values if type(one) in _FLOATS and one != one]:
            return False
        if tuple not in kinds:
            break
        # Each tuple once: one may be in many places.
        tuples = {id(one): one for one in values if type(one) is tuple}
        values = list(chain.from_iterable(tuples.values()))
    return True


def is_constant(value: Any) -> bool:
    """True if ``value`` and everything in it is immutable, and nothing in it is user code."""
    kind = type(value)
    if kind in _IMMUTABLE_TYPES:
        return True
    if kind is tuple or kind is frozenset:
        return all(is_constant(item) for item in value)
    if isinstance(value, np.generic):
        return kind.__module__ == "numpy" and value.dtype.kind not in "OV"
    if value is CPU:
        return True
    return isinstance(value, np.dtype) and not value.hasobject


def is_copied(value: Any) -> bool:
    """Whether a worker gets a copy of ``value``, a constant, which ``is`` distinguishes from other
    equal objects there."""
    is_single = type(value) in _SINGLE or isinstance(value, np.dtype)
    return not is_single and is_constant(value)


def why_no_copy(value: Any) -> str:
    """Why a copy of a constant in another process may be something else; empty: it is not."""
    if _has_own_order(value):
        return f", whose order differs in each process; {FOR_ORDER}"
    if has_nan(value):
        return ", a NaN, which containers take for equal to itself, but not to its copy in a worker"
    return ""


def _has_own_order(value: Any) -> bool:
    """Whether a constant contains a set, which may have another order in another process."""
    if type(value) is tuple:
        return any(map(_has_own_order, value))
    if type(value) is not frozenset:
        return False
    has_only_numbers = all(isinstance(item, int | float | complex) for item in value)
    if fixed_hash_seed() is None and not has_only_numbers and len(value) > 1:
        return True
    return list(value) != list(frozenset(list(value))) or any(map(_has_own_order, value))


def has_nan(value: Any) -> bool:
    """Whether a constant contains a NaN: ``in``, and ``==`` of lists and tuples, take an object for
    equal to itself, and a worker has a copy."""
    if isinstance(value, tuple | frozenset):
        return any(map(has_nan, value))
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, float | complex | np.generic) and bool(value != value)


def same(first: Any, second: Any) -> bool:
    """Whether a function could not distinguish ``first`` from ``second``.

    Immutable values compare by type and bits (nan equals itself, 0.0 is not -0.0); all others by
    identity. It may return False for equal values, never True for different ones.
    """
    if first is second:
        return True
    kind = type(first)
    if kind is not type(second):
        return False
    if kind in _EQUAL_IS_SAME:
        return bool(first == second)
    if kind is float:
        return struct.pack("d", first) == struct.pack("d", second)
    if kind is complex:
        return same(first.real, second.real) and same(first.imag, second.imag)
    if kind is tuple:
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.generic):
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    return False


def is_importable(value: Any) -> bool:
    """True if another process finds this very object under its module and name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if module is None or not isinstance(name, str):
        return False
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found is value


def is_enum_member(value: Any) -> bool:
    """True for a member of an Enum with a constant value and nothing else."""
    if not isinstance(value, Enum) or not is_constant(value._value_):
        return False
    return all(name.startswith("_") for name in vars(value))


def references(container: Any, key: Any) -> int:
    """The reference count of ``container[key]``."""
    value = container[key]
    return sys.getrefcount(value)


#: That of a value that only its container holds (it differs between interpreters).
PRIVATE = references([[]], 0)
