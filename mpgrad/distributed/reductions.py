"""Reductions of tensors over the ranks of a group: every one adds along the same tree.

So N ranks get the bits of one process that adds the N parts by ``tree_sum``, wherever they run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from mpgrad.distributed.operation import Combine, Operation, Work
from mpgrad.distributed.process_group import ProcessGroup, barrier_of, get_group_rank, group_of
from mpgrad.distributed.tensor_buffers import (
    check_list,
    described,
    flat_copy,
    put,
    started,
    words,
)
from mpgrad.scheduler.hosts.collective_steps import all_to_all_steps, roll_call_steps
from mpgrad.scheduler.hosts.reduction_tree import all_reduce_steps, combined, segments
from mpgrad.tensors.tensor import Tensor

Array = Any

#: How much longer than rank 0, which knows who is missing, the others wait in a roll call.
ROLL_CALL_PATIENCE = timedelta(seconds=5)


class ReduceOp(enum.Enum):
    """How a reduction combines the parts of the ranks."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


_COMBINE: dict[ReduceOp, Combine] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of ``parts`` in the order in which ranks 0, 1, ... would add them.

    Args:
        parts: at least one tensor, of equal shapes.
    """
    return combined(parts, lambda lower, upper: lower + upper)


def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the ``tensor`` of all ranks, in place: afterwards it is the same on each.

    Args:
        tensor: of one shape and dtype on all ranks.
        op: how.
        group: of ranks; the world by default.
        async_op: return at once.

    Returns:
        With ``async_op`` a Work to wait for; None otherwise, and outside of the group.

    Raises:
        HostLost: a rank is lost.
        CollectiveTimeout: it took longer than the timeout of the group.
        RuntimeError: the ranks do not do the same.
        TypeError: ``op`` does not take this dtype.
        ValueError: there is no group yet (``init_process_group``), or a rank is not in it.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    flat = flat_copy(tensor)
    operation = reduction(flat, op, group, lambda: put(tensor, flat))
    return started(group, operation, tensor, async_op)


def reduction(
    flat: Array, op: ReduceOp, group: ProcessGroup, finish: Callable[[], None] | None
) -> Operation:
    """The all-reduce of a flat array, in place."""
    _check_reducible(flat.dtype, op)
    ranks = group.size()

    def finish_all() -> None:
        if op is ReduceOp.AVG:
            np.divide(flat, ranks, out=flat)
        if finish is not None:
            finish()

    return Operation(
        words(f"all_reduce {op.value}", flat),
        all_reduce_steps(group.rank(), ranks),
        flat,
        flat,
        source_cuts=segments(ranks),
        target_cuts=segments(ranks),
        combine=_COMBINE[op],
        finish=finish_all,
    )


def reduce(
    tensor: Tensor,
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the ``tensor`` of all ranks into that of rank ``dst``; the others keep theirs.

    Args:
        tensor, op, group, async_op: as for :func:`all_reduce`; so are result and errors.
        dst: a rank of the world that belongs to the group.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = get_group_rank(group, dst), flat_copy(tensor)
    is_root = group.rank() == root
    operation = reduction(flat, op, group, (lambda: put(tensor, flat)) if is_root else None)
    return started(group, operation, tensor, async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the k-th of every rank's ``input_list`` into the ``output`` of rank k.

    Args:
        output: is overwritten.
        input_list: one tensor for each rank, each of the size and dtype of ``output``.
        op, group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: ``input_list`` is not like that.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    check_list("input_list", input_list, output, group)
    source = np.concatenate([flat_copy(tensor) for tensor in input_list])
    return _reduce_scatter(output, source, op, group, async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the k-th part of every rank's ``input`` into the ``output`` of rank k.

    Args:
        output: is overwritten.
        input: of the dtype of ``output``, with as many elements as those of all ranks together.
        op, group, async_op: as for :func:`all_reduce`; so are the result and the other errors.

    Raises:
        ValueError: the sizes or dtypes do not fit.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    if input.numel() != output.numel() * group.size() or input.dtype != output.dtype:
        raise ValueError(
            "input tensor must be the same type as the output tensor and its size must be equal to"
            f" world_size times output tensor size: {described(input)} and {described(output)}"
        )
    return _reduce_scatter(output, flat_copy(input), op, group, async_op)


def _reduce_scatter(
    output: Tensor, source: Array, op: ReduceOp, group: ProcessGroup, async_op: bool
) -> Work | None:
    _check_reducible(source.dtype, op)
    rank, ranks = group.rank(), group.size()
    parts = np.empty_like(source).reshape(ranks, -1)
    parts[rank] = source.reshape(ranks, -1)[rank]
    combine = _COMBINE[op]

    def finish() -> None:
        total = combined(list(parts), combine)
        put(output, total / np.asarray(ranks, total.dtype) if op is ReduceOp.AVG else total)

    operation = Operation(
        words(f"reduce_scatter {op.value}", source),
        all_to_all_steps(rank, ranks),
        source,
        parts.reshape(-1),
        source_cuts=ranks,
        target_cuts=ranks,
        finish=finish,
    )
    return started(group, operation, output, async_op)


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Wait until all ranks of the group have come here.

    Args:
        group, async_op: as for :func:`all_reduce`; so are the result and the errors.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    return started(group, barrier_of(group), None, async_op)


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """As :func:`barrier`, but the error names every rank that has not come.

    Args:
        group: of ranks; the world by default.
        timeout: how long rank 0 of the group waits; the group's by default.
        wait_all_ranks: changes nothing: all ranks that are missing are named.

    Raises:
        CollectiveTimeout: some have not come; the group is over.
        HostLost: a rank is lost.
    """
    group = group_of(group)
    if group.rank() < 0:
        return
    timeout = group.timeout if timeout is None else timeout
    if group.rank() != 0:
        timeout += ROLL_CALL_PATIENCE
    nothing = np.empty(0, np.uint8)
    steps = roll_call_steps(group.rank(), group.size())
    group.start(Operation("monitored_barrier", steps, nothing, nothing), timeout).wait()


def _check_reducible(dtype: np.dtype[Any], op: ReduceOp) -> None:
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op has to be a ReduceOp, not {op!r}")
    if op is ReduceOp.AVG and dtype.kind not in "fc":
        raise TypeError(f"ReduceOp.AVG takes floating tensors, not {dtype}")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and dtype.kind not in "biu":
        raise TypeError(f"ReduceOp.{op.name} takes integer tensors, not {dtype}")
