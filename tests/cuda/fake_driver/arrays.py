"""The array of the fake CUDA driver: CuPy's ``ndarray`` over fake device memory.

It wraps a NumPy array and is none, so that code which would break on CuPy breaks here as well: it
is refused by ``np.asarray``, does not mix with arrays of the host, lies on one device, and has no
``flags.writeable``. What it computes are the bits of NumPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.cuda.fake_driver.streams import Operation

Host = np.ndarray[Any, Any]


class MemoryPointer:
    """A place in device memory.

    Attributes:
        mem: what an array and all its views share.
        ptr: the address.
        device_id: of the device that it lies on.
    """

    __slots__ = ("device_id", "mem", "ptr")

    def __init__(self, mem: Any, ptr: int, device_id: int) -> None:
        self.mem, self.ptr, self.device_id = mem, ptr, device_id


class Chunk:
    """The memory of one allocation."""

    __slots__ = ("window",)

    def __init__(self, window: Any) -> None:
        self.window = window


class Flags:
    """How the elements lie; CuPy's has no ``writeable``."""

    __slots__ = ("c_contiguous", "f_contiguous", "owndata")

    def __init__(self, host: Host, owndata: bool) -> None:
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous
        self.owndata = owndata

    @property
    def forc(self) -> bool:
        """Whether the elements lie in either order without gaps."""
        return self.c_contiguous or self.f_contiguous


class Device:
    """A device; ``with`` makes it the thread's current one."""

    def __init__(self, driver: Any, index: int) -> None:
        self._driver, self.id = driver, index
        self._entered: list[Any] = []

    def __enter__(self) -> Device:
        context = self._driver.device(self.id)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().__exit__(*exception)

    def use(self) -> None:
        """Make it the thread's current one from now on."""
        self._driver.use_device(self.id)

    def synchronize(self) -> None:
        """Wait until the device has done all."""
        with self._driver.device(self.id):
            self._driver.synchronize()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class ndarray:
    """An array on a fake GPU; made by the functions below and by the namespace."""

    __slots__ = ("__weakref__", "_base", "_driver", "_host", "data")

    __hash__ = None  # type: ignore[assignment]

    #: CuPy's.
    __array_priority__ = 100

    _base: ndarray | None
    _driver: Any
    _host: Host
    data: MemoryPointer

    # ------------------------------------------------------------------ what it is

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    # CuPy's are zeros where there is no element.
    strides = property(lambda self: self._host.strides if self.size else (0,) * self.ndim)
    flags = property(lambda self: Flags(self._host, self._base is None))
    device = property(lambda self: Device(self._driver, self.data.device_id))
    base = property(lambda self: self._base)
    T = property(lambda self: self.transpose())

    @property
    def real(self) -> ndarray:
        """A view of the real parts."""
        return view_of(self, self._host.real)

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> ndarray:
        """A view of the imaginary parts."""
        return view_of(self, self._host.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    # ------------------------------------------------------------------ to and from the host

    def get(self, stream: Any = None, order: str = "C", out: Host | None = None) -> Host:
        """A copy on the host, of what is there after all that is in the stream."""
        with self._driver.device(self.data.device_id):
            (stream or self._driver.current_stream()).synchronize()
        if out is None:
            return self._host.copy()
        if not out.flags.c_contiguous or out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError("get() writes to a C-contiguous array of its shape and dtype")
        out[...] = self._host
        return out

    def set(self, values: Host) -> None:
        """Copy a host array of the same shape and dtype to here."""
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError("set() takes an array of the same shape and dtype")
        self._driver.before_kernel(self.data.device_id)
        self._host[...] = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Host:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    # ------------------------------------------------------------------ NumPy's protocols

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = getattr(self._driver.namespace, ufunc.__name__, None)
        if function is None or any(isinstance(value, np.ndarray) for value in inputs):
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return (function if method == "__call__" else getattr(function, method))(*inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        ours = getattr(self._driver.namespace, function.__name__, None)
        if ours is None or not all(issubclass(kind, ndarray) for kind in types):
            return NotImplemented
        return ours(*args, **kwargs)

    # ------------------------------------------------------------------ items and copies

    def __getitem__(self, key: Any) -> Any:
        return operate(self._driver, lambda array, k: array[k], self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        operate(self._driver, _assign, self, key, value)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """In another dtype, C-contiguous."""
        if not copy and self.dtype == dtype:
            return self
        return operate(self._driver, lambda array: array.astype(dtype, order="C"), self)

    def copy(self, order: str = "C") -> ndarray:
        """A copy on the *current* device, as CuPy's: ``self`` may lie on another one."""
        driver, here = self._driver, self.data.device_id
        if here == driver.current_device():
            return to_device(driver, self._host, order=order)
        with driver.device(here):
            whole = self if self.flags.c_contiguous else to_device(driver, self._host, "C")
        out = empty(driver, self.shape, self.dtype)
        driver.current_stream().put(Operation(functools.partial(_copy_late, out, whole)))
        return out

    def fill(self, value: Any) -> None:
        """Overwrite all elements with a number."""
        operate(self._driver, lambda array: array.fill(value), self)

    def view(self, dtype: Any = None) -> ndarray:
        """The same bytes, read as another dtype."""
        return view_of(self, self._host.view(self.dtype if dtype is None else dtype))


def _assign(array: Host, key: Any, value: Any) -> None:
    array[key] = value


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        return operate(self._driver, function, self, *args, **kwargs)

    return method


def _infix(name: str) -> Callable[..., Any]:
    operation = _method(name)

    def method(self: ndarray, other: Any) -> Any:
        # Those who know what to do with an array of a device, such as Tensors, do it.
        if getattr(other, "__array_priority__", 0) > ndarray.__array_priority__:
            return NotImplemented
        return operation(self, other)

    return method


def _host_method(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.get(), name)(*args)


_METHODS = """
    all any argmax argmin argsort cumprod cumsum max mean min nonzero prod ravel repeat reshape
    squeeze sum take transpose __neg__ __abs__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
"""
_INFIX = "add sub mul truediv floordiv mod pow matmul and or xor"
_HOST_METHODS = "item tolist tobytes __bool__ __int__ __float__ __complex__ __index__ __repr__"


def _attach() -> None:
    for name in _METHODS.split():
        setattr(ndarray, name, _method(name))
    for name in _INFIX.split():
        setattr(ndarray, f"__{name}__", _infix(f"__{name}__"))
        setattr(ndarray, f"__r{name}__", _infix(f"__r{name}__"))
        if name != "matmul":
            setattr(ndarray, f"__i{name}__", _method(f"__i{name}__"))
    for name in _HOST_METHODS.split():
        setattr(ndarray, name, _host_method(name))


_attach()


# ---------------------------------------------------------------------- memory


def over(
    driver: Any, window: Any, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None
) -> ndarray:
    """An array over device memory, at whose first byte ``window`` starts."""
    host: Host = np.ndarray(tuple(shape), dtype, np.asarray(window), strides=strides)
    return _made(driver, host, None, Chunk(window), driver.current_device())


def view_of(source: ndarray, host: Host) -> ndarray:
    """``host``, which lies in the memory of ``source``, as an array."""
    base = source if source._base is None else source._base
    return _made(source._driver, host, base, source.data.mem, source.data.device_id)


def alias_of(source: ndarray, host: Host) -> ndarray:
    """The same as an array of its own, without a base."""
    return _made(source._driver, host, None, source.data.mem, source.data.device_id)


def _made(driver: Any, host: Host, base: ndarray | None, mem: Chunk, device: int) -> ndarray:
    array = ndarray()
    array._driver, array._host, array._base = driver, host, base
    if base is not None and base.data.ptr == host.ctypes.data:
        array.data = base.data
    else:
        array.data = MemoryPointer(mem, host.ctypes.data, device)
    return array


def empty(driver: Any, shape: Any, dtype: Any) -> ndarray:
    """An uninitialised array on the current device."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return over(driver, driver.allocate(nbytes), shape, dtype, None)


def to_device(driver: Any, host: Any, order: str = "K") -> ndarray:
    """A copy of a host array on the current device, its axes in the same order (or in C order)."""
    host = np.asarray(host)
    driver.before_kernel(driver.current_device())
    axes = list(range(host.ndim))
    if order == "K":
        axes.sort(key=lambda axis: (-abs(host.strides[axis]), axis))
    packed = empty(driver, tuple(host.shape[axis] for axis in axes), host.dtype)
    plain = packed._host.transpose(np.argsort(axes))
    plain[...] = host
    return _made(driver, plain, None, packed.data.mem, packed.data.device_id)


def _copy_late(target: ndarray, source: ndarray) -> None:
    target._host[...] = source._host


# ---------------------------------------------------------------------- operations


def operate(driver: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a NumPy function on what device arrays hold; its results are device arrays.

    Raises:
        TypeError: an operand is an array of the host.
        ValueError: an operand lies on another device than the current one.
    """
    given: list[ndarray] = []
    plain_args, plain_kwargs = _plain(args, given), _plain(kwargs, given)
    device = driver.current_device()
    for array in given:
        if array.data.device_id != device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {array.data.device_id} while current = {device}"
            )
    driver.before_kernel(device)
    return _on_device(driver, function(*plain_args, **plain_kwargs), given)


def _plain(value: Any, given: list[ndarray]) -> Any:
    if isinstance(value, ndarray):
        given.append(value)
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {np.ndarray}: a host array where a device array belongs")
    if type(value) in (list, tuple):
        return type(value)(_plain(part, given) for part in value)
    if type(value) is dict:
        return {name: _plain(part, given) for name, part in value.items()}
    return value


def _on_device(driver: Any, result: Any, given: list[ndarray]) -> Any:
    if isinstance(result, np.generic):
        return to_device(driver, result)
    if type(result) is np.ndarray:
        for array in given:
            if result is array._host:
                return array
        for array in given:
            if np.may_share_memory(result, array._host):
                return view_of(array, result)
        return to_device(driver, result)
    if type(result) in (list, tuple):
        return type(result)(_on_device(driver, part, given) for part in result)
    return result
