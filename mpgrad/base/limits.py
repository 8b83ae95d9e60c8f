"""``finfo`` and ``iinfo``: the limits of the numbers of a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.base.dtype import DType, default_float


class finfo:
    """The limits of a floating dtype, as Python numbers.

    Args:
        type: the dtype, or the complex dtype with such parts; by default the default dtype.

    Attributes:
        bits: of a number.
        eps: the distance from 1 to the next larger number.
        max, min: the largest and the lowest number.
        tiny, smallest_normal: the smallest positive number with full precision.
        resolution: ten to the power of the number of significant digits, negated.
        dtype: the name of the dtype.

    Raises:
        TypeError: the dtype is not a floating one.
    """

    def __init__(self, type: Any = None) -> None:
        dtype = default_float() if type is None else DType(type).dtype
        if dtype.kind not in "fc":
            raise TypeError(
                f"finfo() requires a floating point input type. Use iinfo to handle '{DType(type)}'"
            )
        found = np.finfo(dtype)
        self.bits = int(found.bits)
        self.eps, self.max, self.min = float(found.eps), float(found.max), float(found.min)
        self.tiny = self.smallest_normal = float(found.smallest_normal)
        self.resolution = 10.0 ** -int(found.precision)
        self.dtype = str(found.dtype)

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        numbers = ", ".join(f"{name}={getattr(self, name):g}" for name in names)
        return f"finfo({numbers}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer dtype, as Python numbers.

    Attributes:
        bits: of a number.
        max, min: the largest and the lowest number.
        dtype: the name of the dtype.

    Raises:
        TypeError: the dtype is not an integer one.
    """

    def __init__(self, type: Any) -> None:
        dtype = DType(type).dtype
        if dtype.kind not in "iu":
            raise TypeError(
                f"iinfo() requires an integer input type. Use finfo to handle '{DType(type)}'"
            )
        found = np.iinfo(dtype)
        self.bits, self.max, self.min = int(found.bits), int(found.max), int(found.min)
        self.dtype = str(dtype)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
