"""StopIteration from code of the user is an error of a pass, never its end (PEP 479)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpgrad.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    StackDataset,
    Subset,
)

WORKERS = [0, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux"))]


def stop(*_: Any) -> Any:
    """What a user writes by accident: the first element of nothing."""
    return next(iter(()))


class Samples(Dataset):
    def __init__(self, broken: int = 5) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return stop() if index == self.broken else index


class Together(Samples):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return stop() if self.broken in indices else indices


class WithoutLength(Samples):
    def __len__(self) -> int:
        return stop()


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class StreamOfNothing(Stream):
    def __iter__(self) -> Iterator[int]:
        return stop()


class BrokenStream(Stream):
    def __iter__(self) -> Iterator[int]:
        yield 1
        stop()


class BrokenSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return stop()


class Unpicklable:
    def __reduce__(self) -> Any:
        return stop()


class NotLoadable:
    def __reduce__(self) -> Any:
        return stop, ()


def broken_batch(samples: list[int]) -> list[int]:
    return stop() if 5 in samples else samples


def a_batch_of(kind: type) -> Callable[[Any], Any]:
    return lambda samples: kind() if 4 in samples else samples


GOOD = Samples(-1)
#: How the loader is made; of these only workers make batches otherwise.
EVERYWHERE: dict[str, Callable[..., Any]] = {
    "dataset": lambda **options: DataLoader(Samples(), 2, **options),
    "first sample": lambda **options: DataLoader(Samples(0), 2, **options),
    "one by one": lambda **options: DataLoader(Samples(), None, **options),
    "__getitems__": lambda **options: DataLoader(Together(), 2, **options),
    "__len__": lambda **options: DataLoader(WithoutLength(), 2, **options),
    "subset": lambda **options: DataLoader(Subset(Samples(), range(8)), 2, **options),
    "concatenated": lambda **options: DataLoader(ConcatDataset([Samples(), GOOD]), 2, **options),
    "stacked": lambda **options: DataLoader(StackDataset(GOOD, Samples()), 2, **options),
    "stacked, one by one": lambda **options: DataLoader(
        StackDataset(GOOD, Samples()), None, **options
    ),
    "iterable": lambda **options: DataLoader(BrokenStream(), 2, **options),
    "iterable's __iter__": lambda **options: DataLoader(StreamOfNothing(), None, **options),
    "chained": lambda **options: DataLoader(
        ChainDataset([Stream(), StreamOfNothing()]), 2, **options
    ),
    "collate_fn": lambda **options: DataLoader(GOOD, 2, collate_fn=broken_batch, **options),
    "collate_fn of a stream": lambda **options: DataLoader(
        Stream(), 2, collate_fn=broken_batch, **options
    ),
    "sampler": lambda **options: DataLoader(GOOD, 2, sampler=BrokenSampler(), **options),
    "batch_sampler": lambda **options: DataLoader(
        GOOD, batch_sampler=BatchSampler(BrokenSampler(), 2, False), **options
    ),
}
IN_WORKERS: dict[str, Callable[..., Any]] = {
    "worker_init_fn": lambda **options: DataLoader(GOOD, 2, worker_init_fn=stop, **options),
    "pickling": lambda **options: DataLoader(
        GOOD, 2, collate_fn=a_batch_of(Unpicklable), **options
    ),
    "loading": lambda **options: DataLoader(GOOD, 2, collate_fn=a_batch_of(NotLoadable), **options),
}


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_it_is_an_error(name: str, workers: int) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(EVERYWHERE[name](num_workers=workers))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
@pytest.mark.parametrize("name", IN_WORKERS)
def test_it_is_an_error_in_a_worker(name: str) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(IN_WORKERS[name](num_workers=2))


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
def test_only_that_batch_is_lost(workers: int) -> None:
    batches, found = iter(EVERYWHERE["dataset"](num_workers=workers)), []
    for _ in range(4):
        try:
            found.append(next(batches).tolist())
        except RuntimeError:
            found.append("error")
    assert found == [[0, 1], [2, 3], "error", [6, 7]]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
def test_the_end_of_a_sampler_or_a_stream_is_the_end_of_the_pass(workers: int) -> None:
    def three() -> Iterator[int]:
        yield from (3, 1, 2)

    options = {"num_workers": workers, "collate_fn": list}
    assert list(DataLoader(GOOD, 2, sampler=three(), **options)) == [[3, 1], [2]]
    assert list(DataLoader(GOOD, None, sampler=three(), num_workers=workers)) == [3, 1, 2]
    streamed = [sample for batch in DataLoader(Stream(), 3, **options) for sample in batch]
    assert sorted(streamed) == sorted([*range(8)] * max(1, workers))


@pytest.mark.process
@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_may_be_none(workers: int) -> None:
    loader = DataLoader(GOOD, 4, collate_fn=lambda samples: None, num_workers=workers)
    assert list(loader) == [None, None]
