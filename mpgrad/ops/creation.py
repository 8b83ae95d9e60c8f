"""Tensors made from data or from a rule: ``tensor from_numpy zeros ones full arange ...``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mpgrad import storage
from mpgrad.device import as_device
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
        ValueError: the nested sequences are ragged.
        TypeError: ``data`` holds something else than numbers.
    """
    check_device(device)
    array = _array_of(data, dtype)
    return Tensor(storage.adopt(array)).requires_grad_(requires_grad)


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``data`` as a Tensor: itself if it is one already, no copy of an array that fits."""
    check_device(device)
    if isinstance(data, Tensor):
        from mpgrad.ops.promotion import cast

        return data if dtype is None else cast(data, dtype)
    if isinstance(data, np.ndarray) and (dtype is None or data.dtype == dtype):
        return from_numpy(data)
    return tensor(data, dtype=dtype)


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
    check_device(device)
    array = storage.empty(shape_from(size), dtype or DEFAULT_FLOAT)
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
    check_device(device)
    value = fill_value.item() if isinstance(fill_value, Tensor | np.generic) else fill_value
    array = storage.empty(shape_from((size,)), dtype or _array_of(value, None).dtype)
    array.fill(value)
    return Tensor(array).requires_grad_(requires_grad)


def zeros_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of the shape and dtype of ``input``."""
    return full_like(input, 0, dtype=dtype, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of the shape and dtype of ``input``."""
    return full_like(input, 1, dtype=dtype, requires_grad=requires_grad)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """``fill_value`` everywhere, of the shape and dtype of ``input``."""
    return full(input.shape, fill_value, dtype=dtype or input.dtype, requires_grad=requires_grad)


def empty_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Uninitialised, of the shape and dtype of ``input``."""
    return empty(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


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
    check_device(device)
    if end is None:
        start, end = 0, start
    if dtype is None:
        whole = all(isinstance(value, int | np.integer) for value in (start, end, step))
        dtype = np.int64 if whole else DEFAULT_FLOAT
    values = np.arange(start, end, step)
    return Tensor(storage.adopt(values.astype(dtype))).requires_grad_(requires_grad)


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
    check_device(device)
    values = np.linspace(start, end, steps, dtype=dtype or DEFAULT_FLOAT)
    return Tensor(storage.adopt(values)).requires_grad_(requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The identity matrix of shape (n, m)."""
    check_device(device)
    return Tensor(storage.adopt(np.eye(n, m, dtype=dtype or DEFAULT_FLOAT)))


def shape_from(size: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape that was given as ``f(2, 3)`` or as ``f((2, 3))``."""
    if len(size) == 1 and not isinstance(size[0], int | np.integer):
        size = tuple(size[0])
    return tuple(int(length) for length in size)


def check_device(device: Any) -> None:
    """Raise unless arrays can be made on ``device``.

    Raises:
        RuntimeError: it is no CPU device, or no device at all.
    """
    if as_device(device).type != "cpu":
        raise RuntimeError(f"this build makes tensors on the CPU only, not on device={device!r}")


def _array_of(data: Any, dtype: Any) -> Array:
    """``data`` as an array (perhaps ``data`` itself) of ``dtype`` or of the one it stands for."""
    if isinstance(data, Tensor):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use source.detach().clone() or "
            "source.detach().clone().requires_grad_(True), rather than mg.tensor(source).",
            UserWarning,
            stacklevel=3,
        )
        data = data._array
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
