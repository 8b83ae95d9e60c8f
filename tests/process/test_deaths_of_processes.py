"""Deaths, as the engine of a user meets them: the same bits, an error once, nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.errors import CoordinatorLost
from tests.leftovers import Leftovers, is_alive, left_since, wait_until

pytestmark = pytest.mark.process


def gradients() -> list[bytes]:
    """Of a few branches of matrix products, which several tasks share."""
    mg.manual_seed(0)
    weights = [mg.randn(64, 64, requires_grad=True) for _ in range(6)]
    branches = [(weight @ weight).tanh().sum() for weight in weights]
    mg.autograd.backward(branches)
    return [weight.grad.numpy().tobytes() for weight in weights if weight.grad is not None]


def test_the_same_bits_with_a_worker_killed() -> None:
    with mg.Engine("local"):
        expected = gradients()
    before = Leftovers.now()
    with mg.Engine("process", cpu_workers=2) as engine:
        assert gradients() == expected
        victim = engine.worker_pids()[0]
        os.kill(victim, signal.SIGKILL)
        assert gradients() == expected
        assert wait_until(lambda: victim not in engine.worker_pids())
        assert gradients() == expected
    assert left_since(before) == ""


def test_the_kernel_takes_workers_first_when_memory_runs_out() -> None:
    """It adds this to what a process holds; ``scripts/stress oom`` has it kill."""

    def adjustment(pid: int | None) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    with mg.Engine("process", cpu_workers=2) as engine:
        gradients()
        own = adjustment(os.getpid())
        assert adjustment(engine.coordinator_pid) == own
        workers = [adjustment(pid) for pid in engine.worker_pids()]
        assert workers == [min(own + 300, 1000)] * 2


def test_the_coordinators_death_is_an_error_once() -> None:
    before = Leftovers.now()
    with mg.Engine("process", cpu_workers=2) as engine:
        gradients()
        dead: Any = engine.coordinator_pid
        os.kill(dead, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(dead))
        try:
            gradients()
        except CoordinatorLost:
            gradients()
    assert left_since(before) == ""
