"""Collectives of Python objects: whatever pickle takes goes from rank to rank.

A pickle may run code where it is read; all ranks of a group trust each other.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.distributed.collectives import (
    all_gather_into_tensor,
    broadcast,
    gather,
    scatter,
)
from mpgrad.distributed.process_group import ProcessGroup, group_of, root_in
from mpgrad.ops.new_tensors.creation import empty, from_numpy
from mpgrad.recording.tensors.tensor import Tensor

Array = Any


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Put the ``obj`` of rank k into ``object_list[k]``, on all ranks."""
    group = group_of(group)
    if group.rank() < 0:
        return
    _check_length("object_list", object_list, group)
    mine = _pickled(obj)
    sizes = _all_sizes(mine, group)
    parts = empty((group.size(), max(sizes)), dtype=np.uint8)
    all_gather_into_tensor(parts, _padded(mine, max(sizes)), group)
    object_list[:] = _objects(parts.numpy(), sizes)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
) -> None:
    """Put the ``obj`` of rank k into ``object_gather_list[k]`` of rank ``dst``, by default 0.

    ``group_dst`` is a rank of the group, in its place.
    """
    group = group_of(group)
    if group.rank() < 0:
        return
    root = root_in(group, dst, group_dst)
    is_root = group.rank() == root
    if is_root:
        _check_length("object_gather_list", object_gather_list, group)
    elif object_gather_list:
        raise ValueError(
            "Argument ``object_gather_list`` must NOT be specified on non-destination ranks."
        )
    mine = _pickled(obj)
    sizes = _all_sizes(mine, group)
    parts = [empty(max(sizes), dtype=np.uint8) for _ in sizes] if is_root else None
    gather(_padded(mine, max(sizes)), parts, group=group, group_dst=root)
    if parts is not None and object_gather_list is not None:
        object_gather_list[:] = _objects([part.numpy() for part in parts], sizes)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Put the objects of rank ``src`` into the ``object_list`` of all others.

    Args:
        object_list: of one length on all ranks.
        src: a rank of the world; 0 by default.
        group: of ranks; the world by default.
        device: only there for PyTorch's callers.
        group_src: in place of ``src``, a rank of the group.
    """
    group = group_of(group)
    if group.rank() < 0:
        return
    root = root_in(group, src, group_src)
    is_root = group.rank() == root
    mine = [_pickled(obj) for obj in object_list] if is_root else []
    sizes = from_numpy(np.array([len(data) for data in mine] or [0] * len(object_list), np.int64))
    broadcast(sizes, group=group, group_src=root)
    ends = np.cumsum(sizes.numpy())
    if len(ends) == 0:
        return
    data = from_numpy(np.concatenate(mine)) if is_root else empty(int(ends[-1]), dtype=np.uint8)
    broadcast(data, group=group, group_src=root)
    if not is_root:
        object_list[:] = [pickle.loads(part.data) for part in np.split(data.numpy(), ends[:-1])]


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
) -> None:
    """Put ``scatter_object_input_list[k]`` of rank ``src`` into the first place of rank k's output.

    Args:
        scatter_object_output_list: has at least one place.
        scatter_object_input_list: an object for each rank; only rank ``src`` needs it.
        src: a rank of the world; 0 by default.
        group: of ranks; the world by default.
        group_src: in place of ``src``, a rank of the group.
    """
    group = group_of(group)
    if group.rank() < 0:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    root = root_in(group, src, group_src)
    is_root = group.rank() == root
    mine: list[Array] = []
    if is_root:
        _check_length("scatter_object_input_list", scatter_object_input_list, group)
        mine = [_pickled(obj) for obj in scatter_object_input_list or ()]
    sizes = from_numpy(np.array([len(data) for data in mine] or [0] * group.size(), np.int64))
    broadcast(sizes, group=group, group_src=root)
    longest = int(sizes.numpy().max())
    part = empty(longest, dtype=np.uint8)
    parts = [_padded(data, longest) for data in mine] or None
    scatter(part, parts, group=group, group_src=root)
    scatter_object_output_list[0] = pickle.loads(part.numpy().data[: int(sizes[group.rank()])])


def _pickled(obj: Any) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _padded(data: Array, size: int) -> Tensor:
    return from_numpy(np.pad(data, (0, size - len(data))))


def _all_sizes(data: Array, group: ProcessGroup) -> list[int]:
    sizes = empty(group.size(), dtype=np.int64)
    all_gather_into_tensor(sizes, from_numpy(np.array([len(data)], np.int64)), group)
    return [int(size) for size in sizes.numpy()]


def _objects(parts: Any, sizes: Sequence[int]) -> list[Any]:
    return [pickle.loads(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _check_length(name: str, objects: Any, group: ProcessGroup) -> None:
    """Raise unless there is a place for each rank of the group."""
    if not isinstance(objects, list | tuple) or len(objects) != group.size():
        raise ValueError(
            f"{name} has to be a list with one place for each of the {group.size()} ranks, not "
            f"{objects!r}"
        )
