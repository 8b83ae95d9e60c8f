"""Workers that live and do not get on: tasks that take too long, processes that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import mpgrad as mg
from mpgrad.errors import TaskTimedOut, WorkerLost
from tests.leftovers import is_alive, wait_until
from tests.process.conftest import check_usable
from tests.process.kill_points import STOPPED_LIMIT, kill_at

pytestmark = pytest.mark.process


#: Long enough for the first task of a new worker, which loads what it needs, on a busy machine.
LONG_S = 4.0


class HangsAtFirst(mg.Function):
    """Doubles; waits for ever until ``marker`` exists, and makes it before it does."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, marker: str) -> Any:
        ctx.marker = marker
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.marker != "for ever" and os.path.exists(ctx.marker):
            return grad * 2, None
        Path(ctx.marker).touch()
        while True:
            signal.pause()


def loss_of(x: mg.Tensor, marker: str) -> mg.Tensor:
    return (HangsAtFirst.apply(mg.exp(x), marker) * mg.sin(x)).sum()


def leaf() -> mg.Tensor:
    return mg.tensor(np.linspace(0.0, 1.0, 3000, dtype=np.float32), requires_grad=True)


def test_a_task_that_hangs_once_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    x, y = leaf(), leaf()
    with mg.Engine("local"):
        loss_of(y, str(tmp_path / "there")).backward()
    with mg.Engine("process", cpu_workers=2, task_timeout=LONG_S) as engine:
        loss_of(x, str(tmp_path / "absent at first")).backward()
        assert x.grad.numpy().tobytes() == y.grad.numpy().tobytes()
        statistics = engine.statistics()
        assert (statistics.restarts, statistics.failed) == (1, 0)


def test_a_task_that_always_hangs_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = leaf()
    with mg.Engine("process", cpu_workers=2, task_timeout=LONG_S / 2):
        with pytest.raises(TaskTimedOut) as caught:
            loss_of(x, "for ever").backward()
        assert isinstance(caught.value, TimeoutError | WorkerLost)
        for words in ("HangsAtFirst", "(pid ", "after 2 s", "(2 times)", "No .grad was changed"):
            assert words in str(caught.value)
        assert x.grad is None
        check_usable()


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("inf"), float("nan")])
def test_a_timeout_that_is_none(seconds: Any) -> None:
    with pytest.raises(ValueError, match="task_timeout"):
        mg.Engine("process", task_timeout=seconds)


def stopped_engine(monkeypatch: pytest.MonkeyPatch) -> mg.Engine:
    """Its only worker gets SIGSTOP in the first task that it begins."""
    kill_at(monkeypatch, "worker:received:1:STOP,-")
    return mg.Engine("process", cpu_workers=1)


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    return gradient("local")


def gradient(mode: str | None = None) -> bytes:
    x = leaf()
    loss = mg.tanh(mg.exp(x)).sum()
    if mode is not None:
        with mg.Engine(mode):
            loss.backward()
    else:
        loss.backward()
    return x.grad.numpy().tobytes()


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(monkeypatch: pytest.MonkeyPatch, undisturbed: bytes) -> None:
    with stopped_engine(monkeypatch) as engine:
        (pid,) = engine.worker_pids()
        assert gradient() == undisturbed
        assert engine.statistics().restarts == 1
        assert engine.worker_pids() != [pid]


WAKER = """
import sys, time, psutil
worker = psutil.Process(int(sys.argv[1]))
while worker.status() != psutil.STATUS_STOPPED:
    time.sleep(0.01)
worker.resume()
"""


def test_a_worker_that_goes_on_in_time_is_kept(
    monkeypatch: pytest.MonkeyPatch, undisturbed: bytes
) -> None:
    monkeypatch.setenv(STOPPED_LIMIT, "3600")  # in time, however late it is woken here
    with stopped_engine(monkeypatch) as engine:
        (pid,) = engine.worker_pids()
        command = [sys.executable, "-c", WAKER, str(pid)]
        with subprocess.Popen(command) as waker:
            assert gradient() == undisturbed
        assert waker.returncode == 0
        assert engine.worker_pids() == [pid]
        assert engine.statistics().restarts == 0


def test_a_stopped_worker_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        (pid,) = engine.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        assert wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    # A coordinator that takes too long is killed, and the kernel kills its workers then.
    assert wait_until(lambda: not is_alive(pid))
