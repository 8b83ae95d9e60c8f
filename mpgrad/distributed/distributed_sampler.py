"""DistributedSampler: each rank's part of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mpgrad.data.sampler import Sampler
from mpgrad.distributed.process_group import get_rank, get_world_size
from mpgrad.ops.generators import Generator
from mpgrad.ops.random import randperm


class DistributedSampler(Sampler[int]):
    """Indices of ``dataset``, every ``num_replicas``-th for one rank, equally many for each.

    Args:
        dataset: whose length counts.
        num_replicas: how many ranks share it; by default the world's.
        rank: whose part it is; by default this process's.
        shuffle: in a new random order after each ``set_epoch``.
        seed: of that order; the same on all ranks.
        drop_last: leave out what cannot be shared equally, in place of giving some indices twice.

    Raises:
        ValueError: ``rank`` is not below ``num_replicas``.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self.num_replicas = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        self.epoch = 0
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"Invalid rank {self.rank}, rank should be in the interval "
                f"[0, {self.num_replicas - 1}]"
            )

    @property
    def num_samples(self) -> int:
        """How many indices each rank gets."""
        length = len(self.dataset)
        if self.drop_last:
            return length // self.num_replicas
        return math.ceil(length / self.num_replicas)

    @property
    def total_size(self) -> int:
        """How many indices all ranks get."""
        return self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)
        if self.shuffle:
            generator = Generator().manual_seed(self.seed + self.epoch)
            order = randperm(length, generator=generator).tolist()
        else:
            order = list(range(length))
        if self.total_size > length and length:
            order = order * math.ceil(self.total_size / length)
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; call it before each."""
        self.epoch = epoch
