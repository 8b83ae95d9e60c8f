"""Large products in parts: which columns of a result are computed apart from the others.

A part may be computed by any process and at any time, and BLAS may round differently for another
number of columns. So the parts depend on the shapes alone, never on how many workers there are, and
they are the same where one process computes all of them. Columns and not rows: a product reads its
right factor once then, however many parts there are; rows would read and pack it for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

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


def columns_of(part: int, parts: int, columns: int) -> slice:
    """The columns of one of ``parts`` parts, which differ by one unit at most."""
    units = -(-columns // UNIT)
    start, stop = (units * at // parts * UNIT for at in (part, part + 1))
    return slice(start, min(stop, columns))


def columns_for(left: Any, columns: int) -> list[slice]:
    """The columns of each part of the product of ``left`` and a matrix of so many columns.

    What is no NumPy array is multiplied in one piece: on a GPU nobody could help, and on Tensors a
    formula is recorded as it stands.
    """
    parts = count_parts(left.shape, columns) if type(left) is np.ndarray else 1
    return [columns_of(part, parts, columns) for part in range(parts)]


def compute(
    formula: Callable[[slice], Array], columns: Sequence[slice], shape: Sequence[int], xp: Any
) -> Array:
    """The result of ``shape`` whose ``columns`` are what ``formula`` gives for them.

    Each part is computed as if it were alone, and copied: BLAS could round differently where the
    rows of a result do not follow each other.
    """
    whole: Array | None = None
    for where in columns:
        part = formula(where)
        whole = xp.empty(shape, part.dtype) if whole is None else whole
        whole[..., where] = part
    assert whole is not None
    return whole


def part_shape(shape: Sequence[int], part: int, parts: int) -> tuple[int, ...]:
    """The shape of a part of a result of ``shape``."""
    columns = columns_of(part, parts, shape[-1])
    return (*shape[:-1], columns.stop - columns.start)


def join(parts: Sequence[Array], out: Array) -> Array:
    """Write ``parts`` beside each other into ``out``, which is returned."""
    for number, part in enumerate(parts):
        out[..., columns_of(number, len(parts), out.shape[-1])] = part
    return out
