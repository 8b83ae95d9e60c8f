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
from mpgrad.distributed.process_group import ProcessGroup, barrier_of, group_of, rank_in
from mpgrad.distributed.states.collective_steps import all_to_all_steps, roll_call_steps
from mpgrad.distributed.states.reduction_tree import all_reduce_steps, combined, segments
from mpgrad.distributed.tensor_buffers import (
    check_list,
    described,
    flat_copy,
    put,
    started,
    words,
)
from mpgrad.errors import HostLost
from mpgrad.recording.tensors.tensor import Tensor

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
    flat: Array,
    op: ReduceOp,
    group: ProcessGroup,
    finish: Callable[[], None] | None,
    name: str = "all_reduce",
) -> Operation:
    """The all-reduce of a flat array, in place; ``name``: what it is for."""
    check_reducible("all_reduce", flat.dtype, op)
    ranks = group.size()

    def finish_all() -> None:
        if op is ReduceOp.AVG:
            np.divide(flat, ranks, out=flat)
        if finish is not None:
            finish()

    return Operation(
        words(f"{name} {op.value}", flat),
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
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine the ``tensor`` of all ranks into that of rank ``dst``; the others keep theirs.

    Args:
        tensor, op, group, async_op: as for :func:`all_reduce`; so are result and errors.
        dst: a rank of the world that belongs to the group.
        group_dst: in place of ``dst``, a rank of the group.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    root, flat = rank_in(group, dst, group_dst), flat_copy(tensor)
    is_root = group.rank() == root
    finish = (lambda: put(tensor, flat)) if is_root else None
    operation = reduction(flat, op, group, finish, f"reduce to {root}")
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


#: As newer programs call it.
reduce_scatter_single = reduce_scatter_tensor


def _reduce_scatter(
    output: Tensor, source: Array, op: ReduceOp, group: ProcessGroup, async_op: bool
) -> Work | None:
    check_reducible("reduce_scatter", source.dtype, op)
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


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """Wait until all ranks of the group have come here.

    Args:
        group, async_op: as for :func:`all_reduce`; so are the result and the errors.
        device_ids: only there for PyTorch's callers.
        timeout: how long it may take; the group's by default.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    return started(group, barrier_of(group), None, async_op, timeout)


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """As :func:`barrier`, but the error names every rank that has not come.

    Args:
        group: of ranks; the world by default.
        timeout: how long rank 0 of the group waits; the group's by default.
        wait_all_ranks: say PyTorch's words of all ranks that are missing, not of the first one.

    Raises:
        CollectiveTimeout: on rank 0 of the group: some have not come; the group is over.
        RuntimeError: so on the other ranks that have come.
        HostLost: a rank is lost.
    """
    group = group_of(group)
    if group.rank() < 0:
        return
    timeout = group.timeout if timeout is None else timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)

    def says_late(timeout_s: float, missing: Sequence[int]) -> str:
        all_of_them = ", ".join(map(str, missing))
        which = f"Ranks {all_of_them}" if wait_all_ranks else f"Rank {missing[0]}"
        text = f"{which} failed to pass monitoredBarrier in {1000 * timeout_s:.0f} ms"
        return text if wait_all_ranks else f"{text}; missing: {all_of_them}"

    nothing, root = np.empty(0, np.uint8), group.ranks[0]
    steps = roll_call_steps(group.rank(), group.size())
    roll_call = Operation("monitored_barrier", steps, nothing, nothing, says_late=says_late)
    if group.rank() == 0:
        group.start(roll_call, timeout).wait()
        return
    try:
        group.start(roll_call, timeout + ROLL_CALL_PATIENCE).wait()
    except HostLost:
        raise
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {group.ranks[group.rank()]} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank {root}: {error}"
        ) from error


def supports_complex(reduceOp: ReduceOp) -> bool:
    """Whether a reduction takes complex tensors: sums and averages do."""
    return reduceOp in (ReduceOp.SUM, ReduceOp.AVG)


def check_reducible(collective: str, dtype: np.dtype[Any], op: ReduceOp) -> None:
    """Raise TypeError or ValueError if ``op`` does not take this dtype."""
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op has to be a ReduceOp, not {op!r}")
    if dtype.kind == "c" and not supports_complex(op):
        raise ValueError(f"{collective} does not support ReduceOp.{op.name} on complex tensors")
    if op is ReduceOp.AVG and dtype.kind not in "fc":
        raise TypeError(f"ReduceOp.AVG takes floating tensors, not {dtype}")
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and dtype.kind not in "biu":
        raise TypeError(f"ReduceOp.{op.name} takes integer tensors, not {dtype}")
