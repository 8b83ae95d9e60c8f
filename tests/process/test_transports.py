"""Whatever carries the messages: the same bits, deaths are survived, nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.config import TRANSPORTS
from mpgrad.errors import CoordinatorLost
from mpgrad.testing.leftovers import Leftovers, is_alive, left_since, wait_until

pytestmark = pytest.mark.process


def gradients() -> list[bytes]:
    """Of a few branches of matrix products, which several tasks share."""
    mg.manual_seed(0)
    weights = [mg.randn(64, 64, requires_grad=True) for _ in range(6)]
    branches = [(weight @ weight).tanh().sum() for weight in weights]
    mg.autograd.backward(branches)
    return [weight.grad.numpy().tobytes() for weight in weights if weight.grad is not None]


@pytest.fixture(params=TRANSPORTS)
def started(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., mg.Engine]:
    monkeypatch.setenv("MPGRAD_TRANSPORT", request.param)
    return lambda **options: mg.Engine("process", cpu_workers=2, **options)


def test_the_same_bits_with_a_worker_killed(started: Callable[..., mg.Engine]) -> None:
    with mg.Engine("local"):
        expected = gradients()
    before = Leftovers.now()
    with started() as engine:
        assert gradients() == expected
        victim = engine.worker_pids()[0]
        os.kill(victim, signal.SIGKILL)
        assert gradients() == expected
        wait_until(lambda: victim not in engine.worker_pids(), 10)
        assert gradients() == expected
    assert left_since(before) == ""


def test_the_coordinators_death_is_an_error_once(started: Callable[..., mg.Engine]) -> None:
    before = Leftovers.now()
    with started() as engine:
        gradients()
        dead: Any = engine.coordinator_pid
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: not is_alive(dead), 10)
        try:
            gradients()
        except CoordinatorLost:
            gradients()
    assert left_since(before) == ""


def test_a_transport_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPGRAD_TRANSPORT", "pigeons")
    with (
        pytest.raises(ValueError, match="MPGRAD_TRANSPORT='pigeons': expected one of unix, zero"),
        mg.Engine("process", cpu_workers=1),
    ):
        gradients()
