"""Tensors made from data or from a rule: ``tensor from_numpy zeros ones full arange ...``."""

from __future__ import annotations

import math
import operator as python_operator
import warnings
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on, on_host, usable
from mpgrad.base.device import CPU
from mpgrad.base.dtype import COMPLEX, DEFAULTS, FLOATING, default_float
from mpgrad.base.memory_formats import MemoryFormat, preserve_format
from mpgrad.ops.calling.promotion import cast, require_numbers, stored
from mpgrad.ops.new_tensors.device_moves import to_device
from mpgrad.ops.new_tensors.large_integers import OF_LARGE_INTEGERS, large_integers
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]

_PLAIN = frozenset({bool, int, float, complex})
#: NumPy's dtypes of Python's numbers, and PyTorch's defaults for them.
_DOUBLE = {
    np.dtype(np.float64): FLOATING,
    np.dtype(np.complex128): COMPLEX,
}


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A new leaf that copies ``data``.

    Args:
        data: numbers, nested sequences of them, an array or a Tensor. Python floats become
            float32, complex numbers complex64, integers int64; arrays and NumPy's scalars keep
            their dtype, and decide that of the numbers beside them.
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


def empty(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uninitialised, of that shape."""
    array = storage.empty(shape_from(shape, size), dtype or default_float(), usable(device))
    return Tensor(array).requires_grad_(requires_grad)


def zeros(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Zeros of that shape."""
    return full(
        shape_from(shape, size), 0, dtype=dtype or default_float(), device=device
    ).requires_grad_(requires_grad)


def ones(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones of that shape."""
    return full(
        shape_from(shape, size), 1, dtype=dtype or default_float(), device=device
    ).requires_grad_(requires_grad)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``fill_value`` everywhere, of shape ``size``; the dtype is inferred from the value.

    Raises:
        RuntimeError: ``dtype`` cannot hold the value.
    """
    here = usable(device)
    value = fill_value.item() if isinstance(fill_value, Tensor | np.generic) else fill_value
    array = storage.empty(shape_from((size,)), dtype or _array_of(value, None).dtype, here)
    with on(here):
        array.fill(stored(value, array.dtype))
    return Tensor(array).requires_grad_(requires_grad)


def zeros_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Zeros of the shape, dtype and device of ``input``."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
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
    memory_format: MemoryFormat = preserve_format,
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
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Uninitialised, of the shape, dtype and device of ``input``."""
    return empty(
        input.shape,
        dtype=dtype or input.dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
    )


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``start, start + step, ...`` below ``end``; ``arange(end)`` starts at 0.

    For an integer ``dtype`` all three are cut off to integers first.

    Raises:
        RuntimeError: the step is 0 or leads away from ``end``, or an end is not finite.
        ValueError: the step is less than 1 and ``dtype`` an integer.
        NotImplementedError: ``dtype`` is no integer or floating one.
    """
    here = usable(device)
    if end is None:
        start, end = 0, start
    require_numbers("arange", start=start, end=end, step=step)
    start, end, step = (_number(value) for value in (start, end, step))
    if not all(math.isfinite(value) for value in (start, end)):
        raise RuntimeError(f"arange(): unsupported range: {start} -> {end}")
    if step == 0 or step != step:
        raise RuntimeError("arange(): step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"arange(): upper bound and lower bound inconsistent with step sign: {start}, {end}, "
            f"{step}"
        )
    if (end - start) / step > np.iinfo(np.int64).max:
        raise RuntimeError("arange(): invalid size, possible overflow?")
    if dtype is None:
        whole = all(isinstance(value, int) for value in (start, end, step))
        dtype = np.int64 if whole else default_float()
    dtype = np.dtype(dtype)
    if dtype.kind not in "iuf":
        raise NotImplementedError(f"arange() is not implemented for {dtype}")
    if dtype == np.int64:
        end = int(end)
    if dtype.kind in "iu":
        if int(step) == 0:
            raise ValueError("arange(): step must be nonzero, also without its fraction")
        count = math.ceil((end - (int(start) if dtype == np.int64 else start)) / step)
        values = int(start) + np.arange(max(count, 0)) * int(step)
    else:
        values = np.arange(start, end, step)
    return Tensor(storage.adopt(values.astype(dtype), here)).requires_grad_(requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``steps`` evenly spaced values from ``start`` to ``end``, both included.

    Raises:
        RuntimeError: ``steps`` is negative, or a limit is a tensor with dimensions.
        NotImplementedError: ``dtype`` is bool.
    """
    here = usable(device)
    for name, limit in (("start", start), ("end", end)):
        if isinstance(limit, Tensor) and limit.ndim:
            raise RuntimeError(
                "linspace only supports 0-dimensional start and end tensors, but got "
                f"{name} with {limit.ndim} dimension(s)."
            )
    require_numbers("linspace", start=start, end=end)
    start, end, steps = _number(start), _number(end), python_operator.index(steps)
    if steps < 0:
        raise RuntimeError(f"linspace(): number of steps must be non-negative, not {steps}")
    if dtype is None:
        is_complex = isinstance(start, complex) or isinstance(end, complex)
        dtype = DEFAULTS[COMPLEX if is_complex else FLOATING]
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        raise NotImplementedError("linspace() is not implemented for bool")
    if dtype.kind in "iu":
        start, end = int(start), int(end)
    values = np.linspace(start, end, steps) if steps != 1 else np.asarray([start])
    if dtype.kind in "iu" and steps > 1:
        # From both ends, so that rounding cuts no whole number off.
        half = steps // 2
        values[half:] = end - np.arange(steps - half)[::-1] * ((end - start) / max(steps - 1, 1))
    elif steps > 1:
        values = values + (end - start) * 0  # an infinite step leads nowhere
    return Tensor(storage.adopt(values.astype(dtype), here)).requires_grad_(requires_grad)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    """``base`` to the powers of ``linspace(start, end, steps)``; ``options``: those of it.

    Raises:
        RuntimeError: ``steps`` is negative, or a limit is a tensor with dimensions.
    """
    require_numbers("logspace", base=base)
    dtype = options.pop("dtype", None)
    exponents = on_host(linspace(start, end, steps, dtype=_precise(start, end))._array)
    if dtype is None:
        dtype = DEFAULTS[COMPLEX if exponents.dtype.kind == "c" else FLOATING]
    return tensor(np.power(float(base), exponents).astype(dtype), **options)


def _precise(*limits: Any) -> type:
    """The dtype of exponents between these."""
    is_complex = any(
        limit.dtype.kind == "c" if isinstance(limit, Tensor) else isinstance(limit, complex)
        for limit in limits
    )
    return np.complex128 if is_complex else np.float64


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None
) -> Tensor:
    """Where the elements of a (row, col) matrix on and below a diagonal are: (2, their number)."""
    return tensor(np.stack(np.tril_indices(row, offset, col)), dtype=dtype, device=device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None
) -> Tensor:
    """Where the elements of a (row, col) matrix on and above a diagonal are: (2, their number)."""
    return tensor(np.stack(np.triu_indices(row, offset, col)), dtype=dtype, device=device)


def is_tensor(obj: Any) -> bool:
    """Whether ``obj`` is a Tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """How many elements ``input`` has."""
    return int(input._array.size)


def _number(value: Any) -> Any:
    """``value``, or the Python number that a tensor or a NumPy scalar holds."""
    if isinstance(value, Tensor):
        return on_host(value._array).item()
    return value.item() if isinstance(value, np.generic) else value


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The identity matrix of shape (n, m).

    Raises:
        RuntimeError: a length is negative.
    """
    for name, length in (("n", n), ("m", n if m is None else m)):
        if length < 0:
            raise RuntimeError(f"eye(): {name} must be greater or equal to 0, got {length}")
    values = np.eye(n, m, dtype=dtype or default_float())
    return Tensor(storage.adopt(values, usable(device))).requires_grad_(requires_grad)


def shape_from(size: tuple[Any, ...], named: Any = None) -> tuple[int, ...]:
    """The shape that was given as ``f(2, 3)``, as ``f((2, 3))`` or as ``f(size=(2, 3))``.

    Raises:
        TypeError: a length is no integer, or the shape is given twice.
        RuntimeError: a length is negative.
    """
    if named is not None:
        if size:
            raise TypeError(f"got the shape twice: {size} and size={named}")
        size = (named,)
    if len(size) == 1 and isinstance(size[0], tuple | list):
        size = tuple(size[0])
    try:
        shape = tuple([python_operator.index(length) for length in size])
    except TypeError:
        raise TypeError(f"a size must be a tuple of ints, not {size}") from None
    if any(length < 0 for length in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(shape)}")
    return shape


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
    dtypes: set[np.dtype[Any]] = set()
    array = np.asarray(_numbers_of(data, dtypes))
    if array.dtype in OF_LARGE_INTEGERS and array.dtype not in dtypes:
        array = large_integers(array, dtype)
    _check_numeric(array)
    if dtype is not None:
        return array.astype(dtype, copy=False)
    from_python = not isinstance(data, np.ndarray | np.generic)
    if from_python and array.dtype in _DOUBLE and dtypes.isdisjoint(_DOUBLE):
        return array.astype(DEFAULTS[_DOUBLE[array.dtype]], copy=False)
    return array


def _numbers_of(data: Any, dtypes: set[np.dtype[Any]]) -> Any:
    """Nested sequences with a number in place of each Tensor of one element.

    ``dtypes`` gets those of the arrays, NumPy scalars and Tensors in them.
    """
    if isinstance(data, list | tuple):
        return [x if x.__class__ in _PLAIN else _numbers_of(x, dtypes) for x in data]
    if isinstance(data, Tensor) and data._array.size == 1:
        data = on_host(data._array).reshape(())
    if hasattr(type(data), "__array__") and not isinstance(data, Tensor):
        data = np.asarray(data)  # a column of pandas has the dtype of its array, too
        dtypes.add(data.dtype)
    return data


def _check_numeric(array: Array) -> None:
    if array.dtype == object and array.ndim == 0 and array.item() is None:
        raise RuntimeError("Could not infer dtype of NoneType")
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"can't make a Tensor from data of type {array.dtype}; supported are numbers and bool"
        )
