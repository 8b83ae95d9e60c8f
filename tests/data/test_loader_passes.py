"""Passes over a DataLoader, and datasets with samples of their own, beside PyTorch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from tests.torch_outcomes import Of

WORKERS = [0, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux"))]


def _data(T: Any) -> Any:
    return T.utils.data


def _error(function: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - both libraries' are compared
        function()
    return f"{type(caught.value).__name__}: {caught.value}"


def own_samples(T: Any) -> Any:
    """Subclasses of datasets whose batches are gathered."""
    data = _data(T)

    class Rows(data.TensorDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            (row,) = super().__getitem__(index)
            return row * 10

    class Part(data.Subset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] + 1

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    class Together(data.TensorDataset):  # type: ignore[misc]
        def __getitems__(self, indices: list[int]) -> Any:
            return [-self.tensors[0][index] for index in indices]

    class Batch(data.Dataset):  # type: ignore[misc]
        """Has a ``batch`` of another meaning."""

        def batch(self) -> int:
            return 7

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index * self.batch()

    plain, rows = data.TensorDataset(T.arange(4.0)), Rows(T.arange(4.0))
    loaders = [
        data.DataLoader(dataset, 2)
        for dataset in (
            *(rows, data.Subset(rows, [2, 1]), Part(plain, [1, 0, 3]), Together(T.arange(3.0))),
            *(Batch(), data.Subset(Batch(), [2, 0]), data.ConcatDataset([rows, rows])),
        )
    ]
    return [[batch.tolist() for batch in loader] for loader in loaders]


def stacked(T: Any) -> Any:
    data = _data(T)
    first, second = data.TensorDataset(T.arange(3)), [5.0, 6.0, 7.0]
    both, named = data.StackDataset(first, second), data.StackDataset(a=first, b=second)
    told = [len(both), both[1][1], sorted(named[2]), named.__getitems__([0, 2])[1]["b"]]
    batches = [[part.tolist() for part in _flat(batch)] for batch in data.DataLoader(both, 2)]

    class Few(data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [1]

    refused = [
        _error(lambda: data.StackDataset(first, [1])),
        _error(data.StackDataset),
        _error(lambda: data.StackDataset(Few(), Few()).__getitems__([0, 1])),
    ]
    return [told, batches, refused, _error(lambda: data.StackDataset(first, b=first))[:10]]


def _flat(batch: Any) -> list[Any]:
    if not isinstance(batch, list | tuple):
        return [batch]
    return [part for item in batch for part in _flat(item)]


def what_was_fixed(T: Any) -> Any:
    loader = _data(T).DataLoader(range(4), 2)
    refused = [
        _error(lambda name=name: setattr(loader, name, 3))  # type: ignore[misc]
        for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset")
    ]
    loader.pin_memory = True
    return [refused, loader.pin_memory, len(iter(_data(T).DataLoader(range(4), 2)))]


PROGRAMS = (own_samples, stacked, what_was_fixed)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_what_pytorch_does(program: Callable[[Any], Any], of_torch: Of) -> None:
    here = program(mg)
    for oracle, there in of_torch(program):
        assert here == there, oracle


class Failing(Dataset):
    """Sample 2 cannot be made."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise ValueError("sample 2 is broken")
        return index


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_the_batches_after_an_exception_come(workers: int, persistent: bool) -> None:
    loader = DataLoader(
        Failing(), 2, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    for _ in range(2):
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(ValueError, match="sample 2 is broken"):
            next(batches)
        assert next(batches).tolist() == [4, 5]
        with pytest.raises(StopIteration):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


class More(mg.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
    """Has more samples than it says."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter(range(4))


def test_a_length_that_was_too_small_is_told() -> None:
    loader = DataLoader(More(), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(iter(loader))) == 4  # nobody asked for the length
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="reported to be 2 .* but [34] samples have been"):
        assert [batch.tolist() for batch in loader] == [[0], [1], [2], [3]]


def test_types_of_batches_can_be_written() -> None:
    assert DataLoader[int] is not None
    parts = random_split(TensorDataset(mg.arange(4)), [3, 1])
    assert sorted(int(row) for part in parts for (row,) in DataLoader(part)) == [0, 1, 2, 3]
    assert isinstance(parts[0], Subset)
