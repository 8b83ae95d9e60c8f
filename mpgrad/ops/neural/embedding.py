"""Whole numbers as vectors: rows of a table, or one at the place of the number."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import value_check
from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import pick
from mpgrad.ops.elementwise.arithmetic import add, div, mul
from mpgrad.ops.elementwise.comparison import eq, gt
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.linear_algebra.norms import norm
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import unsqueeze
from mpgrad.recording.dispatch.in_place import overwrite
from mpgrad.recording.dispatch.operator_call import call, namespace_for, unrecorded
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

#: Rows whose gradients are divided by how often each of them is asked for.
_by_frequency = operator(
    "embedding_by_frequency",
    lambda xp, input, counts: xp.copy(input),
    input=lambda xp, grad, counts: xp.divide(grad, counts),
)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of ``weight`` at ``input``.

    Args:
        input: indices, of any shape.
        weight: (rows, features).
        padding_idx: a row that gets no gradient.
        max_norm: looked-up rows with a greater norm are scaled to it, in place.
        norm_type: which norm.
        scale_grad_by_freq: the gradient of a row is divided by how often it is asked for.
        sparse: has no effect: gradients are dense.

    Returns:
        (*shape of ``input``, features).

    Raises:
        RuntimeError: the indices are no integers, or ``weight`` is no matrix.
        IndexError: there is no such row.
        AssertionError: there is no row ``padding_idx``.
    """
    if input.dtype.kind not in "iu" or weight.ndim != 2:
        raise RuntimeError(
            f"embedding: expected integer indices and a 2-D weight, but got {input.dtype} and "
            f"{weight.ndim}-D"
        )
    check_range(on_host(input._array), weight.shape[0])
    if max_norm is not None:
        _limit_norms(weight, on_host(input._array), max_norm, norm_type)
    rows = pick(weight, 0, input)
    if scale_grad_by_freq:
        _, places, counts = np.unique(
            on_host(input._array), return_inverse=True, return_counts=True
        )
        often = counts[places].reshape((*input.shape, 1)).astype(weight.dtype)
        rows = call(_by_frequency, rows, beside(weight, often))
    if padding_idx is None:
        return rows
    if not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise AssertionError("Padding_idx must be within num_embeddings")
    is_padding = unsqueeze(eq(input, padding_idx % weight.shape[0]), -1)
    return where(is_padding, Tensor(rows._array), rows)


def _limit_norms(weight: Tensor, indices: Any, max_norm: float, norm_type: float) -> None:
    """Scale those rows of ``weight`` down whose norm is greater than ``max_norm``."""
    with no_grad():
        places = beside(weight, np.unique(indices))
        rows = pick(weight, 0, places)
        norms = norm(rows, norm_type, 1, keepdim=True)
        scaled = where(gt(norms, max_norm), mul(rows, div(max_norm, add(norms, 1e-7))), rows)
        overwrite(
            weight,
            (scaled, places),
            lambda array, new, at: namespace_for(array).assign_index(array, new, (INDEX,), (at,)),
        )


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros with a 1 at the index, in a new last dimension; as many classes as needed if -1.

    Raises:
        RuntimeError: the indices are no integers, or one is negative or no class.
    """
    if tensor.dtype.kind not in "iu":
        raise RuntimeError(f"one_hot is only applicable to index tensors, not to {tensor.dtype}")
    array = on_host(tensor._array)
    classes = (int(array.max()) + 1 if array.size else 0) if num_classes == -1 else num_classes
    check_range(on_host(tensor._array), classes, RuntimeError)
    return unrecorded(
        lambda xp, x: xp.astype(xp.equal(x[..., None], xp.arange(classes)), np.int64), tensor
    )


@value_check
def check_range(array: Any, count: int, error: type[Exception] = IndexError) -> None:
    """Raise ``error`` unless all elements of ``array`` are in [0, ``count``)."""
    if array.size and (array.min() < 0 or array.max() >= count):
        raise error(f"index out of range: {array.min()} to {array.max()} of {count}")
