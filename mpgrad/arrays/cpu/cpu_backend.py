"""The NumPy namespace: NumPy's functions, with large results in memory that the caller provides.

The client passes an allocator of its arena, a worker one that returns the block of the task's
output. It knows arrays only: neither Tensors nor arenas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mpgrad.arrays.cpu import (
    blockwise,
    cpu_choices,
    cpu_conv,
    cpu_indexing,
    cpu_matrices,
    cpu_products,
    cpu_special,
    cpu_views,
    cpu_windows,
)
from mpgrad.arrays.cpu.broadcasting import (
    broadcast_shape,
    joint_shape,
    reduced_shape,
    stretched_axes,
)
from mpgrad.arrays.cpu.recurrence import recurrence, recurrence_grads

Array = np.ndarray[Any, Any]
Axis = int | tuple[int, ...] | None

LARGE_BYTES = cpu_choices.LARGE_BYTES
#: Operands with fewer pairs of elements cannot have a large result (at most 16 bytes each).
SMALL_PAIRS = LARGE_BYTES // 16


_INT64 = np.dtype(np.int64)
_add_reduce: Any = np.add.reduce


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a sum or a product of ``dtype``: integers and booleans become int64."""
    return dtype if dtype.kind in "fc" else _INT64


def _as_array(value: Any) -> Array:
    """NumPy returns scalars where the result is 0-d; operators return arrays."""
    return value if type(value) is np.ndarray else np.asarray(value)


def _reduced(value: Any) -> Array:
    """The C-contiguous array of a reduction: NumPy lays results out as it finds the operand."""
    if type(value) is not np.ndarray:
        return np.asarray(value)
    return value if value.ndim < 2 or value.flags.c_contiguous else np.ascontiguousarray(value)


def _binary(ufunc: np.ufunc, result: type | None = None) -> Callable[..., Array]:
    def apply(self: CpuBackend, a: Any, b: Any) -> Array:
        # The result has at most as many elements as there are pairs; for equal shapes, their root.
        if type(b) is np.ndarray and type(a) is np.ndarray:
            pairs = a.size * b.size
        else:
            pairs = getattr(a, "size", 1) * getattr(b, "size", 1)
        if pairs >= SMALL_PAIRS and not (
            pairs < SMALL_PAIRS**2 and getattr(a, "shape", ()) == getattr(b, "shape", ())
        ):
            out = self._binary_output(a, b, result)
            if out is not None:
                return ufunc(a, b, out=out)
        value = ufunc(a, b, order="C")
        return value if type(value) is np.ndarray else np.asarray(value)

    return apply


def _unary(ufunc: np.ufunc, kinds: str = "fc") -> Callable[..., Array]:
    """``kinds`` are the kinds of dtypes that ``ufunc`` keeps."""

    def apply(self: CpuBackend, x: Array) -> Array:
        if x.nbytes >= LARGE_BYTES and x.dtype.kind in kinds:
            return ufunc(x, out=self.empty(x.shape, x.dtype))
        value = ufunc(x, order="C")
        return value if type(value) is np.ndarray else np.asarray(value)

    return apply


def _cumulative(ufunc: np.ufunc) -> Callable[..., Array]:
    def apply(self: CpuBackend, x: Array, axis: int) -> Array:
        dtype = total_dtype(x.dtype)
        if x.ndim == 0:  # writing into a 0-d array would crash NumPy
            return self.astype(x, dtype)
        return ufunc.accumulate(x, axis=axis, dtype=dtype, out=self._place(x.shape, dtype))

    return apply


def _reduction(function: Callable[..., Any]) -> Callable[..., Array]:
    def apply(self: CpuBackend, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return _reduced(function(x, axis=axis, keepdims=keepdims))

    return apply


#: NumPy's names, in a class: a ``__getattr__`` would make each call of a method slower.
_NumPy: Any = type(
    "_NumPy",
    (),
    {
        name: staticmethod(value) if hasattr(type(value), "__get__") else value
        for name, value in vars(np).items()
        if not name.startswith("_")
    },
)


def is_by_channel(x: Any, axis: Any) -> bool:
    """Whether a sum over ``axis`` leaves only the second dimension. Images are added first then:
    whole rows, not a few elements of one channel at a time (32 channels of 4 x 4, batch 64: 6 us
    instead of 41)."""
    return x.ndim > 2 and type(axis) is tuple and axis == (0, *range(2, x.ndim))


class CpuBackend(cpu_matrices.Matrices, _NumPy):
    """The array namespace ``xp`` for NumPy (the list is in ``mpgrad.backends``).

    Args:
        empty: ``empty(shape, dtype)`` gives the uninitialised C-contiguous array that a large
            result is written to.
    """

    def __init__(self, empty: Callable[..., Array]) -> None:
        self.empty = empty

    # NumPy loads these when they are asked for.
    fft = property(lambda self: np.fft)
    linalg = property(lambda self: np.linalg)

    # ------------------------------------------------------------------ elementwise

    add = _binary(np.add)
    subtract = _binary(np.subtract)
    multiply = _binary(np.multiply)
    divide = _binary(np.true_divide)
    power = _binary(np.power)
    remainder = _binary(np.remainder)
    floor_divide = _binary(np.floor_divide)

    equal = _binary(np.equal, bool)
    not_equal = _binary(np.not_equal, bool)
    greater = _binary(np.greater, bool)
    greater_equal = _binary(np.greater_equal, bool)
    less = _binary(np.less, bool)
    less_equal = _binary(np.less_equal, bool)
    logical_and = _binary(np.logical_and, bool)
    logical_or = _binary(np.logical_or, bool)
    logical_xor = _binary(np.logical_xor, bool)

    negative = _unary(np.negative)
    absolute = _unary(np.absolute, "f")
    sqrt = _unary(np.sqrt)
    square = _unary(np.square)
    reciprocal = _unary(np.reciprocal)
    exp = _unary(np.exp)
    expm1 = _unary(np.expm1)
    log = _unary(np.log)
    log1p = _unary(np.log1p)
    exp2 = _unary(np.exp2)
    log2 = _unary(np.log2)
    log10 = _unary(np.log10)
    sin = _unary(np.sin)
    cos = _unary(np.cos)
    tan = _unary(np.tan)
    tanh = _unary(np.tanh)
    arcsin = _unary(np.arcsin)
    arccos = _unary(np.arccos)
    arctan = _unary(np.arctan)
    arcsinh = _unary(np.arcsinh)
    arccosh = _unary(np.arccosh)
    arctanh = _unary(np.arctanh)
    arctan2 = _binary(np.arctan2)
    hypot, fmod = _binary(np.hypot), _binary(np.fmod)
    logaddexp = _binary(np.logaddexp)
    sinh = _unary(np.sinh)
    cosh = _unary(np.cosh)
    sign = cpu_special.sign
    floor = _unary(np.floor)
    ceil = _unary(np.ceil)
    rint = _unary(np.rint)
    trunc = _unary(np.trunc)
    conj = _unary(np.conjugate)

    def real(self, x: Array) -> Array:
        """A view of the real parts of complex numbers."""
        return x.real

    def imag(self, x: Array) -> Array:
        """A view of the imaginary parts of complex numbers."""
        return x.imag

    def complex(self, real: Array, imag: Array) -> Array:
        """``real + 1j * imag``, also exact if a part is infinite."""
        out = self._place(broadcast_shape(real.shape, imag.shape), _complex_of(real.dtype))
        out.real, out.imag = real, imag
        return out

    def angle(self, x: Array) -> Array:
        """The argument of complex numbers, in (-pi, pi]."""
        return _as_array(np.angle(x))

    def view_as_real(self, x: Array) -> Array:
        """A view with one more dimension: real and imaginary part."""
        part = x.real
        return as_strided(part, (*x.shape, 2), (*x.strides, part.itemsize))

    def view_as_complex(self, x: Array) -> Array:
        """A view without the last dimension, whose two elements are neighbours in memory."""
        return x.view(_complex_of(x.dtype)).reshape(x.shape[:-1])

    def logical_not(self, x: Array) -> Array:
        return _as_array(np.logical_not(x))

    def invert(self, x: Array) -> Array:
        return _as_array(np.invert(x))

    def isnan(self, x: Array) -> Array:
        return _as_array(np.isnan(x))

    def isinf(self, x: Array) -> Array:
        return _as_array(np.isinf(x))

    def isfinite(self, x: Array) -> Array:
        return _as_array(np.isfinite(x))

    def sigmoid(self, x: Array) -> Array:
        """``1 / (1 + exp(-x))`` as ``(1 + tanh(x / 2)) / 2``, which cannot overflow."""
        half = self.multiply(x, 0.5)
        np.tanh(half, out=half)
        np.add(half, 1, out=half)
        np.multiply(half, 0.5, out=half)
        return half

    def erf(self, x: Array) -> Array:
        """The error function."""
        return cpu_special.erf(x, self._place(x.shape, x.dtype))

    where = cpu_choices.where
    maximum = cpu_choices.maximum
    minimum = cpu_choices.minimum

    def astype(self, x: Array, dtype: Any) -> Array:
        out = self._place(x.shape, np.dtype(dtype))
        np.copyto(out, x, casting="unsafe")
        return out

    def copy(self, x: Array) -> Array:
        return self.astype(x, x.dtype)

    # ------------------------------------------------------------------ several at once

    def blockwise(
        self,
        formula: Callable[..., Any],
        first: Array,
        *rest: Any,
        axes: tuple[int, ...] | None = None,
    ) -> Any:
        """``formula(self, first, *rest)``, or with ``axes`` ``formula(self, axes, first, *rest)``.

        Large arrays are processed in pieces (see ``arrays.cpu.blockwise``), which the formula must
        not be able to notice. Nothing in ``rest`` is larger than ``first``.
        """
        if first.nbytes >= blockwise.WHOLE_BYTES:
            result = blockwise.blockwise(formula, (first, *rest), axes, self._place)
            if result is not NotImplemented:
                return result
        return formula(self, first, *rest) if axes is None else formula(self, axes, first, *rest)

    # ------------------------------------------------------------------ reduction

    max = _reduction(np.maximum.reduce)
    min = _reduction(np.minimum.reduce)
    argmax = _reduction(np.argmax)
    argmin = _reduction(np.argmin)
    any = _reduction(np.any)
    all = _reduction(np.all)

    def prod(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return _reduced(np.prod(x, axis=axis, keepdims=keepdims, dtype=total_dtype(x.dtype)))

    def sum(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        if x.dtype.kind == "u":
            return _reduced(_add_reduce(x, axis=axis, keepdims=keepdims, dtype=np.int64))
        if x.dtype == np.float16:  # parts of the sum may be too large for it
            total = _add_reduce(x, axis=axis, keepdims=keepdims, dtype=np.float32)
            return _reduced(total.astype(np.float16))
        if is_by_channel(x, axis):
            return _reduced(
                _add_reduce(_add_reduce(x, 0, None, None, True), axis, None, None, keepdims)
            )
        if axis is None or x.nbytes < LARGE_BYTES or x.dtype.kind not in "fc":
            return _reduced(_add_reduce(x, axis=axis, keepdims=keepdims))
        shape = reduced_shape(x.shape, axis, keepdims)
        if math.prod(shape) * x.itemsize < LARGE_BYTES:
            return _reduced(_add_reduce(x, axis=axis, keepdims=keepdims))
        out = self.empty(shape, x.dtype)
        return _add_reduce(x, axis=axis, keepdims=keepdims, out=out)

    def sum_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Sum ``x`` to ``shape``, which broadcasts to ``x.shape``."""
        if x.shape == shape:
            return x
        total = self.sum(x, stretched_axes(x.shape, shape))
        return total if total.shape == shape else total.reshape(shape)

    cumsum = _cumulative(np.add)
    cumprod = _cumulative(np.multiply)

    # ------------------------------------------------------------------ shape

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        result = x.reshape(shape)
        if x.nbytes < LARGE_BYTES or np.may_share_memory(result, x):
            return result
        return self.copy(result)

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return x.transpose(axes)

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        if math.prod(shape) == x.size:
            return x.reshape(shape)  # nothing is repeated, so it may stay writable
        return np.broadcast_to(x, shape)

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        out = self._place(tuple(shape), np.result_type(*arrays))
        return np.concatenate(arrays, axis, out=out)

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        shape = list(arrays[0].shape)
        shape.insert(axis, len(arrays))
        out = self._place(tuple(shape), np.result_type(*arrays))
        return np.stack(arrays, axis, out=out)

    def flip(self, x: Array, axis: Axis) -> Array:
        return self.copy(np.flip(x, axis) if x.ndim else x)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if math.prod(shape) * 16 < LARGE_BYTES:
            return np.zeros(shape, dtype)
        out = self._place(shape, np.dtype(dtype))
        out.fill(0)
        return out

    def zeros_beside(self, x: Array, shape: tuple[int, ...]) -> Array:
        return self.zeros(shape, x.dtype)

    # ------------------------------------------------------------------ views

    constant_beside = cpu_views.constant_beside
    diagonal = cpu_views.diagonal
    diagonal_scatter = cpu_views.diagonal_scatter
    unfold, as_strided = cpu_views.unfold, cpu_views.as_strided
    take_view = cpu_views.take_view
    put_view = cpu_views.put_view

    # ------------------------------------------------------------------ indexing

    getitem, scatter_index = cpu_indexing.getitem, cpu_indexing.scatter_index
    put_index, assign_index = cpu_indexing.put_index, cpu_indexing.assign_index
    scatter_along_axis = cpu_indexing.scatter_along_axis

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        return np.take_along_axis(x, indices, axis)

    # ------------------------------------------------------------------ places

    def argsort(self, x: Array, axis: int) -> Array:
        """The indices that sort ``x``; equal elements keep their order."""
        return np.argsort(x, axis, kind="stable")

    def argwhere(self, x: Array) -> Array:
        """The indices of all nonzero elements, a row each."""
        return np.ascontiguousarray(np.argwhere(x))

    def arange(self, stop: int) -> Array:
        return np.arange(stop)

    def isclose(self, a: Array, b: Array, rtol: float, atol: float, equal_nan: bool) -> Array:
        return _as_array(np.isclose(a, b, rtol, atol, equal_nan))

    def array_equal(self, a: Array, b: Array) -> Array:
        """Whether shapes and elements are the same, 0-d."""
        return np.asarray(np.array_equal(a, b))

    # ------------------------------------------------------------------ linear and pooling

    matmul = cpu_products.matmul

    conv2d = cpu_conv.conv2d
    conv2d_input_grad = cpu_conv.conv2d_input_grad
    conv2d_weight_grad = cpu_conv.conv2d_weight_grad
    recurrence, recurrence_grads = recurrence, recurrence_grads
    max_pool2d = cpu_windows.max_pool2d
    max_pool2d_input_grad = cpu_windows.max_pool2d_input_grad
    avg_pool2d = cpu_windows.avg_pool2d
    avg_pool2d_input_grad = cpu_windows.avg_pool2d_input_grad

    # ------------------------------------------------------------------ placement

    def _place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if math.prod(shape) * dtype.itemsize < LARGE_BYTES:
            return np.empty(shape, dtype)
        return self.empty(shape, dtype)

    def _binary_output(self, a: Any, b: Any, result: type | None) -> Array | None:
        """The memory of a large result of an elementwise function; None for a small one."""
        a_shape, b_shape = getattr(a, "shape", ()), getattr(b, "shape", ())
        if a_shape == b_shape or not b_shape:
            shape = a_shape
        elif not a_shape:
            shape = b_shape
        else:
            shape = joint_shape(a, b)
        if math.prod(shape) * 8 < LARGE_BYTES:
            return None
        dtype = np.dtype(result) if result is not None else np.result_type(a, b)
        if math.prod(shape) * dtype.itemsize < LARGE_BYTES or dtype.kind not in "fbc":
            return None
        return self.empty(shape, dtype)


def _complex_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The complex dtype whose parts have ``dtype``."""
    return np.dtype(f"c{2 * dtype.itemsize}")
