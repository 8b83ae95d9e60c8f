"""Datasets, splits, batches and their order."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, random_split
from tests.torch_outcomes import Of


class Squares(Dataset):
    """Sample k is (k, k * k), as plain numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(index * index)

    def __len__(self) -> int:
        return self.count


def flat(loader: DataLoader) -> list[int]:
    """The first column of all batches, in order."""
    return [value for batch in loader for value in batch[0].tolist()]


def test_batches_in_order() -> None:
    batches = list(DataLoader(Squares(5), batch_size=2))
    assert [batch[0].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[1][1].tolist() == [4.0, 9.0]


@pytest.mark.parametrize(("drop_last", "count"), [(False, 3), (True, 2)])
def test_length_is_that_of_a_pass(drop_last: bool, count: int) -> None:
    loader = DataLoader(Squares(5), batch_size=2, drop_last=drop_last)
    assert len(loader) == len(list(loader)) == count


def test_shuffling_visits_all_once_and_differs_by_epoch() -> None:
    mg.manual_seed(0)
    loader = DataLoader(Squares(50), batch_size=7, shuffle=True)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    mg.manual_seed(0)
    assert flat(loader) == first


def test_a_generator_of_its_own_leaves_the_global_one_alone() -> None:
    def orders() -> list[int]:
        return flat(DataLoader(Squares(20), shuffle=True, generator=np.random.default_rng(3)))

    mg.manual_seed(0)
    expected = mg.rand(3).tolist()
    mg.manual_seed(0)
    assert orders() == orders()
    assert mg.rand(3).tolist() == expected


def test_tensor_dataset_gives_rows() -> None:
    images, labels = mg.arange(12).reshape(4, 3), mg.arange(4)
    dataset = TensorDataset(images, labels)
    assert [part.tolist() for part in dataset[2]] == [[6, 7, 8], 2]
    assert len(dataset) == 4
    images_batch, labels_batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert images_batch.tolist() == images[:3].tolist()
    assert labels_batch.tolist() == [0, 1, 2]


def test_a_batch_equals_the_collated_samples() -> None:
    dataset = TensorDataset(mg.randn(6, 2), mg.arange(6))
    at_once = next(iter(DataLoader(dataset, batch_sampler=[[4, 0, 4]])))
    one_by_one = default_collate([dataset[k] for k in (4, 0, 4)])
    for a, b in zip(at_once, one_by_one, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("tensors", [(), (mg.ones(3), mg.ones(4)), (mg.tensor(1.0),)])
def test_tensors_of_different_lengths_are_refused(tensors: tuple) -> None:
    with pytest.raises(ValueError, match="Size mismatch between tensors"):
        TensorDataset(*tensors)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([7, 3], [7, 3]), ([0.8, 0.2], [8, 2]), ([0.55, 0.45], [6, 4]), ([0.25] * 4, [3, 3, 2, 2])],
)
def test_split_sizes(lengths: list, sizes: list[int]) -> None:
    mg.manual_seed(0)
    parts = random_split(Squares(10), lengths)
    assert [len(part) for part in parts] == sizes
    assert sorted(part[k][0] for part in parts for k in range(len(part))) == list(range(10))


def test_split_sizes_are_pytorchs(of_torch: Of) -> None:
    def sizes(lib: Any) -> list[int]:
        parts = lib.utils.data.random_split(Squares(101), [0.37, 0.21, 0.42])
        return [len(part) for part in parts]

    for oracle, theirs in of_torch(sizes):
        assert sizes(mg) == theirs, oracle


def test_a_split_repeats_with_its_generator() -> None:
    def drawn() -> list[int]:
        return list(random_split(Squares(9), [5, 4], np.random.default_rng(1))[0].indices)

    assert drawn() == drawn()


@pytest.mark.parametrize("lengths", [[5, 4], [0.5, 0.4], [11, -1]])
def test_lengths_must_sum_up(lengths: list) -> None:
    with pytest.raises(ValueError, match="Sum of input lengths"):
        random_split(Squares(10), lengths)


def test_a_subset_of_a_subset() -> None:
    inner = Subset(TensorDataset(mg.arange(10)), [9, 7, 5])
    (batch,) = next(iter(DataLoader(Subset(inner, [2, 0]), batch_size=2)))
    assert batch.tolist() == [5, 9]


class Point(NamedTuple):
    x: float
    name: str


def test_collate_keeps_the_structure() -> None:
    samples: list[Any] = [
        {"point": Point(1.0, "a"), "image": np.ones((2, 2), np.float32), "label": 3, "ok": True},
        {"point": Point(2.0, "b"), "image": np.zeros((2, 2), np.float32), "label": 4, "ok": False},
    ]
    batch = default_collate(samples)
    assert isinstance(batch["point"], Point)
    assert batch["point"].x.dtype == np.float64
    assert batch["point"].name == ("a", "b")
    assert batch["image"].shape == (2, 2, 2)
    assert batch["image"].dtype == np.float32
    assert batch["label"].tolist() == [3, 4]
    assert batch["ok"].dtype == np.bool_


@pytest.mark.parametrize(
    ("samples", "error", "said"),
    [
        ([object()], TypeError, "found object"),
        ([(1, 2), (1,)], RuntimeError, "equal size"),
        ([np.ones(2), np.ones(3)], RuntimeError, "equal size"),
    ],
)
def test_samples_that_do_not_fit_are_named(samples, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        default_collate(samples)


def test_collate_fn_gets_the_samples() -> None:
    loader = DataLoader([3, 1, 2], batch_size=2, collate_fn=sorted)
    assert list(loader) == [[1, 3], [2]]


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_batch_size_is_positive(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size should be a positive integer"):
        DataLoader(Squares(1), batch_size=size)


def test_a_dataset_must_say_what_it_holds() -> None:
    with pytest.raises(NotImplementedError, match="implement __len__"):
        len(Dataset())


@pytest.mark.parametrize("replacement", [False, True])
def test_a_pass_may_have_more_samples_than_memory_holds(replacement: bool) -> None:
    made = mg.data.RandomSampler(range(5), replacement, 10**12, mg.Generator().manual_seed(0))
    first = list(itertools.islice(made, 100))
    assert set(first) == set(range(5))
    if not replacement:
        assert all(sorted(first[at : at + 5]) == list(range(5)) for at in range(0, 100, 5))
    assert len(list(mg.data.RandomSampler(range(5), replacement, 37))) == 37
