"""Elements taken together with those at an index: ``scatter_reduce`` and ``index_reduce``.

The first is the second along one line: each element is a slice of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.cpu_indexing import INDEX, accumulate_at
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.index_checks import as_vector
from mpgrad.ops.by_index.indexing import pick, scatter_index
from mpgrad.ops.by_index.overwriting import put_index
from mpgrad.ops.by_index.scattering import aimed, slices
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import refuse_complex
from mpgrad.ops.elementwise.arithmetic import add, div, mul
from mpgrad.ops.elementwise.minimum_maximum import clamp_min
from mpgrad.ops.new_tensors.creation import ones
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import clone, reshape
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["index_reduce", "scatter_reduce"]

Key = tuple[Any, ...]


def _extreme_grads(
    xp: Any, grad: Any, input: Any, source: Any, result: Any, indices: Any, key: Key, needs: Any
) -> Any:
    """An equal share for each element that equals the extremum of its place."""
    is_input = xp.astype(xp.equal(input, result), grad.dtype)
    is_source = xp.astype(xp.equal(source, xp.getitem(result, key, indices)), grad.dtype)
    ties = xp.add(is_input, xp.scatter_index(is_source, key, indices, input.shape))
    share = xp.divide(grad, ties)
    return (
        xp.multiply(is_input, share) if needs[0] else None,
        xp.multiply(is_source, xp.getitem(share, key, indices)) if needs[1] else None,
        *(None for _ in needs[2:]),
    )


#: ``found`` holds the extrema.
_extreme = operator(
    "scatter_reduce",
    lambda xp, input, source, found, *indices, key: xp.copy(found),
    joint=_extreme_grads,
)


def _extremes(input: Tensor, source: Tensor, key: Key, index: Tensor, ufunc: np.ufunc) -> Tensor:
    found = on_host(input._array).copy()
    place = tuple(on_host(index._array) if part is INDEX else part for part in key)
    accumulate_at(ufunc, found, place, on_host(source._array))
    return call(_extreme, input, source, beside(input, found), index, key=key)


def _products(input: Tensor, dim: int, source: Tensor, key: Key, index: Tensor) -> Tensor:
    """Round by round: each takes one of the slices that are left for each place."""
    targets = on_host(index._array)
    order = np.argsort(targets, kind="stable")
    _, starts, counts = np.unique(targets[order], return_index=True, return_counts=True)
    rounds = np.empty(len(targets), np.int64)
    rounds[order] = np.arange(len(targets)) - np.repeat(starts, counts)
    for number in range(max(counts, default=0)):
        chosen = np.flatnonzero(rounds == number)
        places = beside(input, targets[chosen])
        factors = pick(source, dim, beside(input, chosen))
        input = put_index(input, mul(pick(input, dim, places), factors), key, [places])
    return input


#: What stands at a place before elements come to it that do not count those that are there.
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1}
_EXTREMES = {"amax": np.maximum, "amin": np.minimum}


def _reduced(
    name: str,
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    include_self: bool,
) -> Tensor:
    """``input`` with the slices of ``source`` taken into those at ``index``, a vector."""
    key = (slice(None),) * dim + (INDEX,)
    if index.numel() == 0:
        return clone(input)
    kept = input if include_self else put_index(input, _neutral(reduce, input), key, [index])
    if reduce in _EXTREMES:
        refuse_complex(name, input)
        return _extremes(kept, source, key, index, _EXTREMES[reduce])
    if reduce == "prod":
        return _products(kept, dim, source, key, index)
    total = add(kept, scatter_index(source, key, [index], input.shape))
    if reduce == "sum":
        return total
    line = (INDEX,)
    dtype = input.dtype.to_real()
    start = ones(input.shape[dim], dtype=dtype, device=input.device)
    start = start if include_self else put_index(start, 0, line, [index])
    added = scatter_index(
        ones(index.numel(), dtype=dtype, device=input.device), line, [index], start.shape
    )
    counts = reshape(clamp_min(add(start, added), 1), (-1, *(1,) * (input.ndim - dim - 1)))
    return div(total, counts, rounding_mode=None if input.dtype.kind in "fc" else "floor")


def _neutral(reduce: str, input: Tensor) -> Any:
    if reduce in _NEUTRAL:
        return _NEUTRAL[reduce]
    least = reduce == "amax"
    if input.dtype.kind == "b":
        return not least
    if input.dtype.kind == "f":
        return -np.inf if least else np.inf
    limits = np.iinfo(input.dtype)
    return limits.min if least else limits.max


def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """``input`` with each element of ``src`` taken into the one at ``index`` along ``dim``.

    Args:
        input: any tensor.
        dim: of ``index``.
        index: int32 or int64; it may be shorter than ``src`` and, except along ``dim``, than
            ``input``.
        src: of the dtype of ``input``.
        reduce: ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"`` (or ``"max"``,
            ``"min"``); equal extrema share their gradient evenly.
        include_self: count the elements of ``input`` there, too.

    Raises:
        RuntimeError: another ``reduce``, shapes or dtypes do not fit, or an index is out of range.
    """
    reduce = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"scatter_reduce(): reduce argument must be either sum, prod, mean, amax or amin, got "
            f"{reduce}."
        )
    shape, targets, values = aimed("scatter_reduce", input, dim, index, src)
    found = _reduced("scatter_reduce", reshape(input, -1), 0, targets, values, reduce, include_self)
    return reshape(found, shape)


def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """``input`` with the slices of ``source`` taken into those at ``index`` along ``dim``.

    ``reduce`` is ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``; see ``scatter_reduce``.

    Raises:
        IndexError: an index is out of range.
        RuntimeError: another ``reduce``, or shapes or dtypes do not fit.
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got "
            f"{reduce}."
        )
    if input.ndim == 0:
        shaped = index_reduce(
            as_vector(input), dim, index, as_vector(source), reduce, include_self=include_self
        )
        return reshape(shaped, ())
    dim, index = one_dim(dim, input.ndim), as_vector(index)
    slices("index_reduce", input, dim, index, source, RuntimeError)
    return _reduced("index_reduce", input, dim, index, source, reduce, include_self)
