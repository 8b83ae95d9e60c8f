"""send() and recv(): a tensor from one rank to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.distributed.operation import Work
from mpgrad.distributed.process_group import ProcessGroup, get_global_rank, group_of, rank_in
from mpgrad.distributed.tensor_buffers import check, flat_copy, place_for_frames, words
from mpgrad.recording.tensors.tensor import Tensor


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Send ``tensor`` to rank ``dst``, and return at once; it may be changed from then on.

    Args:
        tensor: what the receiver's has the size and dtype of.
        dst: a rank of the world, another one than this.
        group: that both belong to; the world by default.
        tag: tells tensors apart that go the same way; those with equal ones arrive in order.
        group_dst: in place of ``dst``, a rank of the group.

    Returns:
        A Work that says whether it was sent; None outside of the group.

    Raises:
        ValueError: ``dst`` is not in the group, or is this rank.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    to = _other("Destination", dst, group_dst, group)
    flat = flat_copy(tensor)
    return group.post(to, tag, words("tensor", flat), flat.view(np.uint8).data)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send ``tensor`` to rank ``dst``; it may be changed when this returns.

    Args:
        tensor, dst, group, tag, group_dst: as for :func:`isend`.

    Raises:
        ValueError: ``dst`` is not in the group, or is this rank.
        HostLost: that rank is lost.
    """
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Have ``tensor`` overwritten by what rank ``src`` sends with this ``tag``.

    Args:
        tensor: of the size and dtype of what is sent.
        src: a rank of the world, another one than this; None: whichever sends first.
        group, tag: as for :func:`isend`.
        group_src: in place of ``src``, a rank of the group.

    Returns:
        A Work to wait for, whose ``source_rank()`` is the sender then; None outside of the group.

    Raises:
        ValueError: ``src`` is not in the group, or is this rank.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    any_of_them = src is None and group_src is None
    sender = None if any_of_them else _other("Source", src, group_src, group)
    what, take = place_for_frames(tensor)
    return group.collect(sender, tag, what, take)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Overwrite ``tensor`` by what rank ``src`` sends with this ``tag``, when it has come.

    Args:
        tensor, src, group, tag, group_src: as for :func:`irecv`.

    Returns:
        The rank of the sender; -1 outside of the group.

    Raises:
        ValueError: ``src`` is not in the group, or is this rank.
        HostLost: that rank is lost.
        CollectiveTimeout: it took longer than the timeout of the group.
        RuntimeError: what came has another size or dtype.
    """
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return -1
    work.wait()
    return work.source_rank()


class P2POp:
    """A send or a receive that ``batch_isend_irecv`` begins.

    Args:
        op: ``isend`` or ``irecv``.
        tensor: what is sent or overwritten.
        peer: a rank of the world, another one than this.
        group, tag: as for :func:`isend`.
        group_peer: in place of ``peer``, a rank of the group.

    Raises:
        RuntimeError: ``op`` is another function.
        TypeError: ``tensor`` is no Tensor.
        ValueError: the group has no such rank.
    """

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise RuntimeError(
                "Invalid ``op``. Expected ``op`` to be of type ``mpgrad.distributed.isend`` or "
                "``mpgrad.distributed.irecv``."
            )
        check(tensor)
        self.op, self.tensor, self.tag = op, tensor, tag
        self.group = group_of(group)
        self.group_peer = rank_in(self.group, peer, group_peer)
        self.peer = get_global_rank(self.group, self.group_peer)

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, rank {self.peer}, tag {self.tag})"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin all of these sends and receives.

    Args:
        p2p_op_list: in any order, but for those that go the same way with one tag.

    Returns:
        A Work for each, in order; those of other groups have none.

    Raises:
        ValueError: the list is empty, or has something else.
    """
    ops: list[Any] = list(p2p_op_list) if isinstance(p2p_op_list, list | tuple) else []
    if not ops or not all(isinstance(op, P2POp) for op in ops):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to be of type "
            "``mpgrad.distributed.P2POp``."
        )
    begun = (op.op(op.tensor, op.peer, op.group, op.tag) for op in ops)
    return [work for work in begun if work is not None]


def _other(what: str, rank: int | None, group_rank: int | None, group: ProcessGroup) -> int:
    in_group = rank_in(group, rank, group_rank)
    if in_group == group.rank():
        raise ValueError(
            f"Invalid {what.lower()} rank: {what.lower()} rank should not be the same "
            "as the rank of the current process."
        )
    return in_group
