"""Datasets: samples by index or one after another, and datasets that are made of others."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from mpgrad.data.collate import default_collate
from mpgrad.ops.by_index.indexing import index_select
from mpgrad.ops.random import randperm
from mpgrad.recording.tensors.of_pytorch import is_of_pytorch, mixed
from mpgrad.recording.tensors.tensor import Tensor

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Samples by index; subclasses define ``__getitem__`` and ``__len__``.

    A dataset that reads several samples together defines ``__getitems__``, too: from a list of
    indices to the list of their samples.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __len__(self) -> int:
        raise NotImplementedError("Subclasses of Dataset should implement __len__.")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


def gathers(dataset: Any) -> bool:
    """Whether ``dataset`` makes batches of the samples that its indices give.

    A subclass that defines samples of its own does not gather as its base class does.
    """
    for kind in type(dataset).__mro__:
        if "_gather" in vars(kind):
            return True
        if "__getitem__" in vars(kind) or "__getitems__" in vars(kind):
            return False
    return False


def samples_of(dataset: Any, indices: Sequence[int]) -> Any:
    """The samples at ``indices``, read together if the dataset can do that."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if callable(many) else [dataset[index] for index in indices]


class IterableDataset(Dataset[T_co]):
    """Samples one after another; subclasses define ``__iter__``.

    In a loader with several workers each worker iterates over its own copy:
    ``get_worker_info()`` has the number of the worker's share.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is an IterableDataset: it has no indices")

    def __len__(self) -> int:
        raise TypeError(f"object of type {type(self).__name__!r} has no len()")

    def __add__(self, other: Any) -> Any:
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Sample k is the k-th row of each tensor.

    Raises:
        TypeError: they are tensors of PyTorch.
        ValueError: there are no tensors, or their first dimensions differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if is_of_pytorch(tensors):
            raise mixed("TensorDataset")
        lengths = [tensor.shape[0] if tensor.ndim else None for tensor in tensors]
        if not tensors or None in lengths or len(set(lengths)) != 1:
            raise ValueError(f"Size mismatch between tensors: first dimensions are {lengths}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def _gather(self, indices: Sequence[int]) -> list[Tensor]:
        """A batch with one gather per tensor, instead of a Tensor per sample."""
        rows = Tensor(np.asarray(indices, np.int64))
        return [index_select(tensor, 0, rows) for tensor in self.tensors]


class ConcatDataset(Dataset):
    """The samples of several datasets, one dataset after another.

    Args:
        datasets: with lengths.

    Raises:
        ValueError: there are no datasets, or one of them is iterable.
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise ValueError("ConcatDataset does not support IterableDataset; use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(part) for part in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        index %= len(self)
        part = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[part][index - (self.cumulative_sizes[part - 1] if part else 0)]


class StackDataset(Dataset):
    """Sample k has the k-th sample of each dataset: a tuple, or a dictionary of the same names.

    Args:
        args: datasets, or
        kwargs: datasets by name.

    Raises:
        ValueError: their lengths differ, or there are none, or both kinds of arguments.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or``dict``- (via ``kwargs``) like input"
                "/output, but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: Any = kwargs or args
        parts = list(kwargs.values()) or list(args)
        self._length = len(parts[0])
        if any(len(part) != self._length for part in parts):
            raise ValueError("Size mismatch between datasets")

    def _of_each(self, function: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: function(part) for name, part in self.datasets.items()}
        # map() would take a StopIteration of a dataset for its own end.
        return tuple([function(part) for part in self.datasets])

    def __getitem__(self, index: int) -> Any:
        return self._of_each(lambda part: part[index])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples at ``indices``.

        Raises:
            ValueError: a dataset's own ``__getitems__`` gives another number of samples.
        """

        def read(part: Any) -> Any:
            samples = samples_of(part, indices)
            if len(samples) != len(indices):
                raise ValueError(
                    "Nested dataset's output size mismatch. Expected "
                    f"{len(indices)}, got {len(samples)}"
                )
            return samples

        columns = self._of_each(read)
        if isinstance(columns, dict):
            rows = zip(*columns.values(), strict=True)
            return [dict(zip(columns, row, strict=True)) for row in rows]
        return list(zip(*columns, strict=True))

    def __len__(self) -> int:
        return self._length


class ChainDataset(IterableDataset):
    """The samples of several iterable datasets, one dataset after another.

    Args:
        datasets: IterableDatasets; another kind is a TypeError when its turn comes.
    """

    def __init__(self, datasets: Iterable[IterableDataset]) -> None:
        super().__init__()
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError("ChainDataset only supports IterableDataset")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


class Subset(Dataset):
    """The samples of ``dataset`` at ``indices``: sample k is ``dataset[indices[k]]``."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            rows: Any = [self.indices[k] for k in index]
            return self.dataset[rows]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)

    def _gather(self, indices: Sequence[int]) -> Any:
        """A batch as the dataset itself makes it."""
        chosen = [self.indices[index] for index in indices]
        if gathers(self.dataset):
            return self.dataset._gather(chosen)  # type: ignore[attr-defined]
        return default_collate(samples_of(self.dataset, chosen))


def random_split(
    dataset: Dataset,
    lengths: Sequence[int | float],
    generator: Any = None,
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
    order = randperm(total, generator=generator).tolist()
    ends = np.cumsum(counts).tolist()
    return [
        Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)
    ]


def _are_counts(lengths: Sequence[int | float]) -> bool:
    return all(isinstance(length, int | np.integer) and length >= 0 for length in lengths)
