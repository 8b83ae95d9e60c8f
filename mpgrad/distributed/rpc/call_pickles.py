"""What travels with a call: one pickle, and the bytes of arrays beside it.

A function or class that the receiver can import goes by its name, any other by value. So does what
belongs to ``__main__``, unless the receiver runs the same file.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from mpgrad.distributed.carrier.messages import cut
from mpgrad.wire.code_pickles import dumps

#: Gives the reconstruction of an object that is the rpc's own; None for all others.
Reduce = Callable[[Any], "tuple[Any, ...] | None"]


class _CallPickler(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], same_main: bool, reduce: Reduce
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._same_main, self._reduce = same_main, reduce

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type):
            if _is_found(obj, self._same_main):
                return NotImplemented
            return pickle.loads, (dumps(obj),)
        own = self._reduce(obj)
        return NotImplemented if own is None else own


def _is_found(obj: Any, same_main: bool) -> bool:
    """Whether the receiver finds ``obj`` by its name."""
    if obj.__module__ == "__main__" and not same_main:
        return False
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def packed(value: Any, what: str, *, same_main: bool, reduce: Reduce) -> list[Any]:
    """The frames of ``value``; what it is made of may change from then on.

    Args:
        value: anything that can be pickled.
        what: it is, for the error.
        same_main: the receiver runs the same ``__main__``.
        reduce: see Reduce.

    Raises:
        TypeError: it cannot be pickled.
    """
    file, buffers = io.BytesIO(), []  # type: ignore[var-annotated]
    try:
        _CallPickler(file, buffers, same_main, reduce).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(f"{what} cannot travel to another host: {error}") from error
    arrays = [buffer.raw() for buffer in buffers]
    sizes = [array.nbytes for array in arrays]
    data = file.getvalue()
    head = pickle.dumps((len(data), sizes))
    frames = [head, *cut(memoryview(data))]
    for array in arrays:
        frames += cut(np.array(array).data)
    return frames


def unpacked(frames: Sequence[memoryview]) -> Any:
    """What :func:`packed` has packed.

    Raises:
        ValueError: bytes are missing.
        Exception: whatever the user's classes raise when they are rebuilt.
    """
    length, sizes = pickle.loads(frames[0])
    rest = list(frames[1:])
    data, *buffers = [_taken(rest, size) for size in (length, *sizes)]
    return pickle.loads(data, buffers=buffers)


def _taken(frames: list[memoryview], size: int) -> Any:
    """The next ``size`` bytes: a view of the one frame that holds them, or a copy of several."""
    parts, found = [], 0
    while found < size:
        if not frames:
            raise ValueError(f"{size:,} bytes were announced, and {found:,} came")
        parts.append(frames.pop(0))
        found += len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)
