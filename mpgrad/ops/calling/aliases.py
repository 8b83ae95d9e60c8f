"""Functions that are others in other words, for programs of older versions and other libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.base.dtype import default_float
from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.elementwise.rounding import trunc
from mpgrad.ops.linear_algebra.matrices import multi_dot
from mpgrad.ops.linear_algebra.matrix_functions import vander as ascending_powers
from mpgrad.ops.new_tensors.creation import arange, as_tensor
from mpgrad.ops.shapes.shape import clone, flip
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "asarray",
    "chain_matmul",
    "fix",
    "is_conj",
    "is_neg",
    "is_nonzero",
    "is_same_size",
    "narrow_copy",
    "range",
    "vander",
]

fix = trunc


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """``obj`` as a Tensor: the array API's name of ``as_tensor``.

    Args:
        copy: True: in memory of its own; False: in the memory of ``obj``; None: in that memory
            where it can be.
        requires_grad: record operations on it, if it has no history.

    Raises:
        ValueError: ``copy`` is False, and the elements cannot stay where they are.
    """
    found = as_tensor(obj, dtype=dtype, device=device)
    stays = found is obj or (isinstance(obj, np.ndarray) and np.shares_memory(found._array, obj))
    if copy is False and not stays:
        raise ValueError(f"asarray(): can't alias {type(obj).__name__} as {found.dtype}")
    found = clone(found) if copy and stays else found
    return found.requires_grad_() if requires_grad and found.is_leaf else found


def is_conj(input: Tensor) -> bool:
    """False: ``conj`` conjugates at once."""
    return False


def is_neg(input: Tensor) -> bool:
    """False: ``neg`` negates at once."""
    return False


def is_nonzero(input: Tensor) -> bool:
    """``bool(input)`` of one element.

    Raises:
        RuntimeError: there are more or none.
    """
    return bool(input)


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether both have one shape."""
    return input.shape == other.shape


def range(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``start, start + step, ...`` up to ``end``, which is included: ``arange`` is the newer name.

    Args:
        dtype: of the elements, by default the default floating one.

    Raises:
        RuntimeError: the step is 0 or leads away from ``end``.
    """
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"upper bound and lower bound inconsistent with step sign: {start}, {end}, {step}"
        )
    count = math.floor((end - start) / step) + 1
    steps = arange(count, dtype=dtype or "float64", device=device) * step + start
    steps = steps if dtype is not None else steps.to(default_float())
    return steps.requires_grad_(requires_grad)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each element, from ``N - 1`` down to 0; ``N`` is as long as ``x``.

    Args:
        x: a vector.
        increasing: from 0 up to ``N - 1``, as ``linalg.vander``.

    Raises:
        RuntimeError: ``x`` is no vector, or ``N`` is negative.
    """
    if x.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = len(x) if N is None else N
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    # One power more than is asked for: ``linalg.vander`` makes at least two.
    powers = ascending_powers(x, max(count, 2))[:, :count]
    return powers if increasing else flip(powers, -1)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """``linalg.multi_dot(matrices)``; of one matrix itself.

    Raises:
        RuntimeError: there is none, or the shapes do not fit.
    """
    if not matrices:
        raise RuntimeError("chain_matmul(): Expected one or more matrices")
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A copy of ``narrow(input, dim, start, length)``."""
    return clone(narrow(input, dim, start, length))
