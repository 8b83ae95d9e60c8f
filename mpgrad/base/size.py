"""Size: the shape of a Tensor, a tuple of lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, SupportsIndex


class Size(tuple[int, ...]):
    """A tuple of lengths; slices, sums and repetitions of it are Sizes, too.

    Raises:
        TypeError: a length is not an integer.
    """

    __slots__ = ()
    __module__ = "mpgrad"

    def __new__(cls, lengths: Iterable[int] = ()) -> Size:
        made = tuple.__new__(cls, lengths)
        for at, length in enumerate(made):
            if not hasattr(length, "__index__"):
                raise TypeError(
                    f"Size() takes an iterable of 'int' (item {at} is '{type(length).__name__}')"
                )
        return made

    def numel(self) -> int:
        """The number of elements of a tensor with this shape."""
        return math.prod(self)

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return tuple.__new__(Size, found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Size:
        return tuple.__new__(Size, tuple.__add__(self, other))

    def __radd__(self, other: Any) -> Size:
        if not isinstance(other, tuple):
            return NotImplemented  # ``lengths += size`` extends a list
        return tuple.__new__(Size, tuple.__add__(other, self))

    def __mul__(self, times: SupportsIndex) -> Size:
        return tuple.__new__(Size, tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"mpgrad.Size({list(self)})"


#: The Size of an array's shape.
size_of: Callable[[tuple[int, ...]], Size] = partial(tuple.__new__, Size)
