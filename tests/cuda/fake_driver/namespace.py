"""CuPy's names on the fake CUDA driver: those that ``backends.cuda`` and the front end use.

Only what CuPy has is here, with the arguments that CuPy takes: ``tests/cuda/test_cupy_names.py``
compares both where CuPy is installed, which needs no GPU.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpgrad.arrays.cpu import cpu_special
from mpgrad.arrays.cpu.special_functions import scipy_special
from tests.cuda.fake_driver.arrays import (
    Device,
    Host,
    alias_of,
    empty,
    operate,
    to_device,
    view_of,
)
from tests.cuda.fake_driver.arrays import ndarray as DeviceArray
from tests.cuda.fake_driver.kernels import KERNELS

UFUNCS = (
    "add subtract multiply divide true_divide power maximum minimum remainder floor_divide negative"
    " absolute sqrt square reciprocal exp exp2 expm1 log log2 log10 log1p logaddexp sin cos tan"
    " arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh arctanh sign floor ceil rint"
    " trunc conjugate equal not_equal greater greater_equal less less_equal logical_and logical_or"
    " logical_xor logical_not isnan isinf isfinite bitwise_and bitwise_or bitwise_xor invert"
    " copysign fmod hypot nextafter left_shift right_shift"
)
FUNCTIONS = (
    "sum prod max min any all argmax argmin cumsum cumprod reshape transpose concatenate stack flip"
    " copyto take_along_axis angle argsort repeat clip isclose allclose array_equal count_nonzero"
    " argwhere nonzero nan_to_num searchsorted triu tril may_share_memory shares_memory swapaxes"
    " einsum"
)
#: These make arrays from numbers, or from arrays of any kind.
CREATION = "zeros ones full arange linspace eye tri"
LIKE = "zeros_like ones_like full_like"


class ArrayNamespace:
    """The module ``cupy`` of one fake driver."""

    ndarray = DeviceArray

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.lib = types.SimpleNamespace(
            stride_tricks=types.SimpleNamespace(as_strided=_as_strided)
        )
        self.cuda = types.SimpleNamespace(
            Device=self._device, get_cublas_handle=threading.get_ident, cublas=_Cublas()
        )
        #: What products are computed in, by dtype; it changes nothing here.
        self.compute_types: dict[np.dtype[Any], str] = {}
        self._core = types.SimpleNamespace(_routines_linalg=_Linalg(self.compute_types))
        for name in UFUNCS.split():
            setattr(self, name, Ufunc(driver, getattr(np, name)))
        for name in FUNCTIONS.split():
            setattr(self, name, self._function(getattr(np, name)))
        for name in CREATION.split():
            setattr(self, name, self._creation(getattr(np, name)))
        for name in LIKE.split():
            setattr(self, name, self._like(getattr(np, name)))
        self.conj, self.frexp = self.conjugate, self._several(np.frexp, 2)
        names = ("inv", "solve", "cholesky", "det")
        self.linalg = types.SimpleNamespace(
            **{name: self._function(getattr(np.linalg, name)) for name in names}
        )
        self.fft = types.SimpleNamespace(
            **{
                name: self._function(getattr(np.fft, name))
                for name in ("fftn", "ifftn", "rfftn", "irfftn")
            }
        )
        sign, logabsdet = (self._function(lambda x, i=i: np.linalg.slogdet(x)[i]) for i in (0, 1))
        self.linalg.slogdet = lambda x: (sign(x), logabsdet(x))
        self.linalg.eigh = self._several(np.linalg.eigh, 2)
        self.linalg.svd = self._several(np.linalg.svd, 3)
        first, r = self._several(np.linalg.qr, 2), self._function(np.linalg.qr)
        self.linalg.qr = lambda x, mode: r(x, mode) if mode == "r" else first(x, mode)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the fake of CuPy has no {name!r}")

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: operate(self._driver, function, *args, **kwargs)

    def _several(self, function: Callable[..., Any], count: int) -> Callable[..., Any]:
        """``function``, which gives a tuple of ``count`` arrays."""
        each = [self._function(lambda *args, i=i: function(*args)[i]) for i in range(count)]
        return lambda *args: tuple(one(*args) for one in each)

    def _creation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: to_device(self._driver, function(*args, **kwargs))

    def _like(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, *args, **kwargs: self._creation(function)(x._host, *args, **kwargs)

    def _device(self, device: int | None = None) -> Device:
        return Device(self._driver, self._driver.current_device() if device is None else device)

    # ------------------------------------------------------------------ making arrays

    def empty(self, shape: Any, dtype: Any = float) -> DeviceArray:
        """Uninitialised."""
        return empty(self._driver, shape, dtype)

    def empty_like(self, x: DeviceArray, dtype: Any = None) -> DeviceArray:
        """Uninitialised."""
        return self.empty(x.shape, x.dtype if dtype is None else dtype)

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

    def ascontiguousarray(self, values: DeviceArray) -> DeviceArray:
        """``values`` itself where its elements lie in order; with at least one dimension."""
        if values.ndim == 0:
            return view_of(values, values._host.reshape(1))
        return values if values.flags.c_contiguous else values.copy()

    def asnumpy(self, values: Any) -> Host:
        """A host array."""
        return values.get() if isinstance(values, DeviceArray) else np.asarray(values)

    # ------------------------------------------------------------------ where CuPy differs

    def where(self, condition: DeviceArray, x: Any, y: Any) -> Any:
        """``x`` where ``condition`` holds, else ``y``; CuPy takes no number as condition."""
        return operate(self._driver, np.where, condition.astype(bool, copy=False), x, y)

    def matmul(self, a: DeviceArray, b: DeviceArray, out: DeviceArray | None = None) -> Any:
        """The matrix product, always by the routine for two different matrices."""
        if np.may_share_memory(a._host, b._host):
            b = to_device(self._driver, b._host)
        if out is None:
            return operate(self._driver, np.matmul, a, b)
        return operate(self._driver, np.matmul, a, b, out=out)

    def broadcast_to(self, x: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        """A view in which ``x`` is repeated; writable, as CuPy's."""
        strides = np.broadcast_to(x._host, shape).strides
        return view_of(x, np.lib.stride_tricks.as_strided(x._host, shape, strides))

    def diagonal(
        self, x: DeviceArray, offset: int = 0, axis1: int = 0, axis2: int = 1
    ) -> DeviceArray:
        """A view of the elements with equal indices in two axes; writable, as CuPy's."""
        found = np.diagonal(x._host, offset, axis1, axis2)
        found.flags.writeable = True
        return view_of(x, found)

    def get_default_memory_pool(self) -> _Pool:
        """Where arrays get their memory unless told otherwise."""
        return _Pool(self._driver)

    def fuse(self, kernel_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """What CuPy makes one kernel of is computed step by step."""
        return lambda function: function

    def ElementwiseKernel(
        self, in_params: str, out_params: str, operation: str, name: str
    ) -> Kernel:
        """A kernel that is written in CUDA, as the function of NumPy that has its name."""
        return Kernel(self._driver, in_params, out_params, name)


#: What ``cupyx.scipy.special`` has beside ``erf``.
SPECIAL = (
    "digamma erfcinv erfcx erfinv gamma gammainc gammaincc gammainccinv gammaincinv gammaln i0 i0e "
    "i1 i1e log_ndtr loggamma multigammaln ndtr ndtri polygamma psi zeta"
)


class SpecialFunctions:
    """The part of ``cupyx.scipy.special`` that is used."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def erf(self, x: DeviceArray) -> Any:
        """The error function; of half precision in double, as CuPy's."""
        return operate(self._driver, _erf, x)

    def __getattr__(self, name: str) -> Any:
        """Of ``SPECIAL``, as the function of SciPy that has its name."""
        if name not in SPECIAL.split():
            raise AttributeError(name)
        return partial(operate, self._driver, getattr(scipy_special(), name))


class _Cublas:
    """The part of ``cupy.cuda.cublas`` that sets the precision of batches of products."""

    def __init__(self) -> None:
        #: By thread; it changes nothing here.
        self.math_modes: dict[int, int] = {}

    def setMathMode(self, handle: int, mode: int) -> None:
        """Compute so with ``handle`` from now on."""
        self.math_modes[handle] = mode


class _Linalg:
    """The part of ``cupy._core._routines_linalg`` that sets the precision of products."""

    COMPUTE_TYPE_DEFAULT, COMPUTE_TYPE_TF32 = "default", "TF32"

    def __init__(self, chosen: dict[np.dtype[Any], str]) -> None:
        self._chosen = chosen

    def set_compute_type(self, dtype: np.dtype[Any], compute_type: str) -> None:
        """Compute products of ``dtype`` so from now on."""
        self._chosen[dtype] = compute_type


class _Pool:
    """``cupy.cuda.MemoryPool``, which counts the current device's memory."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def used_bytes(self) -> int:
        """Bytes of arrays."""
        free, total = self._driver.memory_info(self._driver.current_device())
        return int(total - free)

    total_bytes = used_bytes

    def free_all_blocks(self) -> None:
        """Keep no memory without arrays; the fake never does."""


class Kernel:
    """``cupy.ElementwiseKernel``; all outputs must be given, which CuPy allows."""

    def __init__(self, driver: Any, in_params: str, out_params: str, name: str) -> None:
        self._driver, self.name = driver, name
        self._count = len(f"{in_params}, {out_params}".split(","))

    def __call__(self, *args: Any, size: int | None = None) -> None:
        if len(args) != self._count:
            raise TypeError(f"Wrong number of arguments for {self.name!r}")
        operate(self._driver, KERNELS[self.name], *args)


class Ufunc:
    """An elementwise function. CuPy's take neither ``order`` nor ``where``."""

    def __init__(self, driver: Any, function: np.ufunc) -> None:
        self._driver, self._function = driver, function
        self.__name__ = function.__name__

    def __call__(
        self, *operands: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind"
    ) -> Any:
        given: dict[str, Any] = {"dtype": dtype, "casting": casting, "order": "C"}
        if out is not None:
            given["out"] = out
        function = _sign if self._function is np.sign else self._function
        return operate(self._driver, function, *operands, **given)

    def at(self, a: DeviceArray, indices: Any, *b: Any) -> None:
        """Apply without buffering, in the order of the elements."""
        operate(self._driver, self._function.at, a, indices, *b)

    def outer(self, a: DeviceArray, b: DeviceArray) -> Any:
        """Of all pairs."""
        return operate(self._driver, self._function.outer, a, b)

    def reduce(self, array: DeviceArray, axis: Any = 0, keepdims: bool = False) -> Any:
        """Along an axis."""
        return operate(self._driver, self._function.reduce, array, axis=axis, keepdims=keepdims)


def _erf(x: Host) -> Host:
    wide = np.float64 if x.dtype == np.float16 else x.dtype
    return cpu_special.erf(np.ascontiguousarray(x), np.empty(x.shape, wide))


def _sign(x: Host, **given: Any) -> Any:
    if x.dtype.kind == "c":
        raise TypeError("Wrong type of arguments for cupy_sign")
    return np.sign(x, **given)


def _as_strided(x: DeviceArray, shape: Any = None, strides: Any = None) -> DeviceArray:
    """As CuPy's: the result has no base."""
    return alias_of(x, np.lib.stride_tricks.as_strided(x._host, shape, strides))
