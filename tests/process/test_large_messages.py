"""What is too much for one message: results of a size that nobody expected, and very many."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.errors import EngineClosed
from mpgrad.wire.schema import MESSAGE_BYTES_MAX

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=["local", "process-1", "process-2"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    mode, _, workers = request.param.partition("-")
    with mg.Engine(mode, cpu_workers=int(workers or 2)) as engine:
        yield engine


def runs_once(engine: mg.Engine) -> bool:
    """Of several workers, an idle one may take a call from the one that has its branch."""
    return engine.mode == "local" or engine.cpu_workers == 1


def run_note(note: Path) -> None:
    with note.open("a") as file:
        file.write("x")


def filled(k: int, w: mg.Tensor, length: int, note: Path | None) -> mg.Tensor:
    if note is not None:
        run_note(note)
    return w * mg.full((length,), float(k))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_large_results_of_small_arguments(
    engine: mg.Engine, is_recorded: bool, tmp_path: Path
) -> None:
    """They come although nobody had expected them, and with one worker no call runs twice."""
    note = tmp_path / "note"
    w = mg.tensor(2.0, requires_grad=is_recorded)
    length = MESSAGE_BYTES_MAX // 4 // 16  # together more than a message holds
    results = mg.parallel_map(filled, range(17), shared=(w, length, note))
    assert [one[-1].item() for one in results] == [2.0 * k for k in range(17)]
    assert {one.shape for one in results} == {(length,)}
    if is_recorded:
        sum(one.mean() for one in results).backward()
        assert w.grad.item() == sum(range(17))
    if runs_once(engine):
        assert note.read_text() == "x" * 17


def first_of(k: int, w: mg.Tensor) -> mg.Tensor:
    return w[0] * k


def test_large_shared_arguments_of_small_results() -> None:
    """Memory for results is lent by their size, not by that of what all calls share."""
    w = mg.ones(1 << 20, requires_grad=True)
    with mg.Engine("process", cpu_workers=1, shm_limit="32M"):
        for _ in range(2):
            results = mg.parallel_map(first_of, range(50), shared=(w,))
            assert [one.item() for one in results] == list(range(50))


def test_results_that_were_large_once() -> None:
    w = mg.tensor(2.0)
    with mg.Engine("process", cpu_workers=1, shm_limit="32M"):
        assert len(mg.parallel_map(filled, range(3), shared=(w, 1 << 20, None))[2]) == 1 << 20
        for length in (1, 20_000):
            results = mg.parallel_map(filled, range(100), shared=(w, length, None))
            assert [one[-1].item() for one in results] == [2.0 * k for k in range(100)]


def test_a_fork_with_a_large_result(engine: mg.Engine, tmp_path: Path) -> None:
    note = tmp_path / "note"
    w = mg.tensor(2.0, requires_grad=True)
    result = mg.wait(mg.fork(filled, 3, w, 1 << 20, note))
    assert (len(result), result[-1].item()) == (1 << 20, 6.0)
    result.mean().backward()
    assert w.grad.item() == 3.0
    if runs_once(engine):
        assert note.read_text() == "x"


def growing(k: int, w: mg.Tensor, scale: int) -> mg.Tensor:
    return w * mg.full((scale * (k + 1),), float(k), dtype="f8")


def test_results_that_grow_from_map_to_map(engine: mg.Engine) -> None:
    w = mg.tensor(2.0, requires_grad=True)
    for scale in (1, 100_000, 10, 300_000):
        results = mg.parallel_map(growing, range(5), shared=(w, scale))
        assert [len(one) for one in results] == [scale * (k + 1) for k in range(5)]
        (grad,) = mg.grad(sum(one.mean() for one in results), [w])
        assert grad.item() == pytest.approx(10)


@pytest.mark.parametrize("chunks", [None, 1])
def test_many_small_results(engine: mg.Engine, chunks: int | None) -> None:
    """Together they would be too long a message."""
    count = MESSAGE_BYTES_MAX // 60_000 + 100
    results = mg.parallel_map(bytes_of, range(count), chunks=chunks)
    assert len(results) == count
    assert all(one == k.to_bytes(4, "little") * 15_000 for k, one in enumerate(results))


def bytes_of(k: int) -> bytes:
    return k.to_bytes(4, "little") * 15_000


def tensors_alive(x: mg.Tensor) -> tuple[mg.Tensor, int]:
    gc.disable()  # what lies in no cycle dies without it
    alive = [one for one in gc.get_objects() if isinstance(one, mg.Tensor) and len(one) == len(x)]
    return x * 2, len(alive)


@pytest.mark.parametrize("mode", ["local", "process"])
def test_results_and_arguments_die_at_once(mode: str) -> None:
    """Large ones would fill the memory until the collector comes."""
    arguments = []
    with mg.Engine(mode, cpu_workers=1), mg.no_grad():
        try:
            for _ in range(5):
                x = mg.ones(12_347)
                arguments.append(weakref.ref(x))
                ((result, alive),) = mg.parallel_map(tensors_alive, [x])
                del x, result
                assert alive <= 2  # an argument, as it is and as it came
            assert [one() for one in arguments] == [None] * 5
        finally:
            gc.enable()


class Many(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, *xs: mg.Tensor) -> mg.Tensor:
        ctx.count = len(xs)
        return sum(x.sum() for x in xs)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[mg.Tensor, ...]:
        return tuple([grad * mg.full((1000,), float(k)) for k in range(ctx.count)])


def test_many_gradients_of_one_task(engine: mg.Engine) -> None:
    count = MESSAGE_BYTES_MAX // 4000 + 100
    xs = [mg.ones(1000, requires_grad=True) for _ in range(count)]
    Many.apply(*xs).backward()
    assert all(x.grad[0].item() == x.grad[-1].item() == k for k, x in enumerate(xs))


class Once(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        return grad * 2


def test_too_many_gradients_for_one_task_are_an_error() -> None:
    """It is told; nothing waits forever, and the engine goes on."""
    count = MESSAGE_BYTES_MAX // 4000 + 100
    w = mg.ones(1000, requires_grad=True)
    with mg.Engine("process", cpu_workers=1):
        uses = [Once.apply(w) for _ in range(count)]
        with pytest.raises(EngineClosed, match=r"a DispatchNodeTask of .* exceeds"):
            mg.stack(uses).sum().backward()
        assert w.grad is None
        Once.apply(w).sum().backward()
        assert w.grad[0].item() == 2.0


def killed_late(k: int, w: mg.Tensor, client: int, note: Path) -> tuple[mg.Tensor, bytes]:
    if k == 90 and os.getpid() != client:
        with contextlib.suppress(FileExistsError):
            note.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return w * k, bytes_of(k)


def test_a_worker_dies_after_a_part_of_its_results_has_gone(tmp_path: Path) -> None:
    w = mg.tensor(2.0, requires_grad=True)
    with mg.Engine("process", cpu_workers=1) as engine:
        shared = (w, os.getpid(), tmp_path / "note")
        results = mg.parallel_map(killed_late, range(100), shared=shared, chunks=1)
        assert engine.statistics().restarts == 1
        assert [one.item() for one, _ in results] == [2.0 * k for k in range(100)]
        assert [data for _, data in results] == [bytes_of(k) for k in range(100)]
        mg.stack([results[k][0] for k in (0, 7, 80, 99)]).sum().backward()
    assert w.grad.item() == 7 + 80 + 99
