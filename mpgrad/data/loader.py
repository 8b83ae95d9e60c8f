"""DataLoader: batches of a Dataset, in order or shuffled, made in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpgrad.data.collate import default_collate
from mpgrad.data.dataset import Dataset
from mpgrad.ops.generators import numpy_generator


class DataLoader:
    """Iterates over the batches of ``dataset``; every pass is an epoch.

    Args:
        dataset: a Dataset, or anything with ``__getitem__`` and ``__len__``.
        batch_size: samples per batch.
        shuffle: in a new random order at every pass.
        collate_fn: makes a batch of a list of samples (default: :func:`default_collate`).
        drop_last: leave out a last batch that is not full.
        generator: where the order is drawn from; by default the one that ``mg.manual_seed``
            resets, so that a seed repeats it.

    Raises:
        ValueError: ``batch_size`` is not positive.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        generator: np.random.Generator | None = None,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size!r}"
            )
        self.dataset = dataset
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self.collate_fn, self.generator = collate_fn, generator

    def __len__(self) -> int:
        """The number of batches of one pass."""
        samples = len(self.dataset)
        whole, rest = divmod(samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        # Drawn here and not at the first batch, so that the order depends on when the pass began.
        return self._batches(self._order())

    def _order(self) -> list[int]:
        samples = len(self.dataset)
        if not self.shuffle:
            return list(range(samples))
        return numpy_generator(self.generator).permutation(samples).tolist()  # type: ignore[no-any-return]

    def _batches(self, order: list[int]) -> Iterator[Any]:
        for k in range(len(self)):
            yield self._batch(order[k * self.batch_size : (k + 1) * self.batch_size])

    def _batch(self, indices: list[int]) -> Any:
        if self.collate_fn is None and isinstance(self.dataset, Dataset):
            return self.dataset.batch(indices)
        collate = self.collate_fn or default_collate
        return collate([self.dataset[index] for index in indices])
