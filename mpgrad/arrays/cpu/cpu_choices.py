"""Elementwise choices: ``where``, ``maximum``, ``minimum`` on NumPy.

NumPy's own functions take four to twenty times as long as an addition if they branch per element.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import joint_shape

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

Array = np.ndarray[Any, Any]

#: The least bytes of a result that is written to memory from ``empty``; for smaller ones NumPy's
#: own allocator is faster.
LARGE_BYTES = 32 * 1024

#: Results with fewer elements are small: an element has at most 16 bytes.
SMALL = LARGE_BYTES // 16 - 1

#: Integers of the same size as a floating dtype.
_INTEGERS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}


#: NumPy's own functions without the Python code that asks other libraries' arrays first.
direct_where: Any = getattr(np.where, "_implementation", np.where)
may_share_memory: Any = getattr(np.may_share_memory, "_implementation", np.may_share_memory)


def where(xp: CpuBackend, condition: Array, a: Any, b: Any) -> Array:
    """``a`` where ``condition`` holds, else ``b``."""
    shape = condition.shape
    if (
        condition.size <= SMALL
        and getattr(a, "shape", ()) in (shape, ())
        and getattr(b, "shape", ()) in (shape, ())
    ):
        return direct_where(condition, a, b)
    dtype = np.result_type(a, b)
    shape = joint_shape(condition, a, b)
    if math.prod(shape) * dtype.itemsize < LARGE_BYTES:
        return direct_where(condition, a, b)
    out = xp.empty(shape, dtype)
    bits = _INTEGERS.get(dtype.itemsize)
    if bits is None or dtype.kind != "f":
        np.copyto(out, b)
        np.copyto(out, a, where=condition)
        return out
    # NumPy branches on each element, which for an irregular mask costs ten times as much as
    # selecting bits: -1 has all of them set, 0 none.
    mask = np.asarray(np.negative(condition.view(np.int8)), bits)
    np.bitwise_and(_bits(a, dtype, bits), mask, out=out.view(bits))
    if isinstance(b, np.ndarray) or b != 0:
        np.invert(mask, out=mask)
        out.view(bits)[...] |= _bits(b, dtype, bits) & mask
    return out


def maximum(xp: CpuBackend, a: Any, b: Any) -> Array:
    """The larger one of each pair; NaN if either is."""
    out = xp._binary_output(a, b, None)
    if out is None:
        return np.asarray(np.maximum(a, b, order="C"))
    return larger(a, b, out)


def minimum(xp: CpuBackend, a: Any, b: Any) -> Array:
    """The smaller one of each pair; NaN if either is."""
    out = xp._binary_output(a, b, None)
    if out is None:
        return np.asarray(np.minimum(a, b, order="C"))
    return smaller(a, b, out)


def larger(a: Any, b: Any, out: Array) -> Array:
    """Write the maximum of ``a`` and ``b`` to ``out``; with a number, NumPy's clip is four times
    as fast as its maximum."""
    if np.ndim(b) == 0 and out.dtype.kind == "f":
        return np.clip(a, b, np.inf, out=out)
    return np.maximum(a, b, out=out)


def smaller(a: Any, b: Any, out: Array) -> Array:
    """Write the minimum of ``a`` and ``b`` to ``out``."""
    if np.ndim(b) == 0 and out.dtype.kind == "f":
        return np.clip(a, -np.inf, b, out=out)
    return np.minimum(a, b, out=out)


def choose(condition: Array, a: Array, b: Array, out: Array) -> None:
    """Write ``a`` where ``condition`` holds, else ``b``; floating arrays of one dtype.

    It multiplies bits by 1 or 0, which is also right for NaN.
    """
    bits = _INTEGERS[out.itemsize]
    other = np.multiply(b.view(bits), np.logical_not(condition))
    choose_or_zero(condition, a, out)
    np.bitwise_or(out.view(bits), other, out=out.view(bits))


def choose_or_zero(condition: Array, a: Array, out: Array) -> None:
    """Write ``a`` where ``condition`` holds, else 0."""
    bits = _INTEGERS[out.itemsize]
    np.multiply(a.view(bits), condition, out=out.view(bits))


def _bits(value: Any, dtype: np.dtype[Any], bits: Any) -> Any:
    """``value`` as ``dtype``, its bits read as integers."""
    return np.asarray(value, dtype).view(bits)
