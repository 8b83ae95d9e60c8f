"""embedding_bag(): sums, means and maxima of groups of rows of a table."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import index_select, pick
from mpgrad.ops.by_index.scattering import index_add
from mpgrad.ops.elementwise.arithmetic import div, mul
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.neural.embedding import embedding
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.extrema import max as max_over
from mpgrad.ops.shapes.shape import reshape, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of ``weight`` in each bag of indices.

    Args:
        input: (bags, indices of each), or all in one row with ``offsets``.
        weight: (rows, features). (The first two may change places, as they once did in PyTorch.)
        offsets: where each bag begins in the row of indices.
        max_norm: see ``embedding``, as for the next three.
        norm_type: which norm.
        scale_grad_by_freq: see ``embedding``.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; an empty bag gives zeros.
        sparse: changes nothing.
        per_sample_weights: of the shape of ``input``, for sums.
        include_last_offset: the last offset is the end of the last bag.
        padding_idx: an index that counts as none.

    Returns:
        (bags, features).

    Raises:
        ValueError: the arguments do not fit.
        NotImplementedError: weights for another mode than the sum.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    input, weight = _in_order(input, weight)
    _check_sample_weights(input, weight, per_sample_weights, mode)
    indices, bags, count = _bags(input, offsets, include_last_offset)
    rows = embedding(indices, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    counts = np.ones(len(bags), bool)
    if padding_idx is not None:
        counts = on_host(indices._array) != padding_idx % weight.shape[0]
    chosen = np.flatnonzero(counts)
    if len(chosen) < len(bags):
        rows = index_select(rows, 0, beside(rows, chosen))
    bags = bags[counts]
    if mode == "max":
        return _largest(rows, bags, count)
    if per_sample_weights is not None:
        weights = index_select(reshape(per_sample_weights, (-1,)), 0, beside(rows, chosen))
        rows = mul(rows, unsqueeze(weights, 1))
    empty = zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    total = index_add(empty, 0, beside(rows, bags), rows)
    if mode == "sum":
        return total
    sizes = np.maximum(np.bincount(bags, minlength=count), 1).astype(rows.dtype)
    return div(total, beside(rows, sizes[:, None]))


def _in_order(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and weights, which may come in the order that they once had in PyTorch."""
    if not (weight.dtype == np.int64 and input.dtype.kind == "f"):
        return input, weight
    warnings.warn(
        "Argument order of nn.functional.embedding_bag was changed. Usage `embedding_bag(weight, "
        "input, ...)` is deprecated, and should now be `embedding_bag(input, weight, ...)`.",
        UserWarning,
        stacklevel=3,
    )
    return weight, input


def _check_sample_weights(input: Tensor, table: Tensor, weights: Tensor | None, mode: str) -> None:
    if weights is None:
        return
    if weights.dtype != table.dtype:
        raise RuntimeError(
            "embedding_bag: Expected 'weight' to have the same type as 'per_sample_weights', but "
            f"got {table.dtype} and {weights.dtype}"
        )
    if mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only "
            f"supported for mode='sum' (got mode='{mode}')."
        )
    if weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({list(weights.shape)}) is not None, then it "
            f"must have the same shape as the input ({list(input.shape)})"
        )


def _bags(input: Tensor, offsets: Tensor | None, ends: bool) -> tuple[Tensor, Any, int]:
    """The indices in one row, the bag of each, and how many bags there are."""
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch "
                f"of fixed length sequences. However, found offsets of type {type(offsets)}"
            )
        bags = np.repeat(np.arange(input.shape[0]), input.shape[1])
        return reshape(input, (-1,)), bags, input.shape[0]
    if input.ndim != 1:
        raise ValueError(
            f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}"
        )
    if offsets is None or offsets.ndim != 1:
        raise ValueError("if input is 1D, then offsets has to be a 1D Tensor, but got another")
    starts = on_host(offsets._array)
    if len(starts) and starts[0] != 0:
        raise RuntimeError(
            f"offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {starts[0]}"
        )
    starts = starts[:-1] if ends else starts
    return input, np.searchsorted(starts, np.arange(input.shape[0]), "right") - 1, len(starts)


def _largest(rows: Tensor, bags: Any, count: int) -> Tensor:
    sizes = np.bincount(bags, minlength=count)
    order = np.argsort(bags, kind="stable")
    width = max(int(sizes.max(initial=0)), 1)
    if not len(bags):  # the sum of nothing
        empty = zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
        return index_add(empty, 0, beside(rows, bags), rows)
    places = np.minimum(
        (np.cumsum(sizes) - sizes)[:, None] + np.arange(width), max(len(bags) - 1, 0)
    )
    inside = np.arange(width) < sizes[:, None]
    padded = pick(rows, 0, beside(rows, order[places]))
    padded = where(beside(rows, inside[..., None]), padded, -np.inf)
    best = max_over(padded, 1).values
    return where(beside(rows, sizes[:, None] > 0), best, 0.0)  # type: ignore[no-any-return]
