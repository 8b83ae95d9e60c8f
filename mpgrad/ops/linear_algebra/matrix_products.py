"""Matrix products: ``matmul`` with PyTorch's broadcasting, and ``linear`` as one operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.by_index.overwriting import cleared
from mpgrad.ops.calling.dimensions import INTEGERS, one_dim
from mpgrad.ops.calling.promotion import as_tensor_operand, require_tensors, stored
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.elementwise.complex_numbers import conj
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import broadcast_to, permute, reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "addmm",
    "baddbmm",
    "bmm",
    "dot",
    "ger",
    "inner",
    "linear",
    "matmul",
    "mm",
    "mv",
    "outer",
    "tensordot",
    "vdot",
]


def _rows(xp: Any, x: Any) -> Any:
    """All dimensions but the last joined, so that one product serves the whole batch."""
    return x if x.ndim == 2 else xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _swapped(xp: Any, x: Any) -> Any:
    """The transpose of the last two dimensions."""
    if x.ndim == 2:
        return xp.transpose(x, (1, 0))
    order = list(range(x.ndim))
    order[-2:] = reversed(order[-2:])
    return xp.transpose(x, tuple(order))


def _check_dtypes(name: str, *values: Tensor) -> None:
    """Raise unless all have one dtype, and one that products are taken of.

    Raises:
        RuntimeError: they differ.
        NotImplementedError: they are boolean.
    """
    first = values[0]._array.dtype
    for value in values:
        if value._array.dtype != first:
            raise RuntimeError(
                f"{name}: expected all to have the same dtype, but got: "
                f"{', '.join(str(v.dtype) for v in values)}"
            )
    if first.kind == "b":
        raise NotImplementedError(f"{name} is not implemented for bool")


def _product(xp: Any, a: Any, b: Any) -> Any:
    """``a @ b`` of matrices or batches; a batch times one matrix is one product."""
    if b.ndim == 2 and a.ndim > 2:
        return xp.reshape(xp.matmul(_rows(xp, a), b), (*a.shape[:-1], b.shape[-1]))
    return xp.matmul(a, b)


def _product_grad_right(xp: Any, grad: Any, a: Any, b_shape: tuple[int, ...]) -> Any:
    if len(b_shape) == 2:
        return xp.matmul(_swapped(xp, _rows(xp, a)), _rows(xp, grad))
    return xp.sum_to(xp.matmul(_swapped(xp, a), grad), b_shape)


def _columns_of_right(offered: dict[str, Any], columns: slice) -> dict[str, Any]:
    """For some columns of ``grad @ b.T``: these rows of ``b``."""
    shape = (*offered["a_shape"][:-1], columns.stop - columns.start)
    return {**offered, "b": offered["b"][..., columns, :], "a_shape": shape}


_matmul = operator(
    "matmul",
    _product,
    in_columns=_columns_of_right,
    a=lambda xp, grad, b, a_shape: xp.sum_to(_product(xp, grad, _swapped(xp, b)), a_shape),
    b=_product_grad_right,
)


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product; leading dimensions are batches and broadcast.

    A 1-d operand is a row on the left and a column on the right, and its dimension is dropped.

    Raises:
        RuntimeError: the shapes do not fit, an operand is 0-d, or the dtypes differ.
        NotImplementedError: they are boolean.
    """
    a, b = as_tensor_operand(input), as_tensor_operand(other)
    _check_dtypes("matmul", a, b)
    left_shape, right_shape = a._array.shape, b._array.shape
    if not (left_shape and right_shape):
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D"
        )
    is_row, is_column = len(left_shape) == 1, len(right_shape) == 1
    if left_shape[-1] != right_shape[-1 if is_column else -2]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, left_shape))} and {'x'.join(map(str, right_shape))})"
        )
    if not (is_row or is_column):
        return _matmul.run(a, b)  # type: ignore[no-any-return]
    left = reshape(a, (1, -1)) if is_row else a
    right = reshape(b, (-1, 1)) if is_column else b
    product = call(_matmul, left, right)
    batch = product.shape[:-2]
    kept = product.shape[-2:-1] if not is_row else product.shape[-1:] if not is_column else ()
    return reshape(product, batch + kept)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices.

    Raises:
        RuntimeError: an operand is no matrix.
    """
    require_tensors("mm", input=input, mat2=mat2)
    if input.ndim != 2 or mat2.ndim != 2:
        raise RuntimeError(f"mm: both must be matrices, got {input.ndim}D and {mat2.ndim}D tensors")
    return matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices, one by one.

    Raises:
        RuntimeError: an operand is not 3-d, or the batches differ.
    """
    require_tensors("bmm", input=input, mat2=mat2)
    if input.ndim != 3 or mat2.ndim != 3 or input.shape[0] != mat2.shape[0]:
        raise RuntimeError(
            f"bmm: batch1 and batch2 must be 3D tensors of one batch size, got {input.shape} and "
            f"{mat2.shape}"
        )
    return matmul(input, mat2)


def dot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors.

    Raises:
        RuntimeError: an operand is not 1-d.
    """
    require_tensors("dot", input=input, other=other)
    if input.ndim != 1 or other.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.ndim}D and {other.ndim}D tensors")
    return matmul(input, other)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector.

    Raises:
        RuntimeError: they are no matrix and no vector.
    """
    require_tensors("mv", input=input, vec=vec)
    if input.ndim != 2 or vec.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {vec.ndim}, {input.ndim}")
    return matmul(input, vec)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The product of each element of one vector with each of another.

    Raises:
        RuntimeError: an operand is not 1-d.
    """
    require_tensors("outer", input=input, vec2=vec2)
    if input.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"outer: Expected 1-D arguments, got {input.ndim}D and {vec2.ndim}D")
    return mul(reshape(input, (-1, 1)), vec2)


ger = outer


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The inner products of the last dimensions, for every pair of vectors.

    Raises:
        RuntimeError: the last dimensions or the dtypes differ.
    """
    require_tensors("inner", input=input, other=other)
    if input.ndim == 0 or other.ndim == 0:
        return mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, the first one conjugated."""
    return dot(conj(input), other)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sums of products over some dimensions of both.

    Args:
        a, b: any tensors.
        dims: how many of the last of ``a`` and the first of ``b``; or two lists of dimensions.

    Raises:
        RuntimeError: the dimensions do not have equal lengths.
    """
    if isinstance(dims, INTEGERS):
        dims = (range(a.ndim - dims, a.ndim), range(dims))
    left = [one_dim(d, a.ndim) for d in dims[0]]
    right = [one_dim(d, b.ndim) for d in dims[1]]
    # A dimension of length 1 is repeated, as in PyTorch.
    for d, other in zip(left, right, strict=True):
        if a.shape[d] == 1 and b.shape[other] != 1:
            b = sum_over(b, other, True, dtype=b.dtype)
        elif b.shape[other] == 1 and a.shape[d] != 1:
            a = sum_over(a, d, True, dtype=a.dtype)
    lengths = [a.shape[d] for d in left]
    if lengths != [b.shape[d] for d in right]:
        raise RuntimeError(
            f"contracted dimensions need to match, but got {lengths} and "
            f"{[b.shape[d] for d in right]}"
        )
    kept_a = [d for d in range(a.ndim) if d not in left]
    kept_b = [d for d in range(b.ndim) if d not in right]
    joined = math.prod(lengths)
    rows = reshape(permute(a, *kept_a, *left), (math.prod(a.shape[d] for d in kept_a), joined))
    columns = reshape(permute(b, *right, *kept_b), (joined, math.prod(b.shape[d] for d in kept_b)))
    shape = [a.shape[d] for d in kept_a] + [b.shape[d] for d in kept_b]
    return reshape(matmul(rows, columns), tuple(shape))


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * (mat1 @ mat2)``."""
    return added("addmm", input, mm(mat1, mat2), beta, alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)``, matrix by matrix."""
    return added("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def added(name: str, input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta * input + alpha * product``; where ``beta`` is 0, ``input`` may hold NaN.

    Raises:
        RuntimeError: the dtypes differ, or ``input`` does not broadcast to the product.
    """
    _check_dtypes(name, input, product)
    input = broadcast_to(input, product.shape)
    beta, alpha = (stored(factor, product._array.dtype) for factor in (beta, alpha))
    scaled = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        return add(cleared(input), scaled) if input.requires_grad else scaled
    return add(input if beta == 1 else mul(input, beta), scaled)


def _linear_forward(xp: Any, input: Any, weight: Any, bias: Any) -> Any:
    out = xp.matmul(_rows(xp, input), _swapped(xp, weight))
    if bias is not None:
        out += bias
    return xp.reshape(out, (*input.shape[:-1], weight.shape[0]))


def _columns_of_weight(offered: dict[str, Any], columns: slice) -> dict[str, Any]:
    """For some columns of ``grad @ weight``: these columns of it."""
    shape = (*offered["input_shape"][:-1], columns.stop - columns.start)
    return {**offered, "weight": offered["weight"][:, columns], "input_shape": shape}


_linear = operator(
    "linear",
    _linear_forward,
    in_columns=_columns_of_weight,
    input=lambda xp, grad, weight, input_shape: xp.reshape(
        xp.matmul(_rows(xp, grad), weight), input_shape
    ),
    weight=lambda xp, grad, input: xp.matmul(_swapped(xp, _rows(xp, grad)), _rows(xp, input)),
    bias=lambda xp, grad, bias_shape: xp.sum_to(grad, bias_shape),
)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``.

    Args:
        input: (..., in features).
        weight: (out features, in features), or (in features,) for a result without features.
        bias: (out features,), or what broadcasts to it, or None.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if isinstance(input, np.ndarray):
        input = Tensor(input)
    x, w = input._array, weight._array
    if w.ndim == 1:
        product = matmul(input, weight)
        return product if bias is None else add(product, bias)
    if bias is not None and bias._array.shape != w.shape[:1] and bias._array.size == 1:
        bias = broadcast_to(bias, w.shape[:1])
    if w.ndim != 2 or x.ndim == 0 or x.shape[-1] != w.shape[1]:
        raise RuntimeError(
            f"linear: mat1 and mat2 shapes cannot be multiplied: input {x.shape} and weight "
            f"{w.shape}; the last of input must equal the last of weight"
        )
    if bias is not None and bias._array.shape != w.shape[:1]:
        raise RuntimeError(f"linear: bias has shape {bias._array.shape}, expected {w.shape[:1]}")
    if (bias is not None and bias._array.dtype != w.dtype) or x.dtype != w.dtype:
        raise RuntimeError(
            "linear: mat1 and mat2 must have the same dtype, but got input "
            f"{input.dtype}, weight {weight.dtype}, bias {bias.dtype if bias is not None else None}"
        )
    return _linear.run(input, weight, bias)  # type: ignore[no-any-return]
