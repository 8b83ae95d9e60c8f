"""Views by description: a chain of steps from an array to a part of it.

A step is ``(name of an array function, *arguments)``; applied to an array it gives a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

    Array = np.ndarray[Any, Any]

#: The functions that a step may call. Steps reach workers inside programs, so no other is allowed.
STEPS = frozenset(
    {
        "as_strided",
        "broadcast_to",
        "diagonal",
        "getitem",
        "imag",
        "real",
        "reshape",
        "transpose",
        "unfold",
        "view_as_complex",
        "view_as_real",
    }
)


def constant_beside(xp: CpuBackend, x: Array, array: Array) -> Array:
    """``array``, which lies on the CPU, on the device of ``x``."""
    return array


def take_view(xp: CpuBackend, x: Array, steps: tuple[tuple[Any, ...], ...]) -> Array:
    """The part of ``x`` at the end of ``steps``: a view if the layout of ``x`` allows it.

    Raises:
        ValueError: a step is not one of ``STEPS``.
    """
    for name, *arguments in steps:
        if name not in STEPS:
            raise ValueError(f"{name!r} is not a step of a view")
        if name == "view_as_complex" and not x.flags.c_contiguous:
            x = xp.copy(x)
        x = getattr(xp, name)(x, *arguments)
    return x


def put_view(xp: CpuBackend, x: Array, value: Any, steps: tuple[tuple[Any, ...], ...]) -> Array:
    """A C-contiguous copy of ``x`` with ``value`` written to the part at the end of ``steps``."""
    out = xp.copy(x)
    target = take_view(xp, out, steps)
    if target.size and not np.may_share_memory(target, out):
        # The tensor had another memory layout, so a reshape among the steps made a copy here.
        return _put_stepwise(xp, x, value, steps)
    if type(target) is np.ndarray and not target.flags.writeable:
        target = writable_part(out, target)
    target[...] = value
    return out


def writable_part(memory: Array, part: Array) -> Array:
    """``part`` of the C-contiguous ``memory``, whose elements do not overlap, to be written to.

    NumPy makes read-only what it has from an expanded array, or from strides alone.
    """
    place = part.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return np.ndarray(part.shape, part.dtype, memory, place, part.strides)


def _put_stepwise(
    xp: CpuBackend, x: Array, value: Any, steps: tuple[tuple[Any, ...], ...]
) -> Array:
    """As :func:`put_view`, with a copy at every step."""
    out = xp.copy(x)
    if not steps:
        out[...] = value
        return out
    part = _put_stepwise(xp, take_view(xp, out, steps[:1]), value, steps[1:])
    if steps[0][0] == "reshape":
        return part.reshape(x.shape)
    take_view(xp, out, steps[:1])[...] = part
    return out


def diagonal(xp: CpuBackend, x: Array, offset: int, axis1: int, axis2: int) -> Array:
    """The elements with equal indices in two axes, as a last axis: a view."""
    result = np.diagonal(x, offset, axis1, axis2)
    # NumPy's is read-only for historical reasons, although no element is repeated.
    result.flags.writeable = x.flags.writeable
    return result


def diagonal_scatter(
    xp: CpuBackend, x: Array, shape: tuple[int, ...], offset: int, axis1: int, axis2: int
) -> Array:
    """Zeros of ``shape`` with ``x`` on a diagonal: the adjoint of :func:`diagonal`."""
    out = xp.zeros(shape, x.dtype)
    xp.diagonal(out, offset, axis1, axis2)[...] = x
    return out


def unfold(xp: CpuBackend, x: Array, axis: int, size: int, step: int) -> Array:
    """The windows along an axis, as a last axis: a view, read-only where windows overlap."""
    own = x.strides[axis]
    count = (x.shape[axis] - size) // step + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    return _strided(x, shape, (*x.strides[:axis], own * step, *x.strides[axis + 1 :], own))


def as_strided(
    xp: CpuBackend, x: Array, shape: tuple[int, ...], steps: tuple[int, ...], offset: int
) -> Array:
    """The elements of a C-contiguous array from ``offset`` on, ``steps`` apart: a view, read-only
    where an element is in it twice."""
    strides = tuple(step * x.itemsize for step in steps)
    return _strided(x.reshape(-1)[offset:], shape, strides)


def strided_places(shape: tuple[int, ...], steps: tuple[int, ...], offset: int) -> Array:
    """The places of the elements of :func:`as_strided` among those of the flattened array."""
    places = np.full((), offset)
    for length, step in zip(shape, steps, strict=True):
        places = np.add.outer(places, np.arange(length) * step)
    return np.asarray(places)


def _strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    out = np.lib.stride_tricks.as_strided(x, shape, strides)
    if may_overlap(out):
        out.flags.writeable = False
    return out


def may_overlap(x: Array) -> bool:
    """Whether two elements may lie in the same memory, as far as the strides tell."""
    reach = x.itemsize
    for stride, length in sorted(zip(map(abs, x.strides), x.shape, strict=True)):
        if length > 1:
            if stride < reach:
                return True
            reach += stride * (length - 1)
    return False
