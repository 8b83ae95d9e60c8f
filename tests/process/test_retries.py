"""parallel_map(retries=...): an item that raises is tried again, each time alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.process.test_parallel_map import bits, engine, leaves

__all__ = ["engine"]
pytestmark = pytest.mark.process


def attempt(directory: Path, item: int) -> int:
    """Count the attempts at an item, as a service would; the number of this one, from 1."""
    with (directory / str(item)).open("a") as file:
        file.write("x")
    return len((directory / str(item)).read_text())


def flaky(x: mg.Tensor, item: int, directory: Path, failures: int) -> mg.Tensor:
    if attempt(directory, item) <= failures:
        raise ConnectionError(f"item {item} is not there")
    return (x * x * item).sum()


def attempts_in(directory: Path) -> list[int]:
    return [len(one.read_text()) for one in sorted(directory.iterdir())]


@pytest.mark.parametrize("out", ["list", "sum"])
def test_a_failure_by_chance_changes_nothing(engine: mg.Engine, tmp_path: Path, out: str) -> None:
    (x,) = leaves(1, (3,))
    shared = {"directory": tmp_path, "failures": 2}
    found = mg.parallel_map(flaky, [x] * 4, range(4), shared=shared, out=out, chunks=2, retries=2)
    total = found if out == "sum" else mg.stack(found).sum()
    total.backward()
    assert attempts_in(tmp_path) == [3] * 4
    expected = bits(x.grad)
    x.grad = None
    sum((x * x * item).sum() for item in range(4)).backward()
    assert bits(x.grad) == expected


def test_the_last_error_says_how_often_it_was_tried(engine: mg.Engine, tmp_path: Path) -> None:
    (x,) = leaves(1, (3,))
    with pytest.raises(ConnectionError, match="item 1 is not there") as caught:
        mg.parallel_map(flaky, [x], [1], shared=(tmp_path, 9), retries=2)
    assert "the last of 3 attempts at item 0" in caught.value.__notes__
    assert attempts_in(tmp_path) == [3]
    with pytest.raises(ConnectionError) as caught:
        mg.parallel_map(flaky, [x], [2], shared=(tmp_path, 9))
    assert "attempts" not in str(caught.value.__notes__)


def drawn(item: int, rng: np.random.Generator, directory: Path, failures: int) -> Any:
    found = mg.rand(1).item(), float(np.random.random()), float(rng.random())
    if attempt(directory, item) <= failures:
        raise OSError
    return found


def test_each_attempt_draws_the_same_numbers(engine: mg.Engine, tmp_path: Path) -> None:
    """Those of the item's own generator, too, which goes on as if it had run once."""
    found = []
    for failures in (0, 2):
        (directory := tmp_path / str(failures)).mkdir()
        mg.manual_seed(3)
        np.random.seed(4)
        rngs = np.random.default_rng(5).spawn(3)
        out = mg.parallel_map(drawn, range(3), rngs, shared=(directory, failures), retries=2)
        found.append((out, [rng.random() for rng in rngs]))
    assert found[0] == found[1]


class Counts(mg.nn.Module):
    seen: mg.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", mg.zeros(1))
        self.log: list[int] = []

    def forward(self, x: mg.Tensor, directory: Path) -> mg.Tensor:
        self.seen += 1.0
        before = len(self.log)
        self.log.append(1)
        if attempt(directory, 0) < 3:
            raise OSError
        self.log.pop()
        return x * self.seen + before


def test_an_attempt_finds_nothing_of_the_one_before(engine: mg.Engine, tmp_path: Path) -> None:
    module = Counts()
    (out,) = mg.parallel_map(module, [mg.ones(2)], shared=(tmp_path,), retries=2)
    assert out.tolist() == [1.0, 1.0]
    assert module.seen.tolist() == [1.0]
    assert attempts_in(tmp_path) == [3]


def test_in_a_call(engine: mg.Engine, tmp_path: Path) -> None:
    def outer(x: mg.Tensor) -> mg.Tensor:
        inner: list[mg.Tensor] = mg.parallel_map(flaky, [x], [1], shared=(tmp_path, 1), retries=1)
        return inner[0]

    (x,) = leaves(1, (3,))
    (out,) = mg.parallel_map(outer, [x])
    assert bits(out) == bits((x * x * 1).sum())


def test_only_a_number_that_makes_sense() -> None:
    with pytest.raises(ValueError, match="retries must be at least 0, not -1"):
        mg.parallel_map(len, ["a"], retries=-1)


def weighted(x: mg.Tensor, own: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> mg.Tensor:
    return (x * x * mg.as_tensor(weights) * mg.as_tensor(own)).sum()


@pytest.mark.parametrize("mode", ["local", "process"])
def test_arrays_may_change_before_a_call_runs_again(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It was so: a call that ran again read what had been written since, and failed."""
    monkeypatch.setenv("MPGRAD_BRANCH_LIMIT", "1")  # each branch is made again
    for size, create_graph in ((3, False), (50_000, False), (3, True)):
        (x,), own, weights = leaves(1, (size,)), np.ones(size), np.full(size, 2.0)
        with mg.Engine(mode, cpu_workers=2):
            outs = mg.parallel_map(weighted, [x] * 3, [own] * 3, shared=(weights,))
            weights[:] = own[:] = 9.0
            loss = mg.stack(outs).sum()
            (found,) = mg.autograd.grad(loss, [x], create_graph=create_graph)
        assert bits(found) == bits(12.0 * x)
