"""Collectives that move tensors between the ranks of a group, and change no number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.process_group import ProcessGroup, group_of, rank_in, root_in
from mpgrad.distributed.states.collective_steps import (
    ANSWERS,
    all_gather_steps,
    all_to_all_steps,
    broadcast_steps,
    gather_steps,
    scatter_steps,
)
from mpgrad.distributed.states.reduction_tree import REPLACE, Receive, Send, Step
from mpgrad.distributed.tensor_buffers import (
    check_list,
    check_parts,
    described,
    flat_copy,
    list_at_root,
    put,
    started,
    words,
)
from mpgrad.recording.tensors.tensor import Tensor

Array = Any


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the ``tensor`` of rank ``src`` into that of all others.

    Args:
        tensor: of one size and dtype on all ranks.
        src: a rank of the world that belongs to the group.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.
        group_src: in place of ``src``, a rank of the group.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = rank_in(group, src, group_src), flat_copy(tensor)
    is_root = group.rank() == root
    operation = Operation(
        words(f"broadcast from {root}", flat),
        answered(broadcast_steps(group.rank(), group.size(), root)),
        flat,
        flat,
        finish=None if is_root else lambda: put(tensor, flat),
    )
    return started(group, operation, tensor, async_op)


def answered(steps: Sequence[Step]) -> list[Step]:
    """``steps`` of one phase in which whoever gets something says so, and the sender waits for it.

    Without that, ranks that all send would never learn that nobody wants to receive.
    """
    told = [Send(s.peer, ANSWERS, 0, 0) for s in steps if isinstance(s, Receive)]
    heard = [Receive(s.peer, ANSWERS, 0, 0, REPLACE) for s in steps if isinstance(s, Send)]
    return [*steps, *told, *heard]


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

    return all_gather_parts(flat_copy(tensor), group, finish, tensor_list, async_op)


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
    return all_gather_parts(flat_copy(input_tensor), group, finish, output_tensor, async_op)


#: As newer programs call it.
all_gather_single = all_gather_into_tensor


def all_gather_parts(
    flat: Array,
    group: ProcessGroup,
    finish: Callable[[Array], None],
    output: Any,
    async_op: bool,
) -> Work | None:
    """Gather the flat arrays of all ranks; ``finish`` gets them, one in each row."""
    rank, ranks = group.rank(), group.size()
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
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Copy the ``tensor`` of rank k into ``gather_list[k]`` of rank ``dst``.

    Args:
        tensor: of one size and dtype on all ranks.
        gather_list: on ``dst`` one tensor for each rank, like ``tensor``; None elsewhere.
        dst: a rank of the world that belongs to the group; 0 by default.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.
        group_dst: in place of ``dst``, a rank of the group.

    Raises:
        ValueError: ``gather_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = root_in(group, dst, group_dst), flat_copy(tensor)
    rank, ranks = group.rank(), group.size()
    targets = list_at_root("gather_list", gather_list, tensor, group, root, "destination")
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
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy ``scatter_list[k]`` of rank ``src`` into the ``tensor`` of rank k.

    Args:
        tensor: of one size and dtype on all ranks; it is overwritten.
        scatter_list: on ``src`` one tensor for each rank, like ``tensor``; None elsewhere.
        src: a rank of the world that belongs to the group; 0 by default.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.
        group_src: in place of ``src``, a rank of the group.

    Raises:
        ValueError: ``scatter_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = root_in(group, src, group_src), flat_copy(tensor)
    rank, ranks = group.rank(), group.size()
    parts = list_at_root("scatter_list", scatter_list, tensor, group, root, "source")
    source = np.concatenate([flat_copy(part) for part in parts]) if parts else flat[:0]
    if parts:
        flat[:] = source.reshape(ranks, -1)[rank]
    operation = Operation(
        words(f"scatter from {root}", flat),
        answered(scatter_steps(rank, ranks, root)),
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
        output_tensor_list: one tensor for each rank, of the size of what it sends; overwritten.
        input_tensor_list: one tensor for each rank; all tensors have one dtype.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the lists are not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    dtype = input_tensor_list[0].dtype
    check_parts("input_tensor_list", input_tensor_list, dtype, group)
    check_parts("output_tensor_list", output_tensor_list, dtype, group)
    cuts = _cuts([tensor.numel() for tensor in output_tensor_list])

    def finish(flat: Array) -> None:
        for at, target in enumerate(output_tensor_list):
            put(target, flat[cuts[at] : cuts[at + 1]])

    source = np.concatenate([flat_copy(tensor) for tensor in input_tensor_list])
    source_cuts = _cuts([tensor.numel() for tensor in input_tensor_list])
    return _all_to_all(source, source_cuts, cuts, group, finish, output_tensor_list, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy part k of the ``input`` of rank j into part j of the ``output`` of rank k.

    Args:
        output: is overwritten.
        input: of the dtype of ``output``.
        output_split_sizes: along the first dimension of ``output``, the length of the part of each
            rank; by default they are equal.
        input_split_sizes: the same of ``input``.
        group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the sizes do not fit.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    if input.dtype != output.dtype:
        raise ValueError(f"input and output differ: {described(input)} and {described(output)}")
    cuts = _split(output, output_split_sizes, group)
    source_cuts = _split(input, input_split_sizes, group)
    finish = lambda flat: put(output, flat)  # noqa: E731
    return _all_to_all(flat_copy(input), source_cuts, cuts, group, finish, output, async_op)


def _split(tensor: Tensor, sizes: Sequence[int] | None, group: ProcessGroup) -> list[int]:
    """Where the part of each rank begins among the elements, and the end of the last one."""
    length, ranks = tensor.shape[0] if tensor.ndim else 0, group.size()
    if not sizes:
        if tensor.ndim == 0 or length % ranks:
            raise ValueError(
                f"Tensor's dim 0 does not divide equally across group size: {described(tensor)} "
                f"among {ranks} ranks"
            )
        sizes = [length // ranks] * ranks
    if len(sizes) != ranks:
        raise ValueError(
            f"Number of tensor splits not equal to group size: {len(sizes)} and {ranks}"
        )
    if sum(sizes) != length or min(sizes) < 0:
        raise ValueError(
            f"Split sizes doesn't match total dim 0 size: {list(sizes)} of {described(tensor)}"
        )
    row = tensor.numel() // length if length else 0
    return _cuts([size * row for size in sizes])


def _cuts(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)]


def _all_to_all(
    source: Array,
    source_cuts: Sequence[int],
    target_cuts: Sequence[int],
    group: ProcessGroup,
    finish: Callable[[Array], None],
    output: Any,
    async_op: bool,
) -> Work | None:
    rank, ranks = group.rank(), group.size()
    own = source[source_cuts[rank] : source_cuts[rank + 1]]
    target = np.empty(target_cuts[-1], source.dtype)
    place = target[target_cuts[rank] : target_cuts[rank + 1]]
    if len(place) != len(own):
        raise ValueError(
            f"rank {rank} sends {len(own):,} elements to itself, and has room for {len(place):,}"
        )
    place[:] = own
    operation = Operation(
        f"all_to_all of {source.dtype}",
        all_to_all_steps(rank, ranks),
        source,
        target,
        source_cuts=source_cuts,
        target_cuts=target_cuts,
        finish=lambda: finish(target),
    )
    return started(group, operation, output, async_op)
