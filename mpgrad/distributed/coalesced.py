"""Collectives of several tensors at once, which travel as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.distributed.collectives import all_gather_parts
from mpgrad.distributed.futures import Future
from mpgrad.distributed.process_group import ProcessGroup, group_of
from mpgrad.distributed.reductions import ReduceOp, check_reducible, reduction
from mpgrad.distributed.tensor_buffers import flat_copy, put, started
from mpgrad.recording.tensors.tensor import Tensor

Array = Any


def all_reduce_coalesced(
    tensors: Tensor | Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Future | None:
    """Combine each of ``tensors`` over all ranks, in place, as :func:`all_reduce` does.

    Args:
        tensors: of one dtype, and of the same sizes on all ranks.
        op, group: as for :func:`all_reduce`; so are the other errors.
        async_op: return at once, with a Future.

    Raises:
        ValueError: there is none, or they differ in their dtypes.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    inputs = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for tensor in inputs:
        check_reducible("all_reduce", tensor._array.dtype, op)
    flat = _joined("tensors", inputs)
    operation = reduction(flat, op, group, lambda: _put_all(inputs, flat))
    work = started(group, operation, inputs, async_op)
    return None if work is None else work.get_future()


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Future | None:
    """Copy ``input_tensor_list[i]`` of rank k into ``output_tensor_lists[k][i]``, on all ranks.

    Args:
        output_tensor_lists: for each rank, a list of tensors like those of the input.
        input_tensor_list: of one dtype, and of the same sizes on all ranks.
        group: as for :func:`all_reduce`; so are the other errors.
        async_op: return at once, with a Future.

    Raises:
        ValueError: the lists are not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    flat = _joined("input_tensor_list", input_tensor_list)
    sizes = [tensor.numel() for tensor in input_tensor_list]
    if len(output_tensor_lists) != group.size() or any(
        [tensor.numel() for tensor in outputs] != sizes for outputs in output_tensor_lists
    ):
        raise ValueError(
            f"output_tensor_lists has to have a list for each of the {group.size()} ranks, each of "
            f"tensors of {sizes} elements"
        )

    def finish(parts: Array) -> None:
        for outputs, part in zip(output_tensor_lists, parts, strict=True):
            _put_all(outputs, part)

    work = all_gather_parts(flat, group, finish, output_tensor_lists, async_op)
    return None if work is None else work.get_future()


def _joined(name: str, tensors: Sequence[Tensor]) -> Array:
    parts = [_real(flat_copy(tensor)) for tensor in tensors]
    if len({part.dtype for part in parts}) != 1:
        raise ValueError(f"{name} has to have tensors, all of one dtype")
    return np.concatenate(parts)


def _real(flat: Array) -> Array:
    """Complex numbers as pairs, so that they travel with real ones."""
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _put_all(tensors: Sequence[Tensor], flat: Array) -> None:
    at = 0
    for tensor in tensors:
        dtype = tensor._array.dtype
        length = tensor.numel() * dtype.itemsize // flat.itemsize
        put(tensor, flat[at : at + length].view(dtype))
        at += length
