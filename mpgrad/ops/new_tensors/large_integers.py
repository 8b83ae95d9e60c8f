"""Python's integers that int64 cannot hold, as the data of a tensor."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: What NumPy makes of Python's integers that int64 cannot hold.
OF_LARGE_INTEGERS = (np.dtype(np.uint64), np.dtype(object))


def large_integers(array: Array, dtype: Any) -> Array:
    """Python's numbers, of which one is too large for int64, in a dtype that holds it.

    Raises:
        ValueError: ``dtype`` cannot, or all are integers and no dtype is asked for.
    """
    kinds = {type(value) for value in array.reshape(-1).tolist()}
    if not kinds or not kinds <= {bool, int, float, complex}:
        return array
    if dtype is None and kinds <= {bool, int}:
        raise ValueError("Overflow when unpacking long long: give a dtype that holds the number")
    wanted = np.dtype(dtype or (complex if complex in kinds else float))
    if wanted.kind == "b":
        return array.astype(bool)
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if any(not limits.min <= value.real <= limits.max for value in array.reshape(-1).tolist()):
            raise ValueError(f"a number is too large for {wanted}")
        return array.astype(wanted)
    return array.astype(complex if complex in kinds else float)
