"""Arrays of the fake CUDA driver: NumPy's, with CuPy's rules about host and device.

The functions are NumPy's, so the results have NumPy's bits. What CuPy refuses is refused: host and
device arrays in one call, and arrays of a device that is not the current one.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class _Device(NamedTuple):
    """``array.device``, as CuPy has it."""

    id: int


class _Data(NamedTuple):
    """``array.data``, as CuPy has it."""

    ptr: int


class DeviceArray(np.ndarray):  # type: ignore[type-arg]
    """An array on a fake GPU. ``np.asarray`` of it cannot be refused; use ``get()``."""

    _driver: Any
    _device: int

    def __array_finalize__(self, parent: Any) -> None:
        if isinstance(parent, DeviceArray):
            self._driver, self._device = parent._driver, parent._device

    @property
    def device(self) -> Any:
        return _Device(self._device)

    @property
    def data(self) -> Any:
        return _Data(self.ctypes.data)

    def get(self, stream: Any = None) -> np.ndarray[Any, Any]:
        """A copy on the host, of what is there after all that is in the stream."""
        (stream or self._driver.current_stream()).synchronize()
        return np.array(self.view(np.ndarray), copy=True)

    def set(self, values: np.ndarray[Any, Any]) -> None:
        """Copy a host array of the same shape and dtype to here."""
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError("set() takes an array of the same shape and dtype")
        self._driver.before_kernel(self._device)
        self.view(np.ndarray)[...] = values

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _run(self._driver, getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        return _run(self._driver, function, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return _run(self._driver, np.ndarray.__getitem__, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        _run(self._driver, np.ndarray.__setitem__, (self, key, value), {})


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: DeviceArray, *args: Any, **kwargs: Any) -> Any:
        return _run(self._driver, function, (self, *args), kwargs)

    return method


def _host_method(name: str) -> Callable[..., Any]:
    def method(self: DeviceArray, *args: Any) -> Any:
        return getattr(self.get(), name)(*args)

    return method


#: Methods that NumPy does not send through the two protocols above.
_METHODS = """
    all any argmax argmin argpartition argsort astype choose clip compress conj conjugate copy
    cumprod cumsum diagonal dot fill flatten max mean min nonzero prod put ravel repeat reshape
    round searchsorted sort squeeze std sum swapaxes take trace transpose var
"""
_HOST_METHODS = "item tolist tobytes __bool__ __int__ __float__ __complex__ __index__"

for _name in _METHODS.split():
    setattr(DeviceArray, _name, _method(_name))
for _name in _HOST_METHODS.split():
    setattr(DeviceArray, _name, _host_method(_name))


class Namespace:
    """A module of NumPy as CuPy would offer it: what its functions make lies on the device."""

    def __init__(self, driver: Any, module: types.ModuleType) -> None:
        self._driver, self._module = driver, module
        self.ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, types.ModuleType):
            return Namespace(self._driver, value)
        if isinstance(value, type) or not callable(value):
            return value
        return _Function(self._driver, value)


class ArrayNamespace(Namespace):
    """The top level, with the functions that move arrays between host and device."""

    def __init__(self, driver: Any) -> None:
        super().__init__(driver, np)

    def array(self, values: Any, dtype: Any = None, copy: bool = True) -> Any:
        """A new device array of what is on the host or on the device."""
        if isinstance(values, DeviceArray) and not copy and dtype in (None, values.dtype):
            return values
        if isinstance(values, DeviceArray):
            return values.astype(values.dtype if dtype is None else dtype)
        return to_device(self._driver, np.asarray(values, dtype=dtype))

    def asarray(self, values: Any, dtype: Any = None) -> Any:
        """``values`` itself where it lies on the device already."""
        return self.array(values, dtype, copy=False)

    def asnumpy(self, values: Any) -> np.ndarray[Any, Any]:
        """A host array."""
        return values.get() if isinstance(values, DeviceArray) else np.asarray(values)


class _Function:
    """A NumPy function that takes and makes device arrays."""

    def __init__(self, driver: Any, function: Callable[..., Any]) -> None:
        self._driver, self._function = driver, function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(self._driver, self._function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._function, name)
        return _Function(self._driver, value) if callable(value) else value


def over(
    driver: Any, window: Any, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None
) -> DeviceArray:
    """An array over device memory, at whose first byte ``window`` starts."""
    array = np.ndarray(tuple(shape), dtype, np.asarray(window), strides=strides)
    return _at_home(driver, array)


def to_device(driver: Any, host: np.ndarray[Any, Any]) -> DeviceArray:
    """A copy of a host array in newly allocated device memory, its axes in the same order."""
    driver.before_kernel(driver.current_device())
    order = sorted(range(host.ndim), key=lambda axis: (-abs(host.strides[axis]), axis))
    packed = host.transpose(order)
    memory = over(driver, driver.allocate(host.nbytes), packed.shape, host.dtype, None)
    plain = memory.view(np.ndarray).transpose(np.argsort(order))
    plain[...] = host
    return _at_home(driver, plain)


def _at_home(driver: Any, array: np.ndarray[Any, Any]) -> DeviceArray:
    placed = array.view(DeviceArray)
    placed._driver, placed._device = driver, driver.current_device()
    return placed


def _run(driver: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a NumPy function on what device arrays hold; its results are device arrays."""
    given: list[DeviceArray] = []
    plain_args = _plain(args, given)
    plain_kwargs = _plain(kwargs, given)
    device = driver.current_device()
    for array in given:
        if array._device != device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {array._device} while current = {device}"
            )
    driver.before_kernel(device)
    return _on_device(driver, function(*plain_args, **plain_kwargs), given)


def _plain(value: Any, given: list[DeviceArray]) -> Any:
    if isinstance(value, DeviceArray):
        given.append(value)
        return value.view(np.ndarray)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {np.ndarray}: a host array where a device array belongs")
    if type(value) in (list, tuple):
        return type(value)(_plain(part, given) for part in value)
    if type(value) is dict:
        return {name: _plain(part, given) for name, part in value.items()}
    return value


def _on_device(driver: Any, result: Any, given: list[DeviceArray]) -> Any:
    if isinstance(result, np.generic):
        return to_device(driver, np.asarray(result))
    if type(result) is np.ndarray:
        for array in given:
            plain = array.view(np.ndarray)
            if np.may_share_memory(result, plain):
                # The whole array again was written to ``out``; else it is a view.
                return array if _is_same(result, plain) else _at_home(driver, result)
        return to_device(driver, result)
    if type(result) in (list, tuple):
        return type(result)(_on_device(driver, part, given) for part in result)
    return result


def _is_same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    return (
        left.shape == right.shape
        and left.strides == right.strides
        and left.dtype == right.dtype
        and left.ctypes.data == right.ctypes.data
    )
