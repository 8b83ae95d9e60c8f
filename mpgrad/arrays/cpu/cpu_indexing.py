"""Indexing with NumPy: numbers, slices and index arrays, and its adjoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

    Array = np.ndarray[Any, Any]

#: A placeholder in a key of ``getitem`` for the next of ``indices``.
INDEX = "index"
_ALL = slice(None)


def complete_key(key: tuple[Any, ...], indices: Sequence[Array]) -> tuple[Any, ...]:
    """``key`` with ``indices`` inserted, ending in an Ellipsis so that the result is an array."""
    key = key if Ellipsis in key else (*key, Ellipsis)  # before arrays are in it (comparison)
    left = iter(indices)
    return tuple([next(left) if type(item) is str else item for item in key]) if indices else key


def getitem(xp: CpuBackend, x: Array, key: tuple[Any, ...], indices: Sequence[Array] = ()) -> Array:
    """``x[key]``: a view, or with ``indices``, which replace ``INDEX``, a C-contiguous copy."""
    if not indices:
        return x[complete_key(key, ())]
    if len(indices) == 1 and indices[0].dtype.kind == "i":
        axis = key.index(INDEX)
        others = (*key[:axis], *key[axis + 1 :])
        if all(type(item) is slice and item == _ALL for item in others):
            return np.asarray(x.take(indices[0], axis))
    return np.asarray(x[complete_key(key, indices)], order="C")


def put_index(xp: CpuBackend, x: Array, value: Any, key: tuple[Any, ...], indices: Any) -> Array:
    """A copy of ``x`` with ``value`` at ``key``."""
    out = xp.copy(x)
    xp.assign_index(out, value, key, indices)
    return out


def assign_index(xp: CpuBackend, x: Array, value: Any, key: tuple[Any, ...], indices: Any) -> None:
    """``x[key] = value``."""
    x[complete_key(key, indices)] = value


def scatter_index(
    xp: CpuBackend,
    x: Array,
    key: tuple[Any, ...],
    indices: Sequence[Array],
    shape: tuple[int, ...],
) -> Array:
    """Zeros of ``shape`` with ``x`` added at ``key``: the adjoint of ``getitem``."""
    out = xp.zeros(shape, x.dtype)
    if indices:
        # Unbuffered and in the order of the elements, so that repeated indices sum up the same
        # way each time.
        accumulate_at(np.add, out, complete_key(key, indices), x)
    else:
        out[complete_key(key, ())] = x
    return out


#: With more dimensions NumPy's ``ufunc.at`` crashes.
AT_MOST = 32


def scatter_along_axis(xp: CpuBackend, x: Array, indices: Array, axis: int, size: int) -> Array:
    """Zeros, ``size`` long along ``axis``, with ``x`` added at ``indices``.

    The adjoint of ``take_along_axis``; repeated indices add up in the order of the elements.
    """
    shape = list(x.shape)
    shape[axis] = size
    out = xp.zeros(tuple(shape), x.dtype)
    if axis == 1 and indices.ndim == 2 and indices.shape[1] == 1:  # none is repeated
        out[np.arange(len(out)), indices[:, 0]] = x[:, 0]
        return out
    if not indices.size:
        return out
    if indices.min() < 0:
        indices = np.remainder(indices, size)
    if axis % x.ndim == x.ndim - 1:
        rows = indices.reshape(-1, indices.shape[-1])
        places = rows + np.arange(0, len(rows) * size, size).reshape(-1, 1)
        np.add.at(out.reshape(-1), places.reshape(-1), x.reshape(-1))
        return out
    steps = [step // out.itemsize for step in out.strides]
    places = indices * steps[axis]
    for other, length in enumerate(x.shape):
        if other != axis:
            along = [1] * x.ndim
            along[other] = length
            places += (np.arange(length) * steps[other]).reshape(along)
    np.add.at(out.reshape(-1), places.reshape(-1), x.reshape(-1))
    return out


def accumulate_at(ufunc: np.ufunc, out: Array, places: tuple[Any, ...], x: Array) -> None:
    """``out[places] = ufunc(out[places], x)``, in the order of the elements, so that repeated
    places accumulate.

    Args:
        out: C-contiguous.
        x: of the shape of ``out[places]``.
    """
    if max(out.ndim, x.ndim) > AT_MOST:
        places = (np.arange(out.size).reshape(out.shape)[places].reshape(-1),)
        out, x = out.reshape(-1), x.reshape(-1)
    ufunc.at(out, places, x)
