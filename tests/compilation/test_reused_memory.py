"""Memory that compiled cases take again: never while anybody has a view of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cpu.cpu_backend import LARGE_BYTES
from mpgrad.func.compilation import reused_memory
from mpgrad.func.compilation.reused_memory import ReusedMemory

SHAPE = (LARGE_BYTES // 4,)


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    with mg.Engine("local"):
        yield


def _refused(shape: Any, dtype: Any) -> Any:
    raise AssertionError("nothing else gives memory")


def _place(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def test_memory_without_views_is_taken_again() -> None:
    memory = ReusedMemory(_refused)
    first = memory.empty(SHAPE, "f4")
    place = _place(first)
    assert first.shape == SHAPE
    assert first.dtype == np.float32
    assert place % 64 == 0
    assert _place(memory.empty(SHAPE, "f4")) != place
    del first
    assert _place(memory.empty((2, LARGE_BYTES // 16), "f8")) == place


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[3:5],
        lambda x: x.reshape(2, -1).T[1:],
        lambda x: x.view("i4")[::2],
        memoryview,
        lambda x: np.lib.stride_tricks.as_strided(x, (3,), (4,)),
        lambda x: mg.tensor(0.0).new_empty(0).set_(mg.from_numpy(x)),
    ],
    ids=["array", "slice", "transposed", "dtype", "memoryview", "as_strided", "tensor"],
)
def test_a_view_keeps_its_memory(view: Any) -> None:
    memory = ReusedMemory(_refused)
    array = memory.empty(SHAPE, "f4")
    place = _place(array)
    kept = view(array)
    del array
    assert _place(memory.empty(SHAPE, "f4")) != place
    del kept
    assert _place(memory.empty(SHAPE, "f4")) == place


def test_small_arrays_are_numpys_own() -> None:
    array = ReusedMemory(_refused).empty((3,), "f4")
    assert array.base is None


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_memory, "KEPT_BYTES_MAX", 2 * LARGE_BYTES)
    memory = ReusedMemory(lambda shape, dtype: np.zeros(shape, dtype))
    held = [memory.empty(SHAPE, "f4") for _ in range(4)]
    assert [array.base is None for array in held] == [False, False, True, True]
    del held
    assert memory.empty(SHAPE, "f4").base is not None


def test_who_comes_in_between_gets_other_memory() -> None:
    memory = ReusedMemory(lambda shape, dtype: np.zeros(shape, dtype))
    with memory._lock:
        assert memory.empty(SHAPE, "f4").base is None
    assert memory.empty(SHAPE, "f4").base is not None


def test_threads_get_memory_of_their_own() -> None:
    memory = ReusedMemory(lambda shape, dtype: np.empty(shape, dtype))
    start, wrong = threading.Barrier(4), []

    def work(number: int) -> None:
        start.wait()
        for _ in range(500):
            array = memory.empty(SHAPE, "f4")
            array.fill(number)
            other = memory.empty(SHAPE, "f4")
            other.fill(-1)
            if array[0] != number or array[-1] != number:
                wrong.append(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


# ---------------------------------------------------------------------- compiled functions


def _x(value: float) -> mg.Tensor:
    return mg.full((100, 200), value)


def test_results_outlive_later_calls() -> None:
    @mg.compile(fullgraph=True)
    def function(x: mg.Tensor) -> tuple[mg.Tensor, mg.Tensor]:
        y = mg.exp(x) * 2.0
        return y, y.T[:10]

    found = [function(_x(float(n))) for n in range(6)]
    for n, (whole, part) in enumerate(found):
        expected = np.exp(np.full((100, 200), n, np.float32)) * np.float32(2)
        assert whole.numpy().tobytes() == expected.tobytes()
        assert part.contiguous().numpy().tobytes() == expected.T[:10].tobytes()


def test_gradients_and_copies_of_them_outlive_later_steps() -> None:
    w = mg.ones(100, 200, requires_grad=True)

    @mg.compile(fullgraph=True)
    def step(x: mg.Tensor) -> mg.Tensor:
        w.grad = None
        loss = (mg.exp(w * x) * x).sum()
        loss.backward()
        return loss

    kept = []
    for n in range(6):
        step(_x(n / 4))
        assert w.grad is not None
        kept.append((w.grad, w.grad.view(-1)[:7]))
    for n, (grad, part) in enumerate(kept):
        x = np.full((100, 200), n / 4, np.float32)
        np.testing.assert_allclose(grad.numpy(), x * x * np.exp(x), 1e-6)
        np.testing.assert_allclose(part.numpy(), (x * x * np.exp(x)).ravel()[:7], 1e-6)


@pytest.mark.process
def test_what_a_later_backward_needs_lies_where_workers_read_it() -> None:
    w = mg.ones(100, 200, requires_grad=True)
    x = _x(0.5)

    @mg.compile(fullgraph=True)
    def forward(x: mg.Tensor) -> mg.Tensor:
        return mg.exp(w * x).sum()

    with mg.Engine("process", cpu_workers=1) as engine:
        for _ in range(3):
            forward(x).backward()
        found = engine.statistics()
    assert found.handed_bytes > 0
    assert found.copied_bytes == 0
