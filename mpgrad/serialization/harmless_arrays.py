"""HarmlessArrays: the dtypes and arrays of a file that nobody vouches for.

A dtype comes from its name, and has no other flags, fields and sizes than that gives it; an array
has exactly the bytes that its shape asks for.
"""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import numpy as np

from mpgrad.serialization.byte_source import Budget

Array = np.ndarray[Any, Any]

#: NumPy's names of the dtypes that a file may have: numbers, and texts of a fixed length.
_NAMES = re.compile(r"b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU][1-9][0-9]{0,8}")
#: A code point of an array of texts is less.
_CODE_POINTS = 0x110000
#: The dimensions of an array; NumPy 1 has fewer.
_NDIM_MAX = 64


class HarmlessArrays:
    """The dtypes and arrays of one file.

    Args:
        budget: what the file may ask for.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: By id, the dtypes and arrays that may still be given a state, once.
        self._unfinished: dict[int, Any] = {}

    # ------------------------------------------------------------------ dtypes

    def dtype(self, name: Any, align: Any = False, copy: Any = True) -> Any:
        """``numpy.dtype(name)``, whose order of bytes may follow."""
        made = np.dtype(_checked_name(name), copy=True)
        self._budget.check(made.itemsize)
        self._unfinished[id(made)] = made
        return made

    def finish_dtype(self, dtype: Any, state: Any) -> None:
        """Give a dtype its order of bytes; all else is as in any dtype of that name.

        Raises:
            pickle.UnpicklingError: the state has other fields, sizes or flags.
        """
        self._begin_to_finish(dtype)
        for order in "<>":
            own = dtype.newbyteorder(order).__reduce__()[2]
            if _is_equal(state, own):
                dtype.__setstate__(own)
                return
        raise pickle.UnpicklingError(f"a dtype {dtype.str!r} has other fields, sizes or flags")

    def _begin_to_finish(self, made: Any) -> None:
        if self._unfinished.pop(id(made), None) is None:
            raise pickle.UnpicklingError("an array or dtype has two states")

    # ------------------------------------------------------------------ arrays

    def array(self, kind: Any, shape: Any, name: Any) -> Array:
        """``numpy._core.multiarray._reconstruct``: an array whose elements follow."""
        if kind is not np.ndarray:
            raise pickle.UnpicklingError("an array is of another class than numpy.ndarray")
        made = np.empty(0, np.uint8)
        self._unfinished[id(made)] = made
        return made

    def finish_array(self, array: Array, state: Any) -> None:
        """Give an array of ``array()`` its dtype, shape and elements."""
        self._begin_to_finish(array)
        version, shape, dtype, is_fortran, data = state
        if type(version) is not int or version != 1 or type(data) is not bytes:
            raise pickle.UnpicklingError("an array has no bytes")
        own: Any = (1, shape, self._checked(data, dtype, shape), is_fortran is True, data)
        array.__setstate__(own)

    def array_over(
        self, data: Any, dtype: Any, shape: Any, order: Any, axis_order: Any = None
    ) -> Array:
        """``numpy._core.numeric._frombuffer``: an array in the memory of ``data``."""
        flat: Array = np.frombuffer(data, self._checked(data, dtype, shape))
        if axis_order is None:
            return flat.reshape(shape, order="F" if order == "F" else "C")
        _check_lengths(axis_order)
        return flat.reshape(shape).transpose(axis_order)

    def scalar(self, dtype: Any, data: Any) -> Any:
        """``numpy._core.multiarray.scalar``."""
        return np.frombuffer(data, self._checked(data, dtype, ()))[0]

    def _checked(self, data: Any, dtype: Any, shape: Any) -> np.dtype[Any]:
        """``dtype``, if ``data`` are the elements of an array of that dtype and shape.

        It is an object that the file has no reference to, and cannot change later.
        """
        if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
            raise pickle.UnpicklingError("an array has no dtype or no bytes")
        _check_lengths(shape)
        checked = np.dtype(dtype.str)
        expected = math.prod(shape) * checked.itemsize
        if len(data) != expected:
            raise pickle.UnpicklingError(
                f"an array of shape {shape} and dtype {checked} has {expected:,} bytes, and the "
                f"file has {len(data):,} for it"
            )
        self._budget.spend(len(data))
        _check_elements(data, checked)
        return checked


def checked_dtype(name: Any) -> np.dtype[Any]:
    """The dtype of numbers with a name as of ``numpy.dtype.str``."""
    if type(name) is not str or name[:1] not in ("<", ">", "|"):
        raise pickle.UnpicklingError("a dtype has no name")
    return np.dtype(name[:1] + _checked_name(name[1:]))


def _is_equal(state: Any, own: tuple[Any, ...]) -> bool:
    """Whether both are equal, without a comparison that arrays have their own rules for."""
    return type(state) is tuple and [*map(type, state)] == [*map(type, own)] and state == own


def _checked_name(name: Any) -> str:
    if type(name) is str and _NAMES.fullmatch(name):
        return name
    raise pickle.UnpicklingError(
        f"Weights only load failed: the file has a dtype {ascii(name)[:40]}, and only numbers and "
        "texts of a fixed length are read from it. If you trust the file, use "
        "mg.load(..., weights_only=False)."
    )


def _check_lengths(lengths: Any) -> None:
    """See that a shape is one, before it is multiplied."""
    if type(lengths) is not tuple or len(lengths) > _NDIM_MAX:
        raise pickle.UnpicklingError("an array has no shape")
    if not all(type(length) is int and 0 <= length < 2**63 for length in lengths):
        raise pickle.UnpicklingError("an array has a length that is none")


def _check_elements(data: Any, dtype: np.dtype[Any]) -> None:
    """See that there are no elements that NumPy never makes, and takes for granted not to meet."""
    if dtype.kind == "b":
        is_right = not data or np.frombuffer(data, np.uint8).max() <= 1
    elif dtype.kind == "U":
        is_right = not data or np.frombuffer(data, f"{dtype.byteorder}u4").max() < _CODE_POINTS
    else:
        is_right = True
    if not is_right:
        raise pickle.UnpicklingError(f"an array of dtype {dtype} has elements that are none")
