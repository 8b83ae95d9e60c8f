"""The CuPy namespace: the functions of ``mpgrad.backends`` for arrays on a GPU.

The array module is an argument, so that CuPy is not imported here and the fake driver's module can
replace it. Every function works on arrays of the thread's current device, on its current stream,
and never waits for the device. It knows neither Tensors nor drivers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu import cofactors, cpu_matrices, cpu_views, special_functions
from mpgrad.arrays.cpu import fourier_transforms as transforms
from mpgrad.arrays.cpu.cpu_backend import CpuBackend, _complex_of, total_dtype
from mpgrad.arrays.cpu.cpu_indexing import INDEX, complete_key
from mpgrad.arrays.cpu.matmul_precision import matmul as matmul_precision
from mpgrad.arrays.cpu.recurrence import recurrence, recurrence_grads
from mpgrad.arrays.cuda import cuda_windows
from mpgrad.arrays.cuda.cuda_fusion import Fusion
from mpgrad.arrays.cuda.cuda_kernels import Kernels

#: PyTorch's ``backends.cuda.matmul``, with ``allow_tf32``.
matmul = matmul_precision

Axis = int | tuple[int, ...] | None

#: The number of independent lines from which a thread per line is faster than sorting all indices.
LINES_MIN = 1024

#: The number of elements from which a sum over separate axes is taken in two steps.
SPLIT_SUM_MIN = 1 << 16

#: Keys of rows that an array selects.
_ROWS = ((INDEX,), (INDEX, Ellipsis))


def _last_and_first(axis: Axis, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes at the end without a gap, and the other axes."""
    if axis is None or isinstance(axis, int):
        return (), ()
    axes = {each % ndim for each in axis}
    inner = next(end for end in range(ndim, -1, -1) if end - 1 not in axes)
    return tuple(range(inner, ndim)), tuple(sorted(each for each in axes if each < inner))


def _same(name: str) -> Callable[..., Any]:
    """The function of the array module, whose results are new C-contiguous arrays."""

    def apply(self: CudaBackend, *operands: Any) -> Any:
        return getattr(self.arrays, name)(*operands)

    apply.__name__ = name
    return apply


def _reduction(name: str) -> Callable[..., Any]:
    def apply(self: CudaBackend, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        return getattr(self.arrays, name)(x, axis=axis, keepdims=keepdims)

    apply.__name__ = name
    return apply


def _cumulative(name: str) -> Callable[..., Any]:
    def apply(self: CudaBackend, x: Any, axis: int) -> Any:
        dtype = total_dtype(x.dtype)
        if x.ndim == 0:
            return self.astype(x, dtype)
        return getattr(self.arrays, name)(x, axis=axis, dtype=dtype)

    apply.__name__ = name
    return apply


def _sigmoid(xp: Any, x: Any) -> Any:
    return xp.multiply(xp.add(xp.tanh(xp.multiply(x, 0.5)), 1), 0.5)


class CudaBackend:
    """The array namespace ``xp`` for an array module like CuPy (the list is in
    ``mpgrad.backends``).

    Args:
        arrays: CuPy, or the module of the fake driver.
        special: its special functions.
    """

    def __init__(self, arrays: Any, special: Any) -> None:
        self.arrays, self._special = arrays, special
        self.kernels = Kernels(arrays)
        self._fusion = Fusion(self)
        matmul_precision.serve(arrays)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arrays, name)

    # ------------------------------------------------------------------ elementwise

    add, subtract, multiply = _same("add"), _same("subtract"), _same("multiply")
    divide, power = _same("true_divide"), _same("power")
    remainder, floor_divide = _same("remainder"), _same("floor_divide")
    maximum, minimum, arctan2 = _same("maximum"), _same("minimum"), _same("arctan2")
    logaddexp, hypot = _same("logaddexp"), _same("hypot")

    equal, not_equal = _same("equal"), _same("not_equal")
    greater, greater_equal = _same("greater"), _same("greater_equal")
    less, less_equal = _same("less"), _same("less_equal")
    logical_and, logical_or = _same("logical_and"), _same("logical_or")
    logical_xor, logical_not = _same("logical_xor"), _same("logical_not")
    invert = _same("invert")
    isnan, isinf, isfinite = _same("isnan"), _same("isinf"), _same("isfinite")

    negative, absolute, sqrt = _same("negative"), _same("absolute"), _same("sqrt")
    square, reciprocal = _same("square"), _same("reciprocal")
    exp, exp2, expm1 = _same("exp"), _same("exp2"), _same("expm1")
    log, log1p, log2, log10 = _same("log"), _same("log1p"), _same("log2"), _same("log10")
    sin, cos, tan = _same("sin"), _same("cos"), _same("tan")
    sinh, cosh, tanh = _same("sinh"), _same("cosh"), _same("tanh")
    arcsin, arccos, arctan = _same("arcsin"), _same("arccos"), _same("arctan")
    arcsinh, arccosh, arctanh = _same("arcsinh"), _same("arccosh"), _same("arctanh")
    floor, ceil, rint, trunc = _same("floor"), _same("ceil"), _same("rint"), _same("trunc")
    conj, angle, where = _same("conj"), _same("angle"), _same("where")

    def sign(self, x: Any) -> Any:
        """-1, 0 or 1; 0 for NaN; for complex numbers ``x / |x|``, which CuPy lacks."""
        if x.dtype.kind == "f":
            return self.arrays.where(self.arrays.isnan(x), 0.0, self.arrays.sign(x))
        if x.dtype.kind != "c":
            return self.arrays.sign(x)
        out = self.arrays.empty(x.shape, x.dtype)
        self.kernels["mpgrad_complex_sign"](x, out)
        return out

    def sigmoid(self, x: Any) -> Any:
        """``1 / (1 + exp(-x))`` as ``(1 + tanh(x / 2)) / 2``, which cannot overflow."""
        return self._fusion(_sigmoid, (x,), None)

    def erf(self, x: Any) -> Any:
        """The error function."""
        found = self._special.erf(x)
        return found if found.dtype == x.dtype else found.astype(x.dtype)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def blockwise(
        self,
        formula: Callable[..., Any],
        first: Any,
        *rest: Any,
        axes: tuple[int, ...] | None = None,
    ) -> Any:
        """``formula(self, first, *rest)``, or with ``axes`` ``formula(self, axes, first, *rest)``,
        in few kernels."""
        return self._fusion(formula, (first, *rest), axes)

    # ------------------------------------------------------------------ complex numbers

    def real(self, x: Any) -> Any:
        """A view of the real parts of complex numbers."""
        return x.real

    def imag(self, x: Any) -> Any:
        """A view of the imaginary parts of complex numbers."""
        return x.imag

    def complex(self, real: Any, imag: Any) -> Any:
        """``real + 1j * imag``, exact also where a part is infinite."""
        shape = np.broadcast_shapes(real.shape, imag.shape)
        out = self.arrays.empty(shape, _complex_of(real.dtype))
        out.real, out.imag = real, imag
        return out

    def view_as_real(self, x: Any) -> Any:
        """A view with one more dimension: real and imaginary part."""
        # Not as_strided, whose results CuPy does not know as views: they have no base.
        return x[..., None].view(x.real.dtype)

    def view_as_complex(self, x: Any) -> Any:
        """A view without the last dimension, whose two elements are neighbours in memory."""
        return x.view(_complex_of(x.dtype)).reshape(x.shape[:-1])

    # ------------------------------------------------------------------ reduction

    max, min = _reduction("max"), _reduction("min")
    argmax, argmin = _reduction("argmax"), _reduction("argmin")
    any, all = _reduction("any"), _reduction("all")
    sum_to = CpuBackend.sum_to

    def prod(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        return self.arrays.prod(x, axis=axis, keepdims=keepdims, dtype=total_dtype(x.dtype))

    def sum(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """Sum over the last axes first, then over the others.

        CuPy uses one block of threads for each sum. For a sum over all axes at once, such as that
        of a channel, there would be few blocks, and most of the GPU would be idle.
        """
        if x.dtype.kind == "u":
            return self.arrays.sum(x, axis=axis, keepdims=keepdims, dtype=np.int64)
        last, first = _last_and_first(axis, x.ndim)
        if first and last and x.size >= SPLIT_SUM_MIN and x.dtype.kind in "fc" and x.itemsize > 2:
            inner = self.arrays.sum(x, axis=last, keepdims=True)
            total = self.arrays.sum(inner, axis=first, keepdims=True)
            return total if keepdims else total.squeeze((*first, *last))
        return self.arrays.sum(x, axis=axis, keepdims=keepdims)

    cumsum, cumprod = _cumulative("cumsum"), _cumulative("cumprod")

    # ------------------------------------------------------------------ shape

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        return x.transpose(axes)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        if math.prod(shape) == x.size:
            return x.reshape(shape)
        return self.arrays.broadcast_to(x, shape)

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.arrays.concatenate(arrays, axis)

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.arrays.stack(arrays, axis)

    def flip(self, x: Any, axis: Axis) -> Any:
        return (self.arrays.flip(x, axis) if x.ndim else x).copy()

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.arrays.zeros(shape, dtype)

    def zeros_beside(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.arrays.zeros(shape, x.dtype)

    # ------------------------------------------------------------------ views

    diagonal_scatter = cpu_views.diagonal_scatter
    take_view = cpu_views.take_view
    put_view = cpu_views.put_view

    def diagonal(self, x: Any, offset: int, axis1: int, axis2: int) -> Any:
        """The elements with equal indices in two axes, as a last axis: a view."""
        return self.arrays.diagonal(x, offset, axis1, axis2)

    def unfold(self, x: Any, axis: int, size: int, step: int) -> Any:
        """The windows along an axis, as a last axis: a copy, see ``view_as_real``."""
        starts = np.arange(0, x.shape[axis] - size + 1, step)
        places = self.constant_beside(x, np.add.outer(starts, np.arange(size)))
        found = self.getitem(x, (*(slice(None),) * axis, INDEX), (places,))
        rest = [at for at in range(found.ndim) if at != axis + 1]
        return found.transpose((*rest, axis + 1)).copy()

    def as_strided(
        self, x: Any, shape: tuple[int, ...], steps: tuple[int, ...], offset: int
    ) -> Any:
        """The elements from ``offset`` on, ``steps`` apart: a copy, see ``view_as_real``."""
        places = self.constant_beside(x, cpu_views.strided_places(shape, steps, offset))
        return self.getitem(x.reshape(-1), (INDEX,), (places,))

    # ------------------------------------------------------------------ indexing

    def getitem(self, x: Any, key: tuple[Any, ...], indices: Sequence[Any] = ()) -> Any:
        """``x[key]``, a view where NumPy gives one; ``indices`` take the places of ``INDEX``."""
        return x[complete_key(key, indices)]

    def put_index(self, x: Any, value: Any, key: tuple[Any, ...], indices: Any) -> Any:
        """A copy of ``x`` with ``value`` at ``key``."""
        out = x.copy()
        self.assign_index(out, value, key, indices)
        return out

    def assign_index(self, x: Any, value: Any, key: tuple[Any, ...], indices: Any) -> None:
        x[complete_key(key, indices)] = value

    def scatter_index(
        self, x: Any, key: tuple[Any, ...], indices: Sequence[Any], shape: tuple[int, ...]
    ) -> Any:
        """Zeros of ``shape`` with ``x`` added at ``key``: the adjoint of ``getitem``."""
        out = self.arrays.zeros(shape, x.dtype)
        full = complete_key(key, indices)
        if not indices:
            out[full] = x
        elif len(indices) == 1 and key in _ROWS and indices[0].dtype.kind != "b":
            # Rows, as of an embedding.
            rows = self.arrays.remainder(indices[0].reshape(-1), shape[0])
            self._add_at(out, rows, x, math.prod(shape[1:]))
        else:
            numbers = self.arrays.arange(out.size).reshape(shape)
            self._add_at(out, numbers[full].reshape(-1), x, 1)
        return out

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return self.arrays.take_along_axis(x, indices, axis)

    def scatter_along_axis(self, x: Any, indices: Any, axis: int, size: int) -> Any:
        """Zeros, ``size`` long along ``axis``, with ``x`` added at ``indices``.

        The adjoint of ``take_along_axis``; repeated indices add up in the order of the elements.
        """
        axis %= x.ndim
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        out = self.arrays.zeros(shape, x.dtype)
        inner, lines = math.prod(x.shape[axis + 1 :]), x.size // max(x.shape[axis], 1)
        x, indices = (self.arrays.ascontiguousarray(each) for each in (x, indices))
        indices = indices.astype("int64", copy=False)
        if lines >= LINES_MIN:
            self.kernels["mpgrad_add_lines"](
                x, indices, x.shape[axis], size, inner, out, size=lines
            )
        else:
            line = self.arrays.arange(lines)
            first = (line // max(inner, 1)) * (size * inner) + line % max(inner, 1)
            first = first.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
            places = first + self.arrays.remainder(indices, size) * inner
            self._add_at(out, places.reshape(-1), x, 1)
        return out

    def _add_at(self, out: Any, places: Any, values: Any, width: int) -> None:
        """``out[places] += values``, in rows of ``width``; equal places in their order.

        Args:
            out: C-contiguous.
            places: of rows, 1-d and not negative.
            values: as many rows as there are places.
        """
        if values.size == 0:
            return
        order = self.arrays.argsort(places, kind="stable")
        self.kernels["mpgrad_add_runs"](
            places[order].astype("int64", copy=False),
            order.astype("int64", copy=False),
            self.arrays.ascontiguousarray(values),
            places.size,
            width,
            out,
            size=places.size * width,
        )

    # ------------------------------------------------------------------ places

    def argsort(self, x: Any, axis: int) -> Any:
        """The indices that sort ``x``; equal elements keep their order."""
        return self.arrays.argsort(x, axis, kind="stable")

    def argwhere(self, x: Any) -> Any:
        """The indices of all nonzero elements, a row each; waits for the device."""
        return self.arrays.ascontiguousarray(self.arrays.argwhere(x))

    def arange(self, stop: int) -> Any:
        return self.arrays.arange(stop)

    def isclose(self, a: Any, b: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
        return self.arrays.isclose(a, b, rtol, atol, equal_nan)

    def array_equal(self, a: Any, b: Any) -> Any:
        """Whether shapes and elements are the same, 0-d."""
        return self.arrays.array_equal(a, b)

    # ------------------------------------------------------------------ linear and pooling

    def matmul(self, a: Any, b: Any) -> Any:
        matmul_precision.prepare(self.arrays)
        return self.arrays.matmul(self._blas_layout(a), self._blas_layout(b))

    def _blas_layout(self, x: Any) -> Any:
        """``x``, copied if neither of its last two axes is contiguous."""
        if x.ndim < 2 or x.itemsize in (x.strides[-1], x.strides[-2]):
            return x
        return self.arrays.ascontiguousarray(x)

    def inv(self, x: Any) -> Any:
        return self.arrays.linalg.inv(x)

    def solve(self, a: Any, b: Any) -> Any:
        return self.arrays.linalg.solve(a, b)

    def cholesky(self, x: Any) -> Any:
        return self.arrays.linalg.cholesky(x)

    def det(self, x: Any) -> Any:
        return self.arrays.linalg.det(x)

    def cofactors(self, x: Any) -> Any:
        return cofactors.cofactors(self.arrays, x)

    def cofactors_slope(self, x: Any, grad: Any) -> Any:
        return cofactors.cofactors_slope(self.arrays, x, grad)

    def logabsdet(self, x: Any) -> Any:
        return self.arrays.linalg.slogdet(x)[1]

    def detsign(self, x: Any) -> Any:
        return self.arrays.linalg.slogdet(x)[0]

    def eigh(self, x: Any) -> Any:
        values, vectors = self.arrays.linalg.eigh(x)
        return values, self.arrays.ascontiguousarray(vectors)

    def eig(self, x: Any) -> Any:
        """Eigenvalues and eigenvectors, on the host: CuPy lacks them for general matrices."""
        found = CpuBackend(np.empty).eig(self.arrays.asnumpy(x))
        return tuple(self.arrays.asarray(each) for each in found)

    def svd(self, x: Any, full_matrices: bool) -> Any:
        u, s, vh = self.arrays.linalg.svd(x, full_matrices)
        return self.arrays.ascontiguousarray(u), s, self.arrays.ascontiguousarray(vh)

    def qr(self, x: Any, mode: str) -> Any:
        if mode == "r":
            return self.arrays.empty(0, x.dtype), self.arrays.linalg.qr(x, "r")
        q, r = self.arrays.linalg.qr(x, "complete" if mode == "complete" else "reduced")
        return self.arrays.ascontiguousarray(q), self.arrays.ascontiguousarray(r)

    def eliminated(self, x: Any) -> Any:
        return cpu_matrices.eliminated(self.arrays, x)

    copysign, fmod = _same("copysign"), _same("fmod")
    gcd, lcm, signbit = _same("gcd"), _same("lcm"), _same("signbit")
    nextafter, frexp = _same("nextafter"), _same("frexp")
    left_shift, right_shift = _same("left_shift"), _same("right_shift")

    def special(self, name: str, *operands: Any) -> Any:
        """A function of ``arrays.cpu.special_functions``."""
        return special_functions.evaluated(self.arrays, self._special, name, operands)

    fourier, real_fourier = transforms.fourier, transforms.real_fourier
    fourier_of_real = transforms.fourier_of_real

    def constant_beside(self, x: Any, array: Any) -> Any:
        return self.arrays.asarray(array)

    conv2d = cuda_windows.conv2d
    conv2d_input_grad = cuda_windows.conv2d_input_grad
    conv2d_weight_grad = cuda_windows.conv2d_weight_grad
    recurrence, recurrence_grads = recurrence, recurrence_grads
    max_pool2d = cuda_windows.max_pool2d
    max_pool2d_input_grad = cuda_windows.max_pool2d_input_grad
    avg_pool2d = cuda_windows.avg_pool2d
    avg_pool2d_input_grad = cuda_windows.avg_pool2d_input_grad
