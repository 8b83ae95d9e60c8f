"""new_subgroups(): several process groups at once, none of which share a rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mpgrad.arrays.cuda import cuda_driver
from mpgrad.distributed.process_group import (
    ProcessGroup,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    new_group,
)


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """Groups of equally many ranks, neighbours by number.

    Args:
        group_size: how many ranks each has; by default as many as there are GPUs.
        group: whose ranks are shared out; the world by default.
        timeout, backend, pg_options, group_desc: as for :func:`new_group`. All ranks of the world
            have to call this.

    Returns:
        The group of this rank, None for a rank without one, and all groups.

    Raises:
        ValueError: the ranks cannot be shared out like that.
    """
    if group_size is None:
        if cuda_driver.device_count() == 0:
            raise ValueError(
                "Default group size only takes effect when CUDA is available. "
                "If your subgroup using a backend that does not depend on CUDA, "
                "please pass in 'group_size' correctly."
            )
        group_size = cuda_driver.device_count()
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    world_size = get_world_size(group)
    if world_size < group_size:
        raise ValueError(
            f"The arg 'group_size' ({group_size}) must not exceed the world size ({world_size})"
        )
    if world_size % group_size:
        raise ValueError(f"The world size ({world_size}) must be divisible by '{group_size=}'")
    ranks = get_process_group_ranks(group)
    parts = [ranks[first : first + group_size] for first in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """A group of each of these lists of ranks.

    Args:
        ranks_per_subgroup_list: of the world; a rank stands in one of them, or in none.
        timeout, backend, pg_options, group_desc: as for :func:`new_group`. All ranks of the world
            have to call this.

    Returns:
        The group of this rank, None for a rank without one, and all groups.

    Raises:
        ValueError: there is no list, or a rank stands in two of them, or is not in the world.
    """
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    list_of: dict[int, Sequence[int]] = {}
    for ranks in ranks_per_subgroup_list:
        for rank in ranks:
            if rank in list_of:
                raise ValueError(
                    f"Rank {rank} has appeared in both subgroup {list_of[rank]} and {ranks}"
                )
            list_of[rank] = ranks
    groups = [
        new_group(ranks, timeout, backend, pg_options, group_desc=group_desc)
        for ranks in ranks_per_subgroup_list
    ]
    here = get_rank()
    return next((group for group in groups if here in group.ranks), None), groups
