"""Collectives that move tensors between the ranks of a group, and change no number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.process_group import ProcessGroup, get_group_rank, group_of
from mpgrad.distributed.tensor_buffers import (
    check_list,
    described,
    flat_copy,
    list_at_root,
    put,
    started,
    words,
)
from mpgrad.scheduler.hosts.collective_steps import (
    all_gather_steps,
    all_to_all_steps,
    broadcast_steps,
    gather_steps,
    scatter_steps,
)
from mpgrad.tensors.tensor import Tensor

Array = Any


def broadcast(
    tensor: Tensor,
    src: int,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy the ``tensor`` of rank ``src`` into that of all others.

    Args:
        tensor: of one size and dtype on all ranks.
        src: a rank of the world that belongs to the group.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = get_group_rank(group, src), flat_copy(tensor)
    is_root = group.rank() == root
    operation = Operation(
        words(f"broadcast from {root}", flat),
        broadcast_steps(group.rank(), group.size(), root),
        flat,
        flat,
        finish=None if is_root else lambda: put(tensor, flat),
    )
    return started(group, operation, tensor, async_op)


def all_gather(
    tensor_list: Sequence[Tensor],
    tensor: Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy the ``tensor`` of rank k into ``tensor_list[k]``, on all ranks.

    Args:
        tensor_list: one tensor for each rank, each of the size and dtype of ``tensor``.
        tensor: of one size and dtype on all ranks.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: ``tensor_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    check_list("tensor_list", tensor_list, tensor, group)

    def finish(parts: Array) -> None:
        for target, part in zip(tensor_list, parts, strict=True):
            put(target, part)

    return _all_gather(tensor, group, finish, tensor_list, async_op)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy the ``input_tensor`` of all ranks into ``output_tensor``, one after another.

    Args:
        output_tensor: with as many elements as the tensors of all ranks together.
        input_tensor: of one size and dtype on all ranks.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the sizes do not fit.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    if output_tensor.numel() != input_tensor.numel() * group.size():
        raise ValueError(
            "output tensor size must be equal to world_size times input tensor size: "
            f"{described(output_tensor)} and {described(input_tensor)}"
        )
    finish = lambda parts: put(output_tensor, parts)  # noqa: E731
    return _all_gather(input_tensor, group, finish, output_tensor, async_op)


def _all_gather(
    tensor: Tensor,
    group: ProcessGroup,
    finish: Callable[[Array], None],
    output: Any,
    async_op: bool,
) -> Work | None:
    rank, ranks, flat = group.rank(), group.size(), flat_copy(tensor)
    parts = np.empty((ranks, flat.size), flat.dtype)
    parts[rank] = flat
    operation = Operation(
        words("all_gather", flat),
        all_gather_steps(rank, ranks),
        flat,
        parts.reshape(-1),
        target_cuts=ranks,
        finish=lambda: finish(parts),
    )
    return started(group, operation, output, async_op)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy the ``tensor`` of rank k into ``gather_list[k]`` of rank ``dst``.

    Args:
        tensor: of one size and dtype on all ranks.
        gather_list: on ``dst`` one tensor for each rank, like ``tensor``; None elsewhere.
        dst: a rank of the world that belongs to the group.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: ``gather_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = get_group_rank(group, dst), flat_copy(tensor)
    rank, ranks = group.rank(), group.size()
    targets = list_at_root("gather_list", gather_list, tensor, group, root)
    parts = np.empty((ranks if rank == root else 0, flat.size), flat.dtype)

    def finish() -> None:
        for target, part in zip(targets, parts, strict=True):
            put(target, part)

    if rank == root:
        parts[rank] = flat
    operation = Operation(
        words(f"gather to {root}", flat),
        gather_steps(rank, ranks, root),
        flat,
        parts.reshape(-1),
        target_cuts=ranks,
        finish=finish,
    )
    return started(group, operation, gather_list, async_op)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy ``scatter_list[k]`` of rank ``src`` into the ``tensor`` of rank k.

    Args:
        tensor: of one size and dtype on all ranks; it is overwritten.
        scatter_list: on ``src`` one tensor for each rank, like ``tensor``; None elsewhere.
        src: a rank of the world that belongs to the group.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: ``scatter_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = get_group_rank(group, src), flat_copy(tensor)
    rank, ranks = group.rank(), group.size()
    parts = list_at_root("scatter_list", scatter_list, tensor, group, root)
    source = np.concatenate([flat_copy(part) for part in parts]) if parts else flat[:0]
    if parts:
        flat[:] = source.reshape(ranks, -1)[rank]
    operation = Operation(
        words(f"scatter from {root}", flat),
        scatter_steps(rank, ranks, root),
        source,
        flat,
        source_cuts=ranks,
        finish=lambda: put(tensor, flat),
    )
    return started(group, operation, tensor, async_op)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy ``input_tensor_list[k]`` of rank j into ``output_tensor_list[j]`` of rank k.

    Args:
        output_tensor_list: one tensor for each rank; they are overwritten.
        input_tensor_list: one tensor for each rank; all tensors have one size and dtype.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the lists are not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    check_list("input_tensor_list", input_tensor_list, input_tensor_list[0], group)
    check_list("output_tensor_list", output_tensor_list, input_tensor_list[0], group)

    def finish(parts: Array) -> None:
        for target, part in zip(output_tensor_list, parts, strict=True):
            put(target, part)

    source = np.concatenate([flat_copy(tensor) for tensor in input_tensor_list])
    return _all_to_all(source, group, finish, output_tensor_list, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy part k of the ``input`` of rank j into part j of the ``output`` of rank k.

    Args:
        output: as many elements as ``input``; it is overwritten.
        input: is cut into equal parts along its first dimension, one for each rank.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the sizes do not fit.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    if input.ndim == 0 or input.shape[0] % group.size() or output.numel() != input.numel():
        raise ValueError(
            f"Tensor's dim 0 does not divide equally across group size: {described(input)} among "
            f"{group.size()} ranks, into {described(output)}"
        )
    finish = lambda parts: put(output, parts)  # noqa: E731
    return _all_to_all(flat_copy(input), group, finish, output, async_op)


def _all_to_all(
    source: Array,
    group: ProcessGroup,
    finish: Callable[[Array], None],
    output: Any,
    async_op: bool,
) -> Work | None:
    rank, ranks = group.rank(), group.size()
    parts = np.empty_like(source).reshape(ranks, -1)
    parts[rank] = source.reshape(ranks, -1)[rank]
    operation = Operation(
        words("all_to_all", source),
        all_to_all_steps(rank, ranks),
        source,
        parts.reshape(-1),
        source_cuts=ranks,
        target_cuts=ranks,
        finish=lambda: finish(parts),
    )
    return started(group, operation, output, async_op)
