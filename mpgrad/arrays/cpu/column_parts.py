"""Large products in parts: columns of a result that are computed separately.

Any process may compute a part at any time, and BLAS may round differently for another number of
columns. So the parts depend on the shapes alone, never on the number of workers, and they are the
same if one process computes all of them. A product by columns reads its right factor once in total;
a product by rows would read and pack it for each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
#: A half-open range of parts.
Parts: TypeAlias = tuple[int, int]

#: The least number of floating-point operations of a part: about a millisecond on one core.
PART_FLOPS = 1 << 27
#: Columns are grouped in units of this size, which suits the kernels of every BLAS.
UNIT = 64
#: The maximum number of parts. (A wider sum is taken in pieces: ``scheduler.sum_places``.)
PARTS_MAX = 8


def count_parts(left: Sequence[int], columns: int) -> int:
    """The number of parts of the product of an array of shape ``left`` and a matrix."""
    parts = 2 * math.prod(left) * columns // PART_FLOPS
    return max(1, min(parts, columns // UNIT, PARTS_MAX))


def count_for(left: Any, columns: int) -> int:
    """The number of parts of the product of ``left`` and a matrix with ``columns`` columns.

    Only NumPy arrays are multiplied in parts: a GPU would not gain, and a formula on Tensors is
    recorded unchanged.
    """
    return count_parts(left.shape, columns) if type(left) is np.ndarray else 1


def columns_of(parts: Parts, count: int, columns: int) -> slice:
    """The columns of some of ``count`` parts, which differ by one unit at most."""
    units = -(-columns // UNIT)
    start, stop = (units * at // count * UNIT for at in parts)
    return slice(start, min(stop, columns))


def shape_of(shape: Sequence[int], parts: Parts, count: int) -> tuple[int, ...]:
    """The shape of some parts of a result of ``shape``."""
    columns = columns_of(parts, count, shape[-1])
    return (*shape[:-1], columns.stop - columns.start)


def compute(
    formula: Callable[[slice], Array], shape: Sequence[int], count: int, parts: Parts, xp: Any
) -> Array:
    """Some parts of a result of ``shape``, side by side.

    Each is computed separately, and copied if there are several: BLAS could round differently if
    the rows of a result were not adjacent.

    Args:
        formula: returns the requested columns.
        shape: of the whole result.
        count: the number of its parts.
        parts: the requested parts.
        xp: the array namespace.
    """
    first, stop = parts
    result = formula(columns_of((first, first + 1), count, shape[-1]))
    if stop - first == 1:
        return result
    joined: Array = xp.empty(shape_of(shape, parts, count), result.dtype)
    begin = columns_of(parts, count, shape[-1]).start
    for part in range(first, stop):
        columns = columns_of((part, part + 1), count, shape[-1])
        result = result if part == first else formula(columns)
        joined[..., columns.start - begin : columns.stop - begin] = result
    return joined


def join(pieces: Sequence[Array], parts: Sequence[Parts], count: int, out: Array) -> Array:
    """Write ``pieces``, which are these parts of ``out``, into it."""
    for piece, where in zip(pieces, parts, strict=True):
        out[..., columns_of(where, count, out.shape[-1])] = piece
    return out
