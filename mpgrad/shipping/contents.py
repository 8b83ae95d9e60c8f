"""Arrays that a Function reads from its surroundings: compared before each backward, and read-only
in workers.

Nobody can forbid that an array is changed, but one can see that it was: a copy of its bytes is kept
and compared. In a worker it lies in memory that cannot be written, so that code which changes it
in place is an error there, and no change is lost in silence.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from mpgrad.shipping.own_containers import stores_elsewhere

Array: TypeAlias = np.ndarray[Any, Any]

#: Bytes of an array that may be compared before each backward.
COMPARED_MAX = 1 << 20

#: Methods of arrays that change them.
_CHANGING = frozenset(
    {"byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort"}
)


class ArrayContent(NamedTuple):
    """An array, what was in it, and how it lay in memory."""

    array: Array
    kept: bytes
    layout: tuple[Any, ...]

    @classmethod
    def of(cls, array: Array) -> ArrayContent:
        """As it is now."""
        return cls(array, array.tobytes("A"), (array.shape, array.dtype, array.strides))

    def is_current(self) -> bool:
        """Whether its bytes and its layout, which code can set, still are those."""
        if (self.array.shape, self.array.dtype, self.array.strides) != self.layout:
            return False
        flat = self.array.reshape(-1, order="A").view(np.uint8)
        return flat.nbytes == len(self.kept) and flat.data == memoryview(self.kept)


def is_comparable(value: Any) -> bool:
    """Whether the content of ``value`` can be kept and compared."""
    if type(value) is not np.ndarray or value.dtype.hasobject or value.nbytes > COMPARED_MAX:
        return False
    return bool(value.size and (value.flags.c_contiguous or value.flags.f_contiguous))


def reduce_array(array: Array) -> Any:
    """What pickle needs to make a read-only array with the same layout."""
    order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
    return _read_only, (array.tobytes(order), array.dtype, array.shape, order)


def _read_only(content: bytes, dtype: Any, shape: tuple[int, ...], order: Any) -> Array:
    return np.frombuffer(content, dtype).reshape(shape, order=order)


@functools.lru_cache(4096)
def changes_items(code: CodeType) -> bool:
    """Whether code may change an array in place that it has not made: items that are set, ``out=``,
    ``x.sort()``.

    What it overlooks (``x += 1``) is an error in a worker.
    """
    names = (instruction.argval for instruction in dis.get_instructions(code))
    if any(isinstance(name, str) and name in _CHANGING for name in names):
        return True
    if stores_elsewhere(code):
        return True
    # The names of keyword arguments stand among the constants.
    has_out = any(isinstance(value, tuple) and "out" in value for value in code.co_consts)
    inner = [value for value in code.co_consts if isinstance(value, CodeType)]
    return has_out or any(map(changes_items, inner))
