"""send() and recv(): a tensor from one rank to another."""

from __future__ import annotations

import numpy as np

from mpgrad.distributed.operation import Work
from mpgrad.distributed.process_group import ProcessGroup, get_group_rank, group_of
from mpgrad.distributed.tensor_buffers import flat_copy, place_for_frames, words
from mpgrad.tensors.tensor import Tensor


def isend(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work | None:
    """Send ``tensor`` to rank ``dst``, and return at once; it may be changed from then on.

    Args:
        tensor: what the receiver's has the size and dtype of.
        dst: a rank of the world, another one than this.
        group: that both belong to; the world by default.
        tag: tells tensors apart that go the same way; those with equal ones arrive in order.

    Returns:
        A Work that says whether it was sent; None outside of the group.

    Raises:
        ValueError: ``dst`` is not in the group, or is this rank.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    to = _other("Destination", dst, group)
    flat = flat_copy(tensor)
    return group.post(to, tag, words("tensor", flat), flat.view(np.uint8).data)


def send(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Send ``tensor`` to rank ``dst``; it may be changed when this returns.

    Args:
        tensor, dst, group, tag: as for :func:`isend`.

    Raises:
        ValueError: ``dst`` is not in the group, or is this rank.
        HostLost: that rank is lost.
    """
    work = isend(tensor, dst, group, tag)
    if work is not None:
        work.wait()


def irecv(tensor: Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> Work | None:
    """Have ``tensor`` overwritten by what rank ``src`` sends with this ``tag``.

    Args:
        tensor: of the size and dtype of what is sent.
        src: a rank of the world, another one than this.
        group, tag: as for :func:`isend`.

    Returns:
        A Work to wait for; None outside of the group.

    Raises:
        ValueError: ``src`` is not in the group, or is this rank.
    """
    group = group_of(group)
    if group.rank() < 0:
        return None
    sender = _other("Source", src, group)
    what, take = place_for_frames(tensor)
    return group.collect(sender, tag, what, take)


def recv(tensor: Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """Overwrite ``tensor`` by what rank ``src`` sends with this ``tag``, when it has come.

    Args:
        tensor, src, group, tag: as for :func:`irecv`.

    Returns:
        The rank of the sender; -1 outside of the group.

    Raises:
        ValueError: ``src`` is not in the group, or is this rank.
        HostLost: that rank is lost.
        CollectiveTimeout: it took longer than the timeout of the group.
        RuntimeError: what came has another size or dtype.
    """
    work = irecv(tensor, src, group, tag)
    if work is None:
        return -1
    work.wait()
    return src


def _other(what: str, rank: int, group: ProcessGroup) -> int:
    in_group = get_group_rank(group, rank)
    if in_group == group.rank():
        raise ValueError(
            f"Invalid {what.lower()} rank: {what.lower()} rank should not be the same "
            "as the rank of the current process."
        )
    return in_group
