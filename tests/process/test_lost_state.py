"""What a call changes beside its result, and what differs when its branch is made again."""

from __future__ import annotations

import itertools
import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.calls.reached_state import ReachedState
from mpgrad.errors import MpgradError
from mpgrad.parallel import placing
from mpgrad.shm.digest import CHECKSUM_BYTES_MAX, digest_of
from tests.process.test_parallel_map import engine

__all__ = ["engine"]
pytestmark = pytest.mark.process


def test_an_iterator_that_goes_on_is_an_error(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())  # the first call is compared
    iterator = iter([1, 2, 3])
    with pytest.raises(RuntimeError, match=r"`arguments\[0\].*lost"):
        mg.parallel_map(lambda one: next(one), [iterator])


@pytest.mark.parametrize(
    "iterator",
    [
        iter([1, 2]),
        iter("ab"),
        iter({1: 2}),
        iter(range(3)),
        iter(deque([1, 2])),
        reversed([1, 2]),
        enumerate([1, 2]),
        zip([1], [2], strict=True),
        map(str, [1, 2]),
        filter(None, [1, 2]),
        itertools.count(),
        itertools.chain([1], [2]),
        itertools.cycle([1, 2]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_iterator_has_a_state(iterator: Any) -> None:
    state = ReachedState(iterator, frozenset(), mg.Tensor)
    assert state.what_changed(iterator) is None
    next(iterator)
    assert state.what_changed(iterator) is not None


class Notes(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Notes(), lambda one: setattr(one, "tag", 1)),
        (Table(), lambda one: setattr(one, "tag", 1)),
        ({(1, 2)}, lambda one: one.symmetric_difference_update([(1, 2), (1, 3)])),
        ({1}, lambda one: one.symmetric_difference_update([1, 2])),
    ],
    ids=["an attribute of a list", "an attribute of a dict", "pairs in a set", "a set"],
)
def test_containers_have_a_state(value: Any, change: Callable[[Any], None]) -> None:
    state = ReachedState([value], frozenset(), mg.Tensor)
    assert state.what_changed([value]) is None
    change(value)
    assert state.what_changed([value]) is not None


@pytest.mark.parametrize("nbytes", [64, CHECKSUM_BYTES_MAX, 3 * CHECKSUM_BYTES_MAX + 24])
def test_elements_that_change_places_change_the_digest(nbytes: int) -> None:
    array = np.arange(nbytes // 8, dtype=np.float64)
    before = digest_of(array)
    generator = np.random.default_rng(0)
    for _ in range(200):
        first, second = generator.choice(array.size, 2, replace=False)
        array[[first, second]] = array[[second, first]]
        assert digest_of(array) != before
        array[[first, second]] = array[[second, first]]
    assert digest_of(array) == before
    assert digest_of(array[::-1]) != before


def test_a_branch_whose_results_change_places_is_not_taken(tmp_path: Path) -> None:
    """Its order depends on what is around it: on a set of strings, or, here, on a file."""
    trace = tmp_path / "trace"

    def ordered(x: mg.Tensor) -> mg.Tensor:
        order = [1, 0, 2, 3] if trace.exists() else [0, 1, 2, 3]
        trace.touch()
        return (x * x)[order]

    with mg.Engine("process", cpu_workers=1) as engine:
        x = mg.arange(4.0, dtype=mg.float64).requires_grad_()
        (y,) = mg.parallel_map(ordered, [x])
        for pid in engine.worker_pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MpgradError, match="gave another result when it ran again"):
            (y * mg.arange(4.0, dtype=mg.float64)).sum().backward()
        assert x.grad is None
