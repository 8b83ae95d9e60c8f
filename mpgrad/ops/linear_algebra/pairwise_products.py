"""Products and distances of pairs of vectors: kron, cross, cdist, pdist, bilinear."""

from __future__ import annotations

import numpy as np

from mpgrad.ops.by_index.indexing import index_select
from mpgrad.ops.by_index.overwriting import cleared
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.elementwise.arithmetic import add, mul, sub
from mpgrad.ops.linear_algebra.einsum import einsum
from mpgrad.ops.linear_algebra.norms import norm
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.joining import broadcast_tensors
from mpgrad.ops.shapes.shape import reshape, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["bilinear", "cdist", "cross", "kron", "pdist"]


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: each element of ``input`` times all of ``other``, as blocks."""
    ndim = max(input.ndim, other.ndim)
    left = (1,) * (ndim - input.ndim) + tuple(input.shape)
    right = (1,) * (ndim - other.ndim) + tuple(other.shape)
    blocks = mul(
        reshape(input, tuple(n for length in left for n in (length, 1))),
        reshape(other, tuple(n for length in right for n in (1, length))),
    )
    return reshape(blocks, tuple(a * b for a, b in zip(left, right, strict=True)))


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of length 3 along ``dim``; other dimensions broadcast.

    Args:
        dim: if it is None, the first dimension of ``input`` that has length 3.

    Raises:
        RuntimeError: a vector has another length, or the numbers of dimensions differ.
    """
    if dim is None:
        if 3 not in input.shape:
            raise RuntimeError("no dimension of size 3 in input")
        dim = tuple(input.shape).index(3)
    if input.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    dim = one_dim(dim, input.ndim)
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. "
            f"Got {input.shape[dim]} and {other.shape[dim]}"
        )
    input, other = broadcast_tensors(input, other)
    after, before = (beside(input, np.array(places)) for places in ([1, 2, 0], [2, 0, 1]))
    return sub(
        mul(index_select(input, dim, after), index_select(other, dim, before)),
        mul(index_select(input, dim, before), index_select(other, dim, after)),
    )


def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    """The distance (the ``p``-norm of the difference) of each row of ``x1`` from each of ``x2``.

    Args:
        x1: (..., rows, columns).
        x2: (..., other rows, columns); leading dimensions broadcast.
        p: from 0.
        compute_mode: kept for PyTorch's callers; differences are always taken.

    Returns:
        (..., rows, other rows). The differences take ``columns`` times its memory.

    Raises:
        RuntimeError: the columns do not fit, there are no rows, or ``p`` is negative.
    """
    if x1.dtype != x2.dtype:
        raise RuntimeError(f"cdist: expected one dtype, but got {x1.dtype} and {x2.dtype}")
    if x1.ndim < 2 or x2.ndim < 2:
        raise RuntimeError("cdist only supports at least 2D tensors")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    return length_of(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances (the ``p``-norm of the difference) of all pairs of rows, in order.

    Args:
        input: (rows, columns).
        p: from 0.

    Returns:
        (rows * (rows - 1) / 2,).

    Raises:
        RuntimeError: ``input`` is no matrix, or ``p`` is negative.
    """
    if input.ndim != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")
    first, second = np.triu_indices(input.shape[0], 1)
    left, right = (index_select(input, 0, beside(input, places)) for places in (first, second))
    return length_of(sub(left, right), p)


def length_of(difference: Tensor, p: float) -> Tensor:
    """The ``p``-norm over the last dimension; a count of elements (0) has a gradient of zeros."""
    found = norm(difference, p, -1)
    if p == 0 and difference.requires_grad:
        return add(found, sum_over(cleared(difference), -1))
    return found


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input1 @ weight[k] @ input2 + bias[k]`` for each output ``k``.

    Args:
        input1: (..., in1).
        input2: (..., in2).
        weight: (out, in1, in2).
        bias: (out,) or None.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if input1.shape[:-1] != input2.shape[:-1] or weight.ndim != 3:
        raise RuntimeError(
            "bilinear(): input batch dimensions do not match: got "
            f"{list(input1.shape)}, {list(input2.shape)} and a weight {list(weight.shape)}"
        )
    if input1.shape[-1] != weight.shape[1] or input2.shape[-1] != weight.shape[2]:
        raise RuntimeError(
            f"bilinear(): input1 size does not match weight size: got {list(input1.shape)}, "
            f"{list(input2.shape)} but expected {list(weight.shape[1:])}"
        )
    rows = einsum(
        "ni,kij,nj->nk",
        reshape(input1, (-1, input1.shape[-1])),
        weight,
        reshape(input2, (-1, input2.shape[-1])),
    )
    out = reshape(rows, (*input1.shape[:-1], weight.shape[0]))
    return out if bias is None else add(out, bias)
