"""Tensors as the flat arrays that travel between ranks, and what all ranks have to agree on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import moved
from mpgrad.base.device import CPU
from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.process_group import ProcessGroup
from mpgrad.recording.dispatch.in_place import overwrite
from mpgrad.recording.tensors.tensor import Tensor

Array = Any

#: How many kinds of messages have their words kept: these take as long as the rest of the head.
WORDS_MAX = 1024


def flat_copy(tensor: Tensor) -> Array:
    """The elements of ``tensor``, in one dimension, as an array of their own.

    Raises:
        TypeError: it is no Tensor.
    """
    check(tensor)
    array = tensor._array if tensor.device is CPU else tensor.cpu()._array
    return np.array(array, order="C").reshape(-1)


def check(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            "Invalid function argument. Expected parameter `tensor` of type mpgrad.Tensor but got "
            f"{type(tensor)}"
        )


def put(tensor: Tensor, values: Array) -> None:
    """Copy ``values``, as many as the tensor has elements, into it."""
    if tensor.device is not CPU:
        values = moved(values, tensor.device)
    overwrite(tensor, (values.reshape(tensor.shape),), np.copyto)


def place_for_frames(tensor: Tensor) -> tuple[str, Callable[[Sequence[memoryview]], None]]:
    """What a rank does that receives ``tensor``, and what copies its frames into it.

    Raises:
        TypeError: it is no Tensor.
    """
    check(tensor)
    array = tensor._array

    def take(frames: Sequence[memoryview]) -> None:
        parts = [np.frombuffer(frame, array.dtype) for frame in frames]
        if len(parts) == 1:
            put(tensor, parts[0])
        elif tensor.is_contiguous():
            flat, at = tensor.detach().view(-1), 0
            for part in parts:
                put(flat[at : at + len(part)], part)
                at += len(part)
        else:
            put(tensor, np.concatenate(parts))

    return words("tensor", array), take


def words(collective: str, flat: Array) -> str:
    """What a rank does; messages of a rank that does something else do not fit."""
    return _words(collective, flat.size, flat.dtype)


@functools.lru_cache(WORDS_MAX)
def _words(collective: str, size: int, dtype: Any) -> str:
    return f"{collective} of {size:,} {dtype}"


def described(tensor: Tensor) -> str:
    """Its shape and dtype, for errors."""
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def started(
    group: ProcessGroup,
    operation: Operation,
    output: Any,
    async_op: bool,
    timeout: timedelta | None = None,
) -> Work | None:
    """Begin, and wait for the end unless it is asynchronous; ``output`` is what it fills."""
    operation.work.outputs = [output]
    work = group.start(operation, timeout)
    if async_op:
        return work
    work.wait()
    return None


def check_list(
    name: str, tensors: Sequence[Tensor], like: Tensor, group: ProcessGroup
) -> Sequence[Tensor]:
    """``tensors``, one for each rank of the group, each of the size and dtype of ``like``.

    Raises:
        ValueError: they are not.
    """
    check_parts(name, tensors, like.dtype, group)
    for tensor in tensors:
        if tensor.numel() != like.numel():
            raise ValueError(
                f"{name} has a tensor {described(tensor)} beside one {described(like)}"
            )
    return tensors


def check_parts(name: str, tensors: Sequence[Tensor], dtype: Any, group: ProcessGroup) -> None:
    """Raise ValueError unless there is one tensor of this ``dtype`` for each rank of the group."""
    if len(tensors) != group.size():
        raise ValueError(
            f"{name} has to have one tensor for each of the {group.size()} ranks, not "
            f"{len(tensors)}"
        )
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise ValueError(f"{name} has a tensor {described(tensor)} beside one of {dtype}")


def list_at_root(
    name: str,
    tensors: Sequence[Tensor] | None,
    like: Tensor,
    group: ProcessGroup,
    root: int,
    what: str,
) -> Sequence[Tensor]:
    """The list that only the root, the ``what`` rank, has; nothing elsewhere.

    Raises:
        ValueError: the root has none, or another rank has one.
    """
    if group.rank() == root:
        if tensors is None:
            raise ValueError(f"Argument ``{name}`` must be specified on {what} rank.")
        return check_list(name, tensors, like, group)
    if tensors:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{what} ranks.")
    return ()
