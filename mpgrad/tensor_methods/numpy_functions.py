"""NumPy functions on Tensors (``np.exp(x)``, ``np.sum(x)``, ``array * x``): NEP 13 and NEP 18.

Functions in the tables below become operators and are recorded. Any other function gets the arrays,
which raises an error if a Tensor requires grad, as ``x.numpy()`` does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.base.device import CPU
from mpgrad.ops.by_index import indexing, selection
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import as_tensor_operand
from mpgrad.ops.elementwise import (
    arithmetic,
    comparison,
    complex_numbers,
    minimum_maximum,
    rounding,
    transcendental,
)
from mpgrad.ops.linear_algebra import (
    einsum,
    factorizations,
    matrices,
    matrix_norms,
    matrix_products,
    pairwise_products,
)
from mpgrad.ops.reductions import extrema, ordering, products, reduction
from mpgrad.ops.shapes import joining, tiles_and_pairs
from mpgrad.ops.shapes import shape as shapes
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor


def _of_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function``, which takes only tensors, for all arguments that NumPy takes."""

    @functools.wraps(function)
    def public(*operands: Any) -> Tensor:
        return function(*(as_tensor_operand(operand) for operand in operands))

    return public


_UFUNCS: dict[np.ufunc, Callable[..., Tensor]] = {
    np.add: arithmetic.add,
    np.subtract: arithmetic.sub,
    np.multiply: arithmetic.mul,
    np.true_divide: arithmetic.div,
    np.floor_divide: rounding.floor_divide,
    np.remainder: rounding.remainder,
    np.power: arithmetic.pow,
    np.negative: arithmetic.neg,
    np.absolute: arithmetic.abs,
    np.maximum: minimum_maximum.larger,
    np.minimum: minimum_maximum.smaller,
    np.sqrt: arithmetic.sqrt,
    np.square: arithmetic.square,
    np.reciprocal: arithmetic.reciprocal,
    np.sign: complex_numbers.sgn,
    np.floor: rounding.floor,
    np.ceil: rounding.ceil,
    np.trunc: rounding.trunc,
    np.rint: rounding.round,
    np.equal: _of_tensors(comparison.eq),
    np.not_equal: _of_tensors(comparison.ne),
    np.greater: _of_tensors(comparison.gt),
    np.greater_equal: _of_tensors(comparison.ge),
    np.less: _of_tensors(comparison.lt),
    np.less_equal: _of_tensors(comparison.le),
    np.logical_not: comparison.logical_not,
    np.isnan: comparison.isnan,
    np.isinf: comparison.isinf,
    np.isfinite: comparison.isfinite,
    np.conjugate: complex_numbers.conj,
    np.exp: transcendental.exp,
    np.exp2: transcendental.exp2,
    np.log2: transcendental.log2,
    np.log10: transcendental.log10,
    np.logaddexp: _of_tensors(transcendental.logaddexp),
    np.expm1: transcendental.expm1,
    np.log: transcendental.log,
    np.log1p: transcendental.log1p,
    np.sin: transcendental.sin,
    np.cos: transcendental.cos,
    np.tan: transcendental.tan,
    np.arcsin: transcendental.arcsin,
    np.arccos: transcendental.arccos,
    np.arctan: transcendental.arctan,
    np.sinh: transcendental.sinh,
    np.cosh: transcendental.cosh,
    np.arcsinh: transcendental.arcsinh,
    np.arccosh: transcendental.arccosh,
    np.arctanh: transcendental.arctanh,
    np.arctan2: _of_tensors(transcendental.arctan2),
    np.tanh: transcendental.tanh,
    np.matmul: matrix_products.matmul,
}

#: With NumPy's names and order of arguments; a call with others gets the arrays.
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.sum: lambda a, axis=None, dtype=None, *, keepdims=False: reduction.sum(
        a, axis, keepdims, dtype=dtype
    ),
    np.mean: lambda a, axis=None, dtype=None, *, keepdims=False: reduction.mean(
        a, axis, keepdims, dtype=dtype
    ),
    np.var: lambda a, axis=None, *, ddof=0, keepdims=False: reduction.var(
        a, axis, keepdim=keepdims, correction=ddof
    ),
    np.std: lambda a, axis=None, *, ddof=0, keepdims=False: reduction.std(
        a, axis, keepdim=keepdims, correction=ddof
    ),
    np.max: lambda a, axis=None, *, keepdims=False: extrema.amax(a, axis, keepdims),
    np.min: lambda a, axis=None, *, keepdims=False: extrema.amin(a, axis, keepdims),
    np.prod: lambda a, axis=None, dtype=None, *, keepdims=False: products.prod(
        a, axis, keepdims, dtype=dtype
    ),
    np.cumprod: lambda a, axis=None, dtype=None: products.cumprod(*_line(a, axis), dtype=dtype),
    np.cumsum: lambda a, axis=None, dtype=None: reduction.cumsum(*_line(a, axis), dtype=dtype),
    np.real: lambda val: complex_numbers.real(val),
    np.imag: lambda val: complex_numbers.imag(val),
    np.angle: lambda z: complex_numbers.angle(z),
    np.einsum: lambda *operands, optimize=False: einsum.einsum(*operands),
    np.clip: lambda a, a_min=None, a_max=None, *, min=None, max=None: minimum_maximum.clamp(
        a, a_min if min is None else min, a_max if max is None else max
    ),
    np.where: lambda condition, *chosen: minimum_maximum.where(_truth(condition), *chosen),
    np.dot: lambda a, b: _dot(a, b),
    np.concatenate: lambda arrays, axis=0: (
        shapes.cat([shapes.flatten(as_tensor_operand(a)) for a in arrays])
        if axis is None
        else shapes.cat(arrays, axis)
    ),
    np.stack: lambda arrays, axis=0: shapes.stack(arrays, axis),
    np.reshape: lambda a, shape: shapes.reshape(a, shape),
    np.ravel: lambda a: shapes.ravel(a),
    np.squeeze: lambda a, axis=None: shapes.squeeze(a, axis),
    np.expand_dims: lambda a, axis: _with_lengths_of_1(a, axis),
    np.transpose: lambda a, axes=None: shapes.permute(
        a, tuple(reversed(range(a.ndim))) if axes is None else axes
    ),
    np.swapaxes: lambda a, axis1, axis2: shapes.transpose(a, axis1, axis2),
    np.broadcast_to: lambda array, shape: shapes.broadcast_to(array, shape),
    np.moveaxis: lambda a, source, destination: shapes.movedim(a, source, destination),
    np.flip: lambda m, axis=None: shapes.flip(m, tuple(range(m.ndim)) if axis is None else axis),
    np.roll: lambda a, shift, axis=None: selection.roll(a, shift, axis),
    np.tile: lambda A, reps: tiles_and_pairs.tile(A, reps),
    np.repeat: lambda a, repeats, axis=None: selection.repeat_interleave(
        a, repeats if isinstance(repeats, int) else _operand(repeats), axis
    ),
    np.sort: lambda a, axis=-1: ordering.sort(*_line(a, axis)).values,
    np.vstack: lambda tup: joining.vstack([_operand(a) for a in tup]),
    np.hstack: lambda tup: joining.hstack([_operand(a) for a in tup]),
    np.diag: lambda v, k=0: selection.diag(v, k),
    np.diagonal: lambda a, offset=0, axis1=0, axis2=1: indexing.diagonal(a, offset, axis1, axis2),
    np.trace: lambda a, offset=0, axis1=0, axis2=1: reduction.sum(
        indexing.diagonal(a, offset, axis1, axis2), -1
    ),
    np.tril: lambda m, k=0: selection.tril(m, k),
    np.triu: lambda m, k=0: selection.triu(m, k),
    np.outer: lambda a, b: matrix_products.outer(*(shapes.flatten(_operand(x)) for x in (a, b))),
    np.inner: lambda a, b: matrix_products.inner(_operand(a), _operand(b)),
    np.kron: lambda a, b: pairwise_products.kron(_operand(a), _operand(b)),
    np.tensordot: lambda a, b, axes=2: matrix_products.tensordot(_operand(a), _operand(b), axes),
    np.linalg.inv: lambda a: matrices.inv(a),
    np.linalg.det: lambda a: matrices.det(a),
    np.linalg.slogdet: lambda a: matrices.slogdet(a),
    np.linalg.solve: lambda a, b: _solve(_operand(a), _operand(b)),
    np.linalg.cholesky: lambda a, /, *, upper=False: matrices.cholesky(a, upper=upper),
    np.linalg.eigh: lambda a, UPLO="L": factorizations.eigh(a, UPLO),
    np.linalg.norm: lambda x, ord=None, axis=None, keepdims=False: matrix_norms.norm(
        x, ord, axis, keepdims
    ),
}


def _operand(value: Any) -> Tensor:
    """A Tensor of whatever NumPy takes for an array."""
    return value if isinstance(value, Tensor) else as_tensor_operand(np.asarray(value))


def _line(a: Any, axis: int | None) -> tuple[Tensor, int]:
    """What runs along ``axis``: without one all elements."""
    return (shapes.flatten(a), 0) if axis is None else (a, axis)


def _with_lengths_of_1(a: Tensor, axis: Any) -> Tensor:
    """``np.expand_dims``: ``axis`` (an int or several) are dimensions of the result."""
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    ndim = a.ndim + len(axes)
    for dim in sorted(one_dim(one, ndim) for one in axes):
        a = shapes.unsqueeze(a, dim)
    return a


def _truth(condition: Any) -> Tensor:
    """Whether each element of ``condition`` is nonzero, as NumPy converts it."""
    condition = as_tensor_operand(condition)
    return condition if condition.dtype.kind == "b" else comparison.ne(condition, 0)


def _solve(a: Tensor, b: Tensor) -> Tensor:
    """``np.linalg.solve``: only a 1-d ``b`` is a vector, whatever the shape of ``a``."""
    if b.ndim == 1:
        return shapes.squeeze(matrices.solve(a, shapes.unsqueeze(b, -1)), -1)
    while b.ndim < a.ndim:
        b = shapes.unsqueeze(b, 0)
    return matrices.solve(a, b)


def _dot(a: Any, b: Any) -> Tensor:
    """``np.dot``: for stacks of matrices the products of all pairs, unlike ``matmul``."""
    a, b = as_tensor_operand(a), as_tensor_operand(b)
    if a.ndim == 0 or b.ndim == 0:
        return arithmetic.mul(a, b)
    if a.ndim <= 2 and b.ndim <= 2:
        return matrix_products.matmul(a, b)
    return matrix_products.tensordot(a, b, ([-1], [-2 if b.ndim > 1 else -1]))


def array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """NEP 13: a ufunc has a Tensor among its inputs or outputs."""
    _refuse_out(ufunc.__name__, kwargs.get("out", ()))
    function = _UFUNCS.get(ufunc)
    if method == "__call__" and not kwargs and function is not None:
        return function(*inputs)
    result = getattr(ufunc, method)(*_arrays(inputs), **kwargs)
    if "out" in kwargs or result is None:
        return result
    return tuple(map(_tensor, result)) if isinstance(result, tuple) else _tensor(result)


def _tensor(result: Any) -> Any:
    """A ufunc's array or number as a Tensor; objects, of ``np.frompyfunc``, as they are."""
    array = np.asarray(result)
    return Tensor(array) if array.dtype.kind in "biufc" else result


def array_function(
    self: Tensor,
    func: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """NEP 18: a NumPy function has a Tensor among its arguments."""
    _refuse_out(func.__name__, (kwargs.get("out"),))
    function = _FUNCTIONS.get(func)
    if function is not None and _takes(function, args, kwargs):
        return function(*args, **kwargs)
    return func(*_arrays(args), **{name: _arrays(value) for name, value in kwargs.items()})


def _refuse_out(name: str, outs: tuple[Any, ...]) -> None:
    if any(isinstance(out, Tensor) for out in outs):
        raise TypeError(
            f"np.{name}: a Tensor cannot be the `out` of a NumPy function; use the in-place "
            "methods of Tensor"
        )


_signature = functools.cache(inspect.signature)


def _takes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        _signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _arrays(value: Any) -> Any:
    """``value`` with its Tensors replaced by their arrays, also inside tuples and lists."""
    if isinstance(value, Tensor):
        return as_numpy(value)
    if isinstance(value, tuple | list):
        return type(value)(_arrays(item) for item in value)
    return value


def as_numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """The array itself, without a copy: each sees the other's changes.

    Args:
        force: detach first, and copy to the CPU.

    Raises:
        TypeError: the tensor lies on a GPU.
        RuntimeError: the tensor requires grad and recording is on (inside ``Function.forward`` and
            ``no_grad()`` it is off), so that changes would not be recorded.
    """
    if self.requires_grad and not force and is_grad_enabled():
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if self.device is not CPU and not force:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )
    array = on_host(self._array)
    return array if type(array) is np.ndarray else np.asarray(array)  # a traced one is read so


def as_array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """The result of ``np.asarray(tensor)``."""
    array = as_numpy(self)
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"a copy is needed to convert {array.dtype} to {np.dtype(dtype)}")
        return array.astype(dtype)
    return array.copy() if copy else array


METHODS: dict[str, Callable[..., Any]] = {
    "__array_ufunc__": array_ufunc,
    "__array_function__": array_function,
    "__array__": as_array,
    "numpy": as_numpy,
}
