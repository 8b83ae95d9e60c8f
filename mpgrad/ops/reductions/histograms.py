"""How many elements lie in each bin: ``histogram`` and ``histogramdd``, by NumPy, on the host.

Nothing here has a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["histogram", "histogramdd"]

#: More edges have no address.
BINS_MAX = 2**60


class Histogram(NamedTuple):
    """Counts, and the edges of the bins."""

    hist: Tensor
    bin_edges: Any


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements lie in each bin; the last one also has its right edge.

    Args:
        input: any shape.
        bins: how many of equal width; or their edges, a vector.
        range: the first and the last edge, by default the least and the largest element.
        weight: how much each element counts, of the shape of ``input``.
        density: divide, so that the integral is 1.

    Raises:
        RuntimeError: the arguments do not fit.
    """
    flat = input.detach().reshape(-1, 1)
    counts = [bins] if isinstance(bins, Tensor) else [int(bins)]
    found = histogramdd(flat, counts, range=range, weight=weight, density=density)
    return Histogram(found.hist, found.bin_edges[0])


def histogramdd(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """``histogram`` of vectors, in bins along each of their dimensions.

    Args:
        input: (..., dimensions).
        bins: how many along each dimension, one number or a list; or a list of vectors of edges.
        range: pairs of edges, one after another.
        weight: how much each vector counts.
        density: divide, so that the integral is 1.

    Returns:
        The counts, with a dimension for each, and a tuple of the edges.

    Raises:
        RuntimeError: the arguments do not fit.
    """
    if input.dtype.kind != "f" or input.ndim < 2:
        raise RuntimeError(
            f"histogramdd(): expected floating vectors, not {input.dtype} of {list(input.shape)}"
        )
    dims = input.shape[-1]
    if not dims:
        raise RuntimeError("histogramdd(): the vectors have no elements")
    points = on_host(input._array).reshape(-1, dims)
    given = list(bins) if isinstance(bins, list | tuple) else [bins] * dims
    if len(given) != dims:
        raise RuntimeError(
            f"histogramdd(): expected {dims} sequences of bin edges or counts, but got {len(given)}"
        )
    if range is not None and len(range) != 2 * dims:
        raise RuntimeError(f"histogramdd(): range should have {2 * dims} elements")
    if weight is not None and math.prod(weight.shape) != len(points):
        raise RuntimeError(
            f"histogramdd(): weight should have {len(points)} elements, not {list(weight.shape)}"
        )
    edges = [_edges(points[:, d], given[d], range, d).astype(points.dtype) for d in np.arange(dims)]
    weights = None if weight is None else on_host(weight._array).reshape(-1)
    hist, _ = np.histogramdd(points, edges, density=density, weights=weights)
    kept = tuple(beside(input, np.ascontiguousarray(edge)) for edge in edges)
    return Histogram(beside(input, hist.astype(points.dtype)), kept)


def _edges(values: Any, bins: Any, limits: Sequence[float] | None, dim: int) -> Any:
    """The edges along one dimension.

    Raises:
        RuntimeError: there are no or too many bins, or the edges are not ascending and finite.
    """
    if isinstance(bins, Tensor):
        edges = on_host(bins._array)
        if edges.ndim != 1 or len(edges) < 1 or np.any(np.diff(edges) < 0):
            raise RuntimeError("histogramdd(): bins must be vectors of ascending edges")
        return edges
    if not 0 < bins < BINS_MAX:
        raise RuntimeError(
            f"histogramdd(): bins must be > 0 and < 2**60, but got {bins} for dimension {dim}"
        )
    if limits is not None:
        low, high = limits[2 * dim], limits[2 * dim + 1]
    elif values.size:
        low, high = float(values.min()), float(values.max())
    else:
        low, high = 0.0, 1.0
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"histogramdd(): dimension {dim}'s range [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("histogramdd(): min should not exceed max")
    first, last = values.dtype.type(low), values.dtype.type(high)
    if first == last:
        first, last = first - values.dtype.type(0.5), last + values.dtype.type(0.5)
    # From both ends in this dtype, as in PyTorch: an element may lie beside an edge.
    step, half = (last - first) / values.dtype.type(bins), (bins + 1) // 2
    numbers = np.arange(bins + 1, dtype=values.dtype)
    return np.where(numbers < half, first + step * numbers, last - step * (bins - numbers))
