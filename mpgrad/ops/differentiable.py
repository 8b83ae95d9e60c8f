"""The array namespace on Tensors: the functions of ``mpgrad.backends`` as differentiable operators.

A formula that runs on this namespace records its computation, which is how ``create_graph`` gets
derivatives of derivatives from the same formulas. A function that has no derivative of its own is
missing here, and asking for it raises NotImplementedError.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from mpgrad.arrays.cpu import cpu_windows, recurrence
from mpgrad.ops.by_index import indexing, overwriting
from mpgrad.ops.calling import promotion as _promotion
from mpgrad.ops.elementwise import (
    arithmetic,
    comparison,
    complex_numbers,
    minimum_maximum,
    rounding,
    transcendental,
)
from mpgrad.ops.elementwise import special as special_functions
from mpgrad.ops.linear_algebra import factorizations, matrices, matrix_products
from mpgrad.ops.neural import convolution, pooling
from mpgrad.ops.new_tensors import creation, device_moves
from mpgrad.ops.reductions import extrema, products
from mpgrad.ops.reductions import reduction as _reduction
from mpgrad.ops.shapes import shape, windows_and_slices
from mpgrad.ops.signals import fourier as fourier_transforms
from mpgrad.recording.dispatch import in_place
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.tensors.tensor import Tensor

Axis = int | tuple[int, ...] | None

add = arithmetic.add
subtract = arithmetic.sub
multiply = arithmetic.mul
divide = arithmetic.div
power = arithmetic.pow
maximum = minimum_maximum.larger
minimum = minimum_maximum.smaller
remainder = rounding.remainder
floor_divide = rounding.floored_quotient
negative = arithmetic.neg
absolute = arithmetic.abs
sqrt = arithmetic.sqrt
square = arithmetic.square
reciprocal = arithmetic.reciprocal
floor = rounding.floor
ceil = rounding.ceil
rint = rounding.rint
trunc = rounding.trunc
where = minimum_maximum.where

exp = transcendental.exp
expm1 = transcendental.expm1
log = transcendental.log
log1p = transcendental.log1p
exp2 = transcendental.exp2
log2 = transcendental.log2
log10 = transcendental.log10
logaddexp = transcendental.logaddexp
sin = transcendental.sin
cos = transcendental.cos
tan = transcendental.tan
tanh = transcendental.tanh
arcsin = transcendental.arcsin
arccos = transcendental.arccos
arctan = transcendental.arctan
arctan2 = transcendental.arctan2
arcsinh = transcendental.arcsinh
arccosh = transcendental.arccosh
arctanh = transcendental.arctanh
sinh = transcendental.sinh
cosh = transcendental.cosh
sigmoid = transcendental.sigmoid
erf = transcendental.erf

sign = complex_numbers.sgn
conj = complex_numbers.conj
real = complex_numbers.real
imag = complex_numbers.imag
complex = complex_numbers.complex
angle = complex_numbers.angle
view_as_real = complex_numbers.view_as_real
view_as_complex = complex_numbers.view_as_complex

equal = comparison.eq
not_equal = comparison.ne
greater = comparison.gt
greater_equal = comparison.ge
less = comparison.lt
less_equal = comparison.le
logical_and = comparison.logical_and
logical_or = comparison.logical_or
logical_xor = comparison.logical_xor
logical_not = comparison.logical_not
isnan = comparison.isnan
isinf = comparison.isinf
isfinite = comparison.isfinite

max = extrema.amax
min = extrema.amin
argmax = extrema.argmax
argmin = extrema.argmin
any = _reduction.any
all = _reduction.all
cumsum = _reduction.cumsum
prod = products.prod
cumprod = products.cumprod

reshape = shape.reshape
transpose = shape.permute
broadcast_to = shape.broadcast_to
concatenate = shape.cat
stack = shape.stack
flip = shape.flip
copy = shape.clone
astype = _promotion.cast

diagonal = indexing.diagonal
diagonal_scatter = indexing.diagonal_scatter
scatter_index = indexing.scatter_index
put_index = overwriting.put_index
unfold, as_strided = windows_and_slices.unfold, windows_and_slices.as_strided
take_along_axis = indexing.take_along_axis
scatter_along_axis = indexing.scatter_along_axis

matmul = matrix_products.matmul
inv = matrices.inv
solve = matrices.solve
det = matrices.det
cofactors, cofactors_slope = matrices.cofactors, matrices.cofactors_slope
fourier = fourier_transforms.fourier
real_fourier = fourier_transforms.real_fourier
special = special_functions.special
eigh = factorizations.eigh
eig = factorizations.eig
conv2d_input_grad = convolution.conv2d_input_grad
conv2d_weight_grad = convolution.conv2d_weight_grad
avg_pool2d_input_grad = pooling.avg_pool2d_input_grad


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Over no axis at all where ``axis`` is empty, as in NumPy (PyTorch sums over all)."""
    return x if axis == () else _reduction.sum(x, axis, keepdims)


def conv2d(x: Tensor, weight: Tensor, **geometry: Any) -> Tensor:
    """Without a bias."""
    return convolution.conv2d(x, weight, None, **geometry)


def avg_pool2d(x: Tensor, *, kernel: Any, **geometry: Any) -> Tensor:
    """The mean of each window."""
    return pooling.avg_pool2d(x, kernel, **geometry)


def max_pool2d_input_grad(grad: Tensor, positions: Tensor, **geometry: Any) -> Tensor:
    """``grad`` where the maxima came from."""
    xp = sys.modules[__name__]
    return cpu_windows.max_pool2d_input_grad(xp, grad, positions, **geometry)


def recurrence_grads(
    kind: str, grads: Sequence[Tensor], results: Any, *inputs: Any, needs: Any, **geometry: Any
) -> tuple[Tensor | None, ...]:
    """What forward has kept is computed again: it depends on the inputs."""
    xp = sys.modules[__name__]
    results = recurrence.recurrence(xp, kind, *inputs, **geometry)
    return recurrence.recurrence_grads(xp, kind, grads, results, *inputs, needs=needs, **geometry)


def blockwise(formula: Any, *operands: Any, axes: tuple[int, ...] | None = None) -> Any:
    """The formula itself: its calls are recorded."""
    xp = sys.modules[__name__]
    return formula(xp, *operands) if axes is None else formula(xp, axes, *operands)


def getitem(x: Tensor, key: tuple[Any, ...], indices: Sequence[Tensor] = ()) -> Tensor:
    """``x[key]``, where ``indices`` take the places that ``cpu_indexing.INDEX`` marks."""
    return call(indexing._getitem, x, *indices, key=key)  # type: ignore[no-any-return]


def take_view(x: Tensor, steps: tuple[tuple[Any, ...], ...]) -> Tensor:
    """The part of ``x`` that ``steps`` lead to."""
    for name, *arguments in steps:
        x = globals()[name](x, *arguments)
    return x


def put_view(x: Tensor, value: Any, steps: tuple[tuple[Any, ...], ...]) -> Tensor:
    """A copy of ``x`` with ``value`` where ``steps`` lead."""
    return call(in_place.copy_slices, x, value, steps=steps)  # type: ignore[no-any-return]


def svd(x: Tensor, full_matrices: bool) -> Any:
    """The three factors."""
    return factorizations.svd(x, full_matrices)


def constant_beside(x: Tensor, array: Any) -> Tensor:
    """A constant, so nothing is recorded."""
    return device_moves.beside(x, array)


def zeros_beside(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """A constant, so nothing is recorded."""
    return creation.zeros(size, dtype=x.dtype, device=x.device)


def sum_to(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Sum ``x`` down to ``size``, from which broadcasting had made its shape."""
    if x.shape == size:
        return x
    lead = x.ndim - len(size)
    stretched = [lead + i for i, n in enumerate(size) if n == 1 and x.shape[lead + i] != 1]
    return reshape(_reduction.sum(x, (*range(lead), *stretched)), size)


class NoDerivative(NotImplementedError, AttributeError):
    """A formula uses what is not differentiable. Pickle, which looks for an object in all modules,
    goes on after an AttributeError."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise NoDerivative(
        f"the derivative of a formula that uses {name!r} is not implemented; create_graph=True "
        "cannot go through that operator"
    )
