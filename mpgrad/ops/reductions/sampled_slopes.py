"""``gradient``: the slopes of a function from its samples (Fornberg, "Generation of finite
difference formulas on arbitrarily spaced grids", 1988)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.calling.dimensions import as_tuple, one_dim
from mpgrad.ops.calling.promotion import floating
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, reciprocal, sub
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import cat, reshape
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["gradient"]


def gradient(
    input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The slope along each of ``dim``, by central differences inside and one-sided ones at ends.

    Args:
        input: samples.
        spacing: how far they are apart: a number, one for each dimension, or a vector of the
            places along each.
        dim: an int, several, or None for all.
        edge_order: 1 or 2, of the differences at the ends.

    Raises:
        RuntimeError: a dimension has fewer than ``edge_order + 1`` samples, or the arguments do
            not fit.
    """
    x = floating(input)
    dims = range(x.ndim) if dim is None else as_tuple(dim)
    places = [one_dim(d, x.ndim) for d in dims]
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    if len(set(places)) != len(places):
        raise RuntimeError(f"dim {dims} appears multiple times in the list of dims")
    spacing = 1 if spacing is None else spacing
    several = isinstance(spacing, list | tuple)
    if several and len(spacing) != len(places):
        raise RuntimeError(
            "torch.gradient expected spacing to be unspecified, a scalar, or a list of length "
            f"{len(places)}, but got a list of length {len(spacing)}"
        )
    steps = list(spacing) if several else [spacing] * len(places)
    return tuple(_slope(x, d, step, edge_order) for d, step in zip(places, steps, strict=True))


def _slope(x: Tensor, dim: int, spacing: Any, edge_order: int) -> Tensor:
    length = x.shape[dim] if x.ndim else 0
    if length <= edge_order:
        raise RuntimeError(
            "torch.gradient expected each dimension size to be at least edge_order+1, but got "
            f"{length}"
        )
    steps = _steps(x, dim, spacing)
    before, after = steps[:-1], steps[1:]
    both = add(before, after)
    inside = (
        neg(div(after, mul(before, both))),
        div(sub(after, before), mul(before, after)),
        div(before, mul(after, both)),
    )
    parts = [_edge(x, dim, steps, edge_order, first=True)]
    if length > 2 and isinstance(spacing, Tensor) and spacing.ndim:
        parts.append(_weighted(x, dim, 0, inside))
    elif length > 2:  # the sample itself does not count, not even an infinite one
        rise = sub(narrow(x, dim, 2, length - 2), narrow(x, dim, 0, length - 2))
        size = spacing.item() if isinstance(spacing, Tensor) else spacing
        parts.append(div(rise, 2 * size))
    parts.append(_edge(x, dim, steps, edge_order, first=False))
    return cat(parts, dim)


def _steps(x: Tensor, dim: int, spacing: Any) -> Tensor:
    """How far the samples along ``dim`` are apart: (length - 1,).

    Raises:
        RuntimeError: there is not one place for each sample.
    """
    length = x.shape[dim]
    if not isinstance(spacing, Tensor) or spacing.ndim == 0:
        size = spacing.item() if isinstance(spacing, Tensor) else spacing
        dtype = np.result_type(
            x._array.dtype, np.complex64 if isinstance(size, complex) else np.bool_
        )
        return beside(x, np.full(length - 1, size, dtype))
    if spacing.shape != (length,):
        raise RuntimeError(
            "torch.gradient expected each element of a list of coordinates to have the length of "
            f"its dimension, {length}, but got {list(spacing.shape)}"
        )
    return sub(spacing[1:], spacing[:-1])


def _edge(x: Tensor, dim: int, steps: Tensor, order: int, *, first: bool) -> Tensor:
    """The slope at the first sample, or at the last, as one slice."""
    if order == 1:
        rise = reciprocal(steps[:1] if first else steps[-1:])
        return _weighted(x, dim, 0 if first else x.shape[dim] - 2, (neg(rise), rise))
    near, far = (steps[:1], steps[1:2]) if first else (steps[-1:], steps[-2:-1])
    total = add(near, far)
    weights = [
        neg(div(add(near, total), mul(near, total))),
        div(total, mul(near, far)),
        neg(div(near, mul(far, total))),
    ]
    if not first:
        weights = [neg(weight) for weight in reversed(weights)]
    return _weighted(x, dim, 0 if first else x.shape[dim] - 3, weights)


def _weighted(x: Tensor, dim: int, start: int, weights: Sequence[Tensor]) -> Tensor:
    """The sum of neighbours from ``start`` on, each with its row of weights along ``dim``."""
    total = None
    for at, row in enumerate(weights):
        shaped = reshape(row, (-1, *(1,) * (x.ndim - dim - 1)))
        term = mul(narrow(x, dim, start + at, row.shape[0]), shaped)
        total = term if total is None else add(total, term)
    assert total is not None
    return total
