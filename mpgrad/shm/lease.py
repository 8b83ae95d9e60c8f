"""Arrays over shared memory, and the Lease that notices when the last one dies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.errors import ProtocolError
from mpgrad.shm.segment import Segment

Array: TypeAlias = np.ndarray[Any, Any]

#: Identifies one use of a block: (offset of its payload, generation).
Token: TypeAlias = tuple[int, int]


class Lease:
    """The owner of a range of a segment for NumPy; it lives as long as any view of it.

    Attributes:
        segment: referenced, so that the mapping outlives every array over it.
        start, stop: the range, as offsets into the segment.
        token: appended to the ``released`` deque when the last view dies.
    """

    __slots__ = ("__array_interface__", "_release", "segment", "start", "stop", "token")

    def __init__(
        self,
        segment: Segment,
        start: int,
        stop: int,
        token: Token,
        released: deque[Token] | None,
        writeable: bool,
    ) -> None:
        self.segment, self.start, self.stop, self.token = segment, start, stop, token
        self._release: Callable[[Token], None] | None
        self._release = released.append if released is not None else None
        self.__array_interface__ = {
            "shape": (stop - start,),
            "typestr": "|u1",
            "data": (segment.address + start, not writeable),
            "version": 3,
        }

    def __del__(self) -> None:
        # Runs in any thread, inside the garbage collector, and during interpreter shutdown: it must
        # not lock, allocate from an arena, or look up a global. An append is atomic.
        if self._release is not None:
            self._release(self.token)


def view(
    segment: Segment,
    offset: int,
    shape: Sequence[int],
    dtype: Any,
    strides: Sequence[int] | None = None,
    *,
    writeable: bool,
    released: deque[Token] | None,
    token: Token,
    bounds: tuple[int, int] | None = None,
) -> Array:
    """An array over ``segment`` whose first element lies ``offset`` bytes from its start.

    Args:
        segment: the memory.
        offset: in bytes.
        shape: in elements.
        dtype: of the elements; Python objects cannot lie in shared memory.
        strides: in bytes, of any sign; None means C order.
        writeable: False yields an array that can never be made writable.
        released: gets ``token`` when the last view of the result dies; None: no notice.
        token: names the block for ``released`` and for ``locate``.
        bounds: the range [start, stop) that the elements must not leave; None: the segment.

    Raises:
        ProtocolError: any element would lie outside, or the dtype is refused.
    """
    dtype = _plain_dtype(dtype)
    start, stop = byte_bounds(offset, shape, dtype.itemsize, strides)
    low, high = bounds or (0, segment.nbytes)
    if start < max(low, 0) or stop > min(high, segment.nbytes):
        raise ProtocolError(
            f"an array of shape {tuple(shape)}, strides {strides} and dtype {dtype} at offset "
            f"{offset} leaves the {high - low} bytes at offset {low} of {segment.name}"
        )
    lease = Lease(segment, start, stop, token, released, writeable)
    try:
        return np.ndarray(shape, dtype, np.asarray(lease), offset - start, strides)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not an array layout: {error}") from error


def byte_bounds(
    offset: int, shape: Sequence[int], itemsize: int, strides: Sequence[int] | None
) -> tuple[int, int]:
    """The bytes [start, stop) that an array's elements cover; empty arrays cover none.

    Raises:
        ProtocolError: a dimension is negative, or there are not as many strides as dimensions.
    """
    count = math.prod(shape)
    if shape and min(shape) < 0:
        raise ProtocolError(f"negative dimension in shape {tuple(shape)}")
    if strides is None:
        return offset, offset + count * itemsize
    if len(strides) != len(shape):
        raise ProtocolError(f"strides {tuple(strides)} do not fit shape {tuple(shape)}")
    if not count:
        return offset, offset
    start = stop = offset
    for length, stride in zip(shape, strides, strict=True):
        reach = (length - 1) * stride
        if reach < 0:
            start += reach
        else:
            stop += reach
    return start, stop + itemsize


def lease_of(array: Array, segment: Segment) -> Lease | None:
    """The lease that keeps ``array``'s memory, if it lies in ``segment``; else None.

    Every view keeps its owner in ``base``, so no table of live blocks is searched.
    """
    base: Any = array.base
    while base is not None:
        if type(base) is Lease:
            return base if base.segment is segment else None
        base = getattr(base, "base", None)
    return None


def _plain_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        plain = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{dtype!r} is not a dtype") from error
    if plain.hasobject:
        raise ProtocolError(f"arrays of {plain} hold Python objects and cannot be shared")
    return plain
