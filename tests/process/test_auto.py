"""``auto``: heavy backwards run here while the workers start, and in them when they are ready."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine.session import Session
from mpgrad.engine.session_pool import SessionPool
from mpgrad.scheduler import tuning
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


def gradient(branches: int) -> float:
    """Each test has a number of its own: what one engine knows of a graph, the next one knows."""
    x = mg.tensor([1.0], requires_grad=True)
    mg.stack([Heavy.apply(x).sum() for _ in range(branches)]).sum().backward()
    return x.grad.item()


def threads_beyond(before: list[threading.Thread]) -> list[threading.Thread]:
    """Those that run and did not before: one that had still to end then may end meanwhile."""
    return [thread for thread in threading.enumerate() if thread not in before]


@pytest.fixture
def workers_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a backward that takes long."""
    monkeypatch.setattr(tuning, "START_US", 0.0)


@pytest.fixture
def may_be_ready(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Workers are not ready before this is set."""
    event = threading.Event()

    def open_session(pool: SessionPool) -> Session:
        event.wait(60.0)
        return real(pool)

    real = SessionPool._open_session
    monkeypatch.setattr(SessionPool, "_open_session", open_session)
    return event


@pytest.mark.slow
@pytest.mark.usefixtures("workers_start_at_once")
def test_heavy_branches_move_to_the_workers(may_be_ready: threading.Event) -> None:
    threads = threading.enumerate()
    with mg.Engine("auto", cpu_workers=2) as engine:
        for _ in range(2):
            assert gradient(14) == 28.0
        may_be_ready.set()
        # Who starts the workers is a thread that ends when they are ready.
        assert wait_until(lambda: not threads_beyond(threads))
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (2, 0)
        assert len(engine.worker_pids()) == 2
        assert gradient(14) == 28.0
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (2, 1)


def test_no_workers_are_started_for_a_graph_that_does_not_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "START_US", 1e12)
    with mg.Engine("auto", cpu_workers=2) as engine:
        assert gradient(13) == 26.0
        assert engine.coordinator_pid is None


class Waits(mg.Function):
    """Runs in this process, until the workers are ready."""

    run_on = "client"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        engine: Any = mg.current_engine()
        assert wait_until(lambda: engine._execution.sessions.is_ready)
        return grad * 2


class Tells(mg.Function):
    """Its gradient is the process that it ran in."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 0 + os.getpid() + 0 * sum(range(200_000))


@pytest.mark.slow
@pytest.mark.usefixtures("workers_start_at_once")
def test_what_is_left_of_a_long_backward_moves_to_the_workers() -> None:
    leaves = [mg.ones(4, dtype=mg.float64, requires_grad=True) for _ in range(12)]
    waited = mg.ones(4, dtype=mg.float64, requires_grad=True)
    with mg.Engine("auto", cpu_workers=2) as engine:
        parts = [Tells.apply(leaf) for leaf in leaves]
        # What is recorded last runs first.
        mg.stack([*parts, Waits.apply(waited)]).sum().backward()
        assert waited.grad.tolist() == [2.0] * 4
        ran_in = {pid for leaf in leaves for pid in leaf.grad.tolist()}
        # The calling thread takes part.
        assert os.getpid() in ran_in
        assert ran_in - {os.getpid()}
        assert ran_in <= {os.getpid(), *engine.worker_pids()}
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (1, 1)


@pytest.mark.usefixtures("workers_start_at_once")
def test_no_backward_waits_for_workers_that_start(may_be_ready: threading.Event) -> None:
    threads = threading.enumerate()
    with mg.Engine("auto", cpu_workers=2) as engine:
        for _ in range(3):
            assert gradient(15) == 30.0
        assert threads_beyond(threads)
        assert wait_until(lambda: engine.coordinator_pid is not None)
        may_be_ready.set()
        assert wait_until(lambda: not threads_beyond(threads))
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (3, 0)


@pytest.mark.usefixtures("workers_start_at_once")
def test_what_a_message_costs_is_not_measured_beside_a_backward(
    monkeypatch: pytest.MonkeyPatch, may_be_ready: threading.Event
) -> None:
    """While a Function holds the GIL, the thread that starts the workers hears no answer."""
    asked: list[threading.Thread] = []

    def round_trip_us(_: Session) -> float:
        asked.append(threading.current_thread())
        return MESSAGE_US

    monkeypatch.setattr(Session, "round_trip_us", round_trip_us)
    threads = threading.enumerate()
    with mg.Engine("auto", cpu_workers=2) as engine:
        assert gradient(16) == 32.0
        may_be_ready.set()
        assert wait_until(lambda: not threads_beyond(threads))
        assert asked == []
        for _ in range(2):
            assert gradient(16) == 32.0
        assert engine.statistics().backwards_process > 0
    assert asked == [threading.main_thread()]


@pytest.mark.usefixtures("workers_start_at_once")
def test_closing_while_the_workers_start() -> None:
    with mg.Engine("auto", cpu_workers=2):
        assert gradient(17) == 34.0
    # The fixture around every test sees to it that nothing is left.
