"""Views by description: a chain of steps from an array to a part of it.

A step is ``(name of an array function, *arguments)``; applied to an array it gives a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpgrad.backends.cpu import CpuBackend

    Array = np.ndarray[Any, Any]

#: The functions that a step may call. Steps reach workers inside programs, so no other is allowed.
STEPS = frozenset(
    {
        "broadcast_to",
        "diagonal",
        "getitem",
        "imag",
        "real",
        "reshape",
        "transpose",
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
    target[...] = value
    return out


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


#: With more dimensions NumPy's ``ufunc.at`` crashes.
AT_MOST = 32


def add_at(out: Array, places: tuple[Any, ...], x: Array) -> None:
    """``out[places] += x``, in the order of the elements, so that repeated places add up."""
    if out.ndim > AT_MOST:
        places = (np.arange(out.size).reshape(out.shape)[places].reshape(-1),)
        out, x = out.reshape(-1), x.reshape(-1)
    np.add.at(out, places, x)
