"""Branches: they die with who wants them, and a lost one is made again with the same bits."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.base import machine
from mpgrad.calls.kept_branches import BRANCHES, limit_bytes
from tests.leftovers import wait_until
from tests.process.test_parallel_map import bits, leaves

pytestmark = pytest.mark.process


def kept(_: int) -> int:
    """The branches of the process that runs this."""
    from mpgrad.calls.kept_branches import BRANCHES

    return len(BRANCHES)


def worker_keeps(count: int) -> bool:
    """Whether the only worker comes to keep so many.

    What has ended is told on another lane than tasks come on: a worker may hear of it later.
    """

    def is_so() -> bool:
        gc.collect()
        return mg.parallel_map(kept, [0]) == [count]

    return wait_until(is_so)


@pytest.fixture(scope="module")
def engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=1) as engine:
        yield engine


def squares(x: mg.Tensor, k: float) -> mg.Tensor:
    return (x * x * k).sum()


# ---------------------------------------------------------------------- nothing stays


def test_a_branch_lives_as_long_as_its_node(engine: mg.Engine) -> None:
    (x,) = leaves(1, (3,))
    outs = mg.parallel_map(squares, [x, x], [1.0, 2.0])
    assert worker_keeps(2)
    del outs[0]
    assert worker_keeps(1)
    outs[0].backward()
    assert worker_keeps(0)


def test_a_map_that_fails_leaves_no_branch(engine: mg.Engine) -> None:
    (x,) = leaves(2, (3,))

    def fails(k: int) -> mg.Tensor:
        if k == 5:
            raise KeyError(k)
        return x * k

    with pytest.raises(KeyError):
        mg.parallel_map(fails, range(6))
    assert worker_keeps(0)


def test_a_result_that_nobody_gets_leaves_no_branch(engine: mg.Engine) -> None:
    """Both items change the same buffer: an error after all of them have ended well."""
    model = nn.BatchNorm1d(2)
    with pytest.raises(RuntimeError, match="same buffer"):
        mg.parallel_map(lambda k: model(mg.ones(4, 2) * k), [1.0, 2.0])
    assert worker_keeps(0)
    with mg.Engine("local"):
        before = len(BRANCHES)
        with pytest.raises(RuntimeError, match="same buffer"):
            mg.parallel_map(lambda k: model(mg.ones(4, 2) * k), [1.0, 2.0])
        gc.collect()
        assert len(BRANCHES) == before


def test_a_result_that_did_not_fit_leaves_one_branch(engine: mg.Engine) -> None:
    """24 MiB, more than a message may hold and than was expected: the call runs twice."""
    (x,) = leaves(3, (3,))

    def large(x: mg.Tensor) -> mg.Tensor:
        return x.sum() * mg.ones(6 << 20)

    outs = mg.parallel_map(large, [x, x])
    assert worker_keeps(2)
    outs[0].sum().backward()
    del outs
    assert worker_keeps(0)


def test_forks_leave_no_branch(tmp_path: Path) -> None:
    path = str(tmp_path / "go")
    os.mkfifo(path)

    def reads(x: mg.Tensor) -> mg.Tensor:
        with open(path) as file:
            file.read()
        return x * 2

    def fails() -> None:
        raise KeyError

    (x,) = leaves(4, (3,))
    with mg.Engine("process", cpu_workers=1):
        futures = [mg.fork(squares, x, 2.0) for _ in range(3)]
        for future in futures:
            future.result(60)
        assert worker_keeps(3)
        del futures, future
        assert worker_keeps(0)
        failed, changed = mg.fork(fails), mg.fork(reads, x)
        with mg.no_grad():
            x.add_(1)
        with open(path, "w") as file:
            file.write("go")
        with pytest.raises(KeyError):
            failed.result(60)
        with pytest.raises(RuntimeError, match="in place"):
            changed.result(60)
        del changed
        assert worker_keeps(0)


def test_nodes_may_die_on_any_thread(engine: mg.Engine) -> None:
    (x,) = leaves(6, (3,))
    alive = [mg.parallel_map(squares, [x] * 8, range(8)) for _ in range(4)]

    def collect() -> None:
        while alive:
            cycle: list[Any] = [alive.pop()]
            cycle.append(cycle)
            del cycle
            gc.collect()

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    for k in range(20):
        (out,) = mg.parallel_map(squares, [x], [k])
        out.backward()
    for thread in threads:
        thread.join()
    del out
    assert worker_keeps(0)


# ---------------------------------------------------------------------- made again


def step(between: Callable[[], None] = lambda: None, fn: Callable[..., Any] = squares) -> Any:
    """Both passes over six items, and what happens between them."""
    x, w, *others = leaves(7, (40,), (40,), *[(40,)] * 4)
    outs = mg.parallel_map(lambda y, k: fn(y * w, k), [x, x, *others], range(1, 7))
    between()
    (mg.stack(outs) * mg.stack(outs).detach()).sum().backward()
    return bits(x.grad, w.grad, *[one.grad for one in others])


@pytest.fixture(scope="module")
def right() -> Any:
    with mg.Engine("local"):
        return step()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_die_between_the_passes(right: Any, workers: int) -> None:
    with mg.Engine("process", cpu_workers=workers) as engine:
        pids = engine.worker_pids()
        assert step(lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]) == right
        assert wait_until(lambda: not set(pids) & set(engine.worker_pids()))
        assert step() == right


def test_one_of_two_workers_dies_between_the_passes(right: Any) -> None:
    with mg.Engine("process", cpu_workers=2) as engine:
        assert step(lambda: os.kill(engine.worker_pids()[0], signal.SIGKILL)) == right


class DiesOnce(mg.Function):
    """Its process dies in the first pass of its kind that finds the file."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, path: str, passes: str) -> mg.Tensor:
        ctx.path, ctx.passes = path, passes
        if passes == "forward":
            _die_once(path)
        return x.detach() * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.passes == "backward":
            _die_once(ctx.path)
        return grad * 1, None, None


def _die_once(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("passes", ["forward", "backward"])
def test_a_worker_dies_in_a_pass(right: Any, workers: int, passes: str, tmp_path: Path) -> None:
    path = tmp_path / "die"
    path.touch()

    def fn(y: mg.Tensor, k: float) -> mg.Tensor:
        out = squares(y, k)
        return DiesOnce.apply(out, str(path), passes) if k == 3 else out

    with mg.Engine("process", cpu_workers=workers) as engine:
        assert step(fn=fn) == right
        assert not path.exists()
        assert wait_until(lambda: engine.statistics().restarts == 1)


def test_the_coordinator_dies_between_the_passes(right: Any) -> None:
    with mg.Engine("process", cpu_workers=2, recover="all") as engine:
        assert step(lambda: _kill_coordinator(engine)) == right
        assert step() == right


def _kill_coordinator(engine: mg.Engine) -> None:
    pid = engine.coordinator_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("passes", ["forward", "backward"])
def test_the_coordinator_dies_in_a_pass(right: Any, passes: str, tmp_path: Path) -> None:
    path = tmp_path / "die"
    path.touch()

    class KillsParent(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            if passes == "forward":
                kill_parent()
            return x.detach() * 1

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            if passes == "backward":
                kill_parent()
            return grad * 1

    def kill_parent() -> None:
        if path.exists():
            path.unlink()
            os.kill(os.getppid(), signal.SIGKILL)

    def fn(y: mg.Tensor, k: float) -> mg.Tensor:
        out = squares(y, k)
        return KillsParent.apply(out) if k == 3 else out

    with mg.Engine("process", cpu_workers=2, recover="all"):
        assert step(fn=fn) == right
        assert not path.exists()


def test_forks_are_under_way_when_the_coordinator_dies(right: Any) -> None:
    x, w, *others = leaves(7, (40,), (40,), *[(40,)] * 4)
    with mg.Engine("process", cpu_workers=2, recover="all") as engine:
        mg.parallel_map(squares, [x], [1.0])
        futures = [
            mg.fork(lambda y, k: squares(y * w, k), y, k)
            for y, k in zip([x, x, *others], range(1, 7), strict=True)
        ]
        _kill_coordinator(engine)
        outs = [mg.wait(future) for future in futures]
        (mg.stack(outs) * mg.stack(outs).detach()).sum().backward()
    assert bits(x.grad, w.grad, *[one.grad for one in others]) == right


def test_an_engine_is_closed_with_branches_alive(right: Any) -> None:
    x, w, *others = leaves(7, (40,), (40,), *[(40,)] * 4)
    with mg.Engine("process", cpu_workers=2):
        outs = mg.parallel_map(lambda y, k: squares(y * w, k), [x, x, *others], list(range(1, 7)))
    with mg.Engine("process", cpu_workers=1):
        (mg.stack(outs) * mg.stack(outs).detach()).sum().backward()
        assert bits(x.grad, w.grad, *[one.grad for one in others]) == right
        del outs
        assert worker_keeps(0)


def test_two_engines_do_not_mix_their_branches(right: Any) -> None:
    """Each has a worker in slot 0; numbers of branches are those of the calling process."""
    found = []
    with mg.Engine("process", cpu_workers=1):
        x, w, *others = leaves(7, (40,), (40,), *[(40,)] * 4)

        def outs() -> list[mg.Tensor]:
            return mg.parallel_map(
                lambda y, k: squares(y * w, k), [x, x, *others], list(range(1, 7))
            )

        def gradients(outs: list[mg.Tensor]) -> Any:
            (mg.stack(outs) * mg.stack(outs).detach()).sum().backward()
            found.append(bits(x.grad, w.grad, *[one.grad for one in others]))
            for one in (x, w, *others):
                one.grad = None

        of_first = outs()
        with mg.Engine("process", cpu_workers=1):
            of_second = outs()
            gradients(of_first)
            del of_first
            assert worker_keeps(6)
        gradients(of_second)
        del of_second
        assert worker_keeps(0)
    assert found == [right, right]


def test_branches_that_find_no_room_are_made_again(
    right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPGRAD_BRANCH_LIMIT", "1")
    with mg.Engine("process", cpu_workers=1) as engine:
        counts: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mg.errors.PerformanceWarning)
            assert step(lambda: counts.append(engine.statistics().branches)) == right
    assert counts == [1]


def test_the_default_limit_is_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPGRAD_BRANCH_LIMIT", raising=False)
    monkeypatch.setattr(machine, "memory_total", lambda: 10 << 30)
    assert limit_bytes(4) == 1 << 30
    monkeypatch.setenv("MPGRAD_BRANCH_LIMIT", "2G")
    assert limit_bytes(4) == 512 << 20


@pytest.mark.parametrize("mode", ["local", "process"])
def test_branches_that_nobody_differentiates_are_warned_of_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of losses in a validation loop. One map may fill the limit alone."""
    monkeypatch.setenv("MPGRAD_BRANCH_LIMIT", "400K")
    monkeypatch.setattr(BRANCHES, "_has_warned", False)
    (x,) = leaves(8, (10_000,))

    def losses(_: int) -> mg.Tensor:
        return (x.exp().sin() * x).sum()

    with mg.Engine(mode, cpu_workers=1) as engine, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with mg.no_grad():
            for _ in range(9):
                mg.parallel_map(losses, range(2))
        assert engine.statistics().branches == 0
        kept = mg.parallel_map(losses, range(4))
        assert not seen
        kept += [out for _ in range(6) for out in mg.parallel_map(losses, range(2))]
        assert [w.category for w in seen] == [mg.errors.PerformanceWarning]
        assert "no_grad" in str(seen[0].message)
        held = engine.statistics()
        assert 0 < held.branches < len(kept)
        assert 200 << 10 < held.branch_bytes <= 400 << 10
        mg.stack(kept).sum().backward()
        del kept
        gc.collect()
        mg.parallel_map(losses, [0])
        gc.collect()
    with mg.Engine("local"):
        expected = x.grad
        x.grad = None
        mg.stack([losses(0) for _ in range(16)]).sum().backward()
        assert np.allclose(x.grad.numpy(), expected.numpy(), rtol=1e-4)  # type: ignore[union-attr]
