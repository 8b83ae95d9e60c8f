"""Large products in parts: which columns of a result are computed apart from the others.

A part may be computed by any process and at any time, and BLAS may round differently for another
number of columns. So the parts depend on the shapes alone, never on how many workers there are, and
they are the same where one process computes all of them. Columns and not rows: a product reads its
right factor once then, however many parts there are; rows would read and pack it for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
#: Some neighbouring parts: from the first number to before the second.
Parts: TypeAlias = tuple[int, int]

#: Floating-point operations of a part at least: about a millisecond on one core.
PART_FLOPS = 1 << 27
#: Columns come in units of so many, which suits the kernels of every BLAS.
UNIT = 64
#: Parts at most. (A sum of more contributions would be taken in pieces: ``scheduler.wide_sums``.)
PARTS_MAX = 8


def count_parts(left: Sequence[int], columns: int) -> int:
    """In how many parts the product of an array of shape ``left`` and a matrix is computed."""
    parts = 2 * math.prod(left) * columns // PART_FLOPS
    return max(1, min(parts, columns // UNIT, PARTS_MAX))


def count_for(left: Any, columns: int) -> int:
    """In how many parts the product of ``left`` and a matrix of so many columns is computed.

    What is no NumPy array is multiplied in one piece: on a GPU nobody could help, and on Tensors a
    formula is recorded as it stands.
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

    Each is computed as if it were alone, and copied where there are several: BLAS could round
    differently where the rows of a result do not follow each other.

    Args:
        formula: gives the columns that it is asked for.
        shape: of the whole result.
        count: how many parts that has.
        parts: which of them are wanted.
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
    """Write ``pieces``, which are these parts of ``out``, beside each other into it."""
    for piece, where in zip(pieces, parts, strict=True):
        out[..., columns_of(where, count, out.shape[-1])] = piece
    return out
