"""Signal handlers of the user's in the middle of backwards: timeouts that raise, and more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.running import deferred_interrupts
from mpgrad.engine import preparation
from tests.leftovers import wait_until
from tests.process import handler_program
from tests.python_path import path_to

pytestmark = pytest.mark.process


class TimeoutOfTheUser(Exception):
    pass


class Waits(mg.Function):
    """Its backward goes on once a file is there."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, path: str) -> Any:
        ctx.path = path
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        import os
        import time

        with open(f"{ctx.path}.begun", "w"):
            pass
        while not os.path.exists(ctx.path):
            time.sleep(0.001)
        return grad * 2, None


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda action: signal.signal(signal.SIGALRM, lambda *_: action()) and None
    signal.signal(signal.SIGALRM, before)


def gradient(shape: int = 4000) -> list[float]:
    x = mg.ones(shape, requires_grad=True)
    mg.tanh(x * 3).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()[:1]


def raise_timeout() -> None:
    raise TimeoutOfTheUser


def interrupted(path: Any, then: Callable[[], object]) -> mg.Tensor:
    """The leaf of a backward that SIGALRM strikes once a worker is at work."""
    x = mg.ones(4000, requires_grad=True)

    def strike() -> None:
        assert wait_until(path.with_suffix(".begun").exists)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        then()

    helper = threading.Thread(target=strike)
    helper.start()
    try:
        (Waits.apply(x, str(path)) * 1).sum().backward()
    finally:
        helper.join()
    return x


def test_a_timeout_that_raises(
    tmp_path: Any, on_alarm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GRACE_MS", "PATIENCE_MS"):  # the worker ends its task, however late
        monkeypatch.setattr(deferred_interrupts, name, 3_600_000)
    with mg.Engine("process", cpu_workers=2) as engine:
        expected = gradient()
        on_alarm(raise_timeout)
        for number in range(3):
            path = tmp_path / f"gate{number}"
            with pytest.raises(TimeoutOfTheUser):
                interrupted(path, path.touch)
            assert gradient() == expected
        figures = engine.statistics()
        assert figures.restarts == 0
        assert figures.engine_arena is not None
        assert figures.engine_arena.live_blocks <= 1  # the last gradient's, let go a moment ago


def test_a_backward_inside_a_handler(tmp_path: Any, on_alarm: Any) -> None:
    found: list[list[float]] = []
    with mg.Engine("process", cpu_workers=2):
        expected = gradient()
        path = tmp_path / "gate"

        def inside() -> None:
            found.append(gradient())
            path.touch()

        on_alarm(inside)
        x = interrupted(path, lambda: None)
        assert found == [expected]
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 4000


def test_a_handler_that_computes_may_come_while_a_graph_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, inner = preparation.plan, list[Any]()

    class OfThisTest(mg.Function):
        """An operator that no graph had before, so that no plan is remembered."""

        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            return grad

    def gradient(times: float) -> Any:
        x = mg.ones(3, requires_grad=True)
        (OfThisTest.apply(x) * times).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not inner:  # as a handler does, on the thread that plans
            inner.append(None)
            inner[0] = gradient(3.0)
        return plan(*args, **kwargs)

    monkeypatch.setattr(preparation, "plan", interrupted)
    with mg.Engine("process", cpu_workers=2):
        assert gradient(2.0) == [2.0] * 3
    assert inner == [[3.0] * 3]


@pytest.mark.slow
@pytest.mark.parametrize("place", handler_program.PLACES)
@pytest.mark.parametrize("what", ["computes", "raises"])
def test_a_handler_may_come_wherever_a_lock_is_held(place: str, what: str) -> None:
    program = Path(handler_program.__file__)
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "2",  # so that there is a limit to set
        "PYTHONPATH": path_to(program.parents[2]),
    }
    done = subprocess.run(
        [sys.executable, str(program), place, what],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    says = ["raised", "done"] if what == "raises" else ["done"]
    assert (done.stdout.split(), done.returncode) == (says, 0), done.stderr
