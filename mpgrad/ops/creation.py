"""Tensors made from data or from a rule: ``tensor from_numpy zeros ones full arange ...``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mpgrad import storage
from mpgrad.device import CPU
from mpgrad.device_arrays import on, on_host, usable
from mpgrad.ops.promotion import DEFAULT_FLOAT
from mpgrad.tensor import Tensor

Array = np.ndarray[Any, Any]

#: What NumPy makes of Python's numbers, and what PyTorch does.
_DOUBLE: dict[Any, Any] = {
    np.dtype(np.float64): DEFAULT_FLOAT,
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A new leaf that copies ``data``.

    Args:
        data: numbers, nested sequences of them, an array or a Tensor. Python floats become
            float32, complex numbers complex64, integers int64; an array keeps its dtype.
        dtype: of the result, instead of the one inferred.
        device: where it lies.
        requires_grad: record operations on it.

    Raises:
        RuntimeError: there is no such device.
        ValueError: the nested sequences are ragged.
        TypeError: ``data`` holds something else than numbers.
    """
    here = usable(data.device if device is None and isinstance(data, Tensor) else device)
    array = _array_of(data, dtype)
    return Tensor(storage.adopt(array, here)).requires_grad_(requires_grad)


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``data`` as a Tensor: itself if it is one already, no copy of an array that fits."""
    if isinstance(data, Tensor):
        from mpgrad.ops.device_moves import to_device
        from mpgrad.ops.promotion import cast

        data = data if device is None else to_device(data, usable(device))
        return data if dtype is None else cast(data, dtype)
    here = usable(device)
    if here is CPU and isinstance(data, np.ndarray) and (dtype is None or data.dtype == dtype):
        return from_numpy(data)
    return tensor(data, dtype=dtype, device=here)


def from_numpy(array: Array) -> Tensor:
    """A Tensor over the memory of ``array``: no copy, each sees the other's changes.

    Raises:
        TypeError: ``array`` is no NumPy array, or holds something else than numbers.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    _check_numeric(array)
    return Tensor(array)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uninitialised, of shape ``size``."""
    array = storage.empty(shape_from(size), dtype or DEFAULT_FLOAT, usable(device))
    return Tensor(array).requires_grad_(requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of shape ``size``."""
    return full(shape_from(size), 0, dtype=dtype or DEFAULT_FLOAT, device=device).requires_grad_(
        requires_grad
    )


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of shape ``size``."""
    return full(shape_from(size), 1, dtype=dtype or DEFAULT_FLOAT, device=device).requires_grad_(
        requires_grad
    )


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``fill_value`` everywhere, of shape ``size``; the dtype is inferred from the value."""
    here = usable(device)
    value = fill_value.item() if isinstance(fill_value, Tensor | np.generic) else fill_value
    array = storage.empty(shape_from((size,)), dtype or _array_of(value, None).dtype, here)
    with on(here):
        array.fill(value)
    return Tensor(array).requires_grad_(requires_grad)


def zeros_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Zeros of the shape, dtype and device of ``input``."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Ones of the shape, dtype and device of ``input``."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``fill_value`` everywhere, of the shape, dtype and device of ``input``."""
    return full(
        input.shape,
        fill_value,
        dtype=dtype or input.dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
    )


def empty_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uninitialised, of the shape, dtype and device of ``input``."""
    return empty(
        input.shape,
        dtype=dtype or input.dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
    )


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``start, start + step, ...`` below ``end``; ``arange(end)`` starts at 0."""
    here = usable(device)
    if end is None:
        start, end = 0, start
    if dtype is None:
        whole = all(isinstance(value, int | np.integer) for value in (start, end, step))
        dtype = np.int64 if whole else DEFAULT_FLOAT
    values = np.arange(start, end, step)
    return Tensor(storage.adopt(values.astype(dtype), here)).requires_grad_(requires_grad)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``steps`` evenly spaced values from ``start`` to ``end``, both included."""
    here = usable(device)
    values = np.linspace(start, end, steps, dtype=dtype or DEFAULT_FLOAT)
    return Tensor(storage.adopt(values, here)).requires_grad_(requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The identity matrix of shape (n, m)."""
    values = np.eye(n, m, dtype=dtype or DEFAULT_FLOAT)
    return Tensor(storage.adopt(values, usable(device)))


def shape_from(size: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape that was given as ``f(2, 3)`` or as ``f((2, 3))``."""
    if len(size) == 1 and not isinstance(size[0], int | np.integer):
        size = tuple(size[0])
    return tuple(int(length) for length in size)


def _array_of(data: Any, dtype: Any) -> Array:
    """``data`` as an array (perhaps ``data`` itself) of ``dtype`` or of the one it stands for."""
    if isinstance(data, Tensor):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use source.detach().clone() or "
            "source.detach().clone().requires_grad_(True), rather than mg.tensor(source).",
            UserWarning,
            stacklevel=3,
        )
        data = on_host(data._array)
    array = np.asarray(data)
    _check_numeric(array)
    if dtype is not None:
        return array.astype(dtype, copy=False)
    from_python = not isinstance(data, np.ndarray | np.generic)
    if from_python and array.dtype in _DOUBLE:
        return array.astype(_DOUBLE[array.dtype])
    return array


def _check_numeric(array: Array) -> None:
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"can't make a Tensor from data of type {array.dtype}; supported are numbers and bool"
        )
