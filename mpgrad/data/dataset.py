"""Datasets: samples by index. TensorDataset, Subset and ``random_split``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.data.collate import default_collate
from mpgrad.ops.generators import numpy_generator
from mpgrad.ops.indexing import index_select
from mpgrad.tensor import Tensor


class Dataset:
    """Samples that are asked for by index; subclasses define ``__getitem__`` and ``__len__``."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __len__(self) -> int:
        raise NotImplementedError("Subclasses of Dataset should implement __len__.")

    def batch(self, indices: Sequence[int]) -> Any:
        """The samples at ``indices`` as one batch; overridden where that can be done at once."""
        return default_collate([self[index] for index in indices])


class TensorDataset(Dataset):
    """Sample k is the k-th row of each tensor.

    Raises:
        ValueError: there are no tensors, or their first dimensions differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = [tensor.shape[0] if tensor.ndim else None for tensor in tensors]
        if not tensors or None in lengths or len(set(lengths)) != 1:
            raise ValueError(f"Size mismatch between tensors: first dimensions are {lengths}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def batch(self, indices: Sequence[int]) -> list[Tensor]:
        """One gather per tensor, instead of a Tensor per sample."""
        rows = Tensor(np.asarray(indices, np.int64))
        return [index_select(tensor, 0, rows) for tensor in self.tensors]


class Subset(Dataset):
    """The samples of ``dataset`` at ``indices``."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Sequence[int]) -> Any:
        """As the dataset itself makes batches."""
        return self.dataset.batch([self.indices[index] for index in indices])


def random_split(
    dataset: Dataset,
    lengths: Sequence[int | float],
    generator: np.random.Generator | None = None,
) -> list[Subset]:
    """Subsets without overlap, drawn at random.

    Args:
        dataset: what to split.
        lengths: of each subset; or fractions that sum to 1, where what rounding leaves goes to the
            first subsets, one each.
        generator: where to draw from; by default the one that ``mg.manual_seed`` resets.

    Raises:
        ValueError: the lengths do not sum to that of the dataset.
    """
    total = len(dataset)
    if math.isclose(sum(lengths), 1) and not _are_counts(lengths):
        counts = [math.floor(total * fraction) for fraction in lengths]
        for k in range(total - sum(counts)):
            counts[k % len(counts)] += 1
    else:
        counts = list(lengths)  # type: ignore[arg-type]
    if not _are_counts(counts) or sum(counts) != total:
        raise ValueError(
            f"Sum of input lengths {list(lengths)} does not equal the length of the input dataset, "
            f"{total}"
        )
    order = numpy_generator(generator).permutation(total).tolist()
    ends = np.cumsum(counts).tolist()
    return [
        Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)
    ]


def _are_counts(lengths: Sequence[int | float]) -> bool:
    return all(isinstance(length, int | np.integer) and length >= 0 for length in lengths)
