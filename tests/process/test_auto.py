"""``auto``: the first heavy backward runs here while the workers start, later ones in them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine.session import Session
from mpgrad.engine.session_pool import SessionPool
from mpgrad.scheduler.tuning import MESSAGE_US
from tests.leftovers import wait_until

pytestmark = pytest.mark.process


class Heavy(mg.Function):
    """Holds the GIL for some milliseconds."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * (2 + 0 * sum(range(200_000)))


def gradient() -> float:
    x = mg.tensor([1.0], requires_grad=True)
    mg.stack([Heavy.apply(x).sum() for _ in range(12)]).sum().backward()
    return x.grad.item()


@pytest.mark.slow
def test_heavy_branches_move_to_the_workers() -> None:
    threads = threading.active_count()
    with mg.Engine("auto", cpu_workers=2) as engine:
        assert gradient() == 24.0
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (1, 0)
        # Who starts the workers is a thread that ends when they are ready.
        assert wait_until(lambda: threading.active_count() == threads)
        assert len(engine.worker_pids()) == 2
        assert gradient() == 24.0
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (1, 1)


def test_no_backward_waits_for_workers_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    are_asked_for = threading.Event()

    def open_session(pool: SessionPool) -> Session:
        are_asked_for.wait(60.0)  # they are ready once there is one
        return real(pool)

    real = SessionPool._open_session
    monkeypatch.setattr(SessionPool, "_open_session", open_session)
    threads = threading.active_count()
    with mg.Engine("auto", cpu_workers=2) as engine:
        for _ in range(3):
            assert gradient() == 24.0
        assert threading.active_count() > threads
        assert wait_until(lambda: engine.coordinator_pid is not None)
        are_asked_for.set()
        assert wait_until(lambda: threading.active_count() == threads)
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (3, 0)


def test_what_a_message_costs_is_not_measured_beside_a_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a Function holds the GIL, the thread that starts the workers hears no answer."""
    asked: list[threading.Thread] = []

    def round_trip_us(_: Session) -> float:
        asked.append(threading.current_thread())
        return MESSAGE_US

    monkeypatch.setattr(Session, "round_trip_us", round_trip_us)
    threads = threading.active_count()
    with mg.Engine("auto", cpu_workers=2) as engine:
        assert gradient() == 24.0
        assert wait_until(lambda: threading.active_count() == threads)
        assert asked == []
        for _ in range(2):
            assert gradient() == 24.0
        assert engine.statistics().backwards_process > 0
    assert asked == [threading.main_thread()]


def test_closing_while_the_workers_start() -> None:
    with mg.Engine("auto", cpu_workers=2):
        assert gradient() == 24.0
    # The fixture around every test sees to it that nothing is left.
