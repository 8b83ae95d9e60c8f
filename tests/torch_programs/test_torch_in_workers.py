"""Workers of a program that uses ``mpgrad.torch`` have torch from the beginning."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


def step() -> None:
    x = torch.ones(3, requires_grad=True)
    outs = mt.parallel_map(lambda k: (x * k).sum(), [1.0, 2.0])
    torch.stack(outs).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def new_pid(engine: mg.Engine, old: int) -> int:
    while True:
        found = [pid for pid in engine.worker_pids() if pid != old]
        if found:
            return found[0]


def has_torch(pid: int) -> bool:
    return any("libtorch" in one.path for one in psutil.Process(pid).memory_maps())


def test_a_new_worker_shares_the_memory_of_torch() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        step()
        (old,) = engine.worker_pids()
        whole = psutil.Process(old).memory_full_info()
        assert whole.uss < whole.rss / 2
        os.kill(old, signal.SIGKILL)
        pid = new_pid(engine, old)
        assert has_torch(pid)
        step()
