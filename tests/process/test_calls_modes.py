"""Modes and errors around calls, and odd places to call from: as in the loop."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.parallel import placing
from tests.process.test_parallel_map import bits, engine, leaves, serial

__all__ = ["engine"]
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


# ---------------------------------------------------------------------- modes


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes_are_those_of_the_call(engine: mg.Engine) -> None:
    def modes(_: int) -> tuple[Any, ...]:
        return (
            mg.is_grad_enabled(),
            mg.is_inference_mode_enabled(),
            mg.is_anomaly_enabled(),
            mg.get_default_dtype(),
            mg.tensor(1.0).dtype,
            np.geterr()["over"],
        )

    found, expected = [], []
    for run, into in ((serial, expected), (mg.parallel_map, found)):
        into += run(modes, range(2))
        with mg.no_grad(), np.errstate(over="raise"):
            into += run(modes, range(2))
        with mg.inference_mode():
            into += run(modes, range(2))
        with mg.autograd.detect_anomaly():
            mg.set_default_dtype(mg.float64)
            try:
                into += run(modes, range(2))
            finally:
                mg.set_default_dtype(mg.float32)
    assert found == expected


def test_numpy_raises_where_it_would_in_the_loop(engine: mg.Engine) -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        mg.parallel_map(lambda k: float(np.float64(1.0) / np.float64(k)), [1, 0])


@pytest.mark.filterwarnings("ignore")
def test_anomaly_mode_finds_nan_in_a_branch(engine: mg.Engine) -> None:
    (x,) = leaves(0, (3,))
    with mg.autograd.detect_anomaly():
        (out,) = mg.parallel_map(lambda y: (y * 0).sqrt().sum(), [x])
        with pytest.raises(RuntimeError, match="nan"):
            (out * 0).backward()


def test_gradient_accumulation_over_maps_with_retained_graphs(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        w, *xs = leaves(1, (3,), *[(3,)] * 4)
        outs = run(lambda x: (x * w).sin().sum(), xs)  # noqa: B023
        loss = mg.stack(outs).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        mg.stack(run(lambda x: (x * w).cos().sum(), xs)).sum().backward()  # noqa: B023
        found.append(bits(w.grad, *[x.grad for x in xs]))
    assert found[0] == found[1]


# ---------------------------------------------------------------------- errors


def test_stop_iteration_becomes_a_runtime_error(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        mg.parallel_map(lambda k: next(iter([])), [1])


class Failure(Exception):
    pass


class FailsInBackward(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, number: int) -> mg.Tensor:
        ctx.number = number
        return x.detach() * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.number in (2, 4):
            raise Failure(ctx.number)
        return grad * 1, None


def test_the_error_in_backward_is_that_of_the_loop(engine: mg.Engine) -> None:
    """The first one in the order of the backward: that of the last item."""
    raised = []
    for run in (serial, mg.parallel_map):
        (x,) = leaves(2, (3,))
        outs = run(lambda k: FailsInBackward.apply(x * k, k).sum(), range(6))  # noqa: B023
        with pytest.raises(Failure) as error:
            mg.stack(outs).sum().backward()
        raised.append(error.value.args)
        assert x.grad is None
    assert raised[0] == raised[1]


def test_lower_items_run_and_the_error_has_number_and_shapes(engine: mg.Engine) -> None:
    def fails(x: mg.Tensor, k: int) -> mg.Tensor:
        if k >= 3:
            raise Failure(k)
        return x

    with pytest.raises(Failure) as error:
        mg.parallel_map(fails, leaves(3, *[(2, 5)] * 6), range(6))
    assert error.value.args == (3,)
    (note,) = [note for note in error.value.__notes__ if "item 3" in note]
    assert "[2, 5]" in note


# ---------------------------------------------------------------------- odd places


def test_a_map_in_a_signal_handler(engine: mg.Engine) -> None:
    found: list[Any] = []

    def handler(*_: Any) -> None:
        found.append(mg.parallel_map(lambda k: k + 1, range(3)))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert mg.parallel_map(lambda k: k * 2, range(3)) == [0, 2, 4]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [[1, 2, 3]]


AT_EXIT = """
import atexit
import os
import mpgrad as mg

x = mg.ones(3, requires_grad=True)

def maps(word):
    outs = mg.parallel_map(lambda k: (x * k).sum(), [1.0, 2.0])
    x.grad = None
    mg.stack(outs).sum().backward()
    print(word, x.grad.tolist(), flush=True)

atexit.register(maps, "at exit")
maps("before")
child = os.fork()
if child == 0:
    maps("child")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
maps("after")
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["local", "auto", "process"])
def test_a_map_at_exit_and_after_a_fork_of_the_process(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """It works, or it is an error in words; the program ends."""
    monkeypatch.setenv("MPGRAD_ENGINE", mode)
    monkeypatch.setenv("MPGRAD_CPU_WORKERS", "2")
    done = run_script(AT_EXIT)
    words = "[3.0, 3.0, 3.0]\n"
    expected = f"before {words}child {words}after {words}"
    assert done.stdout in (expected, f"{expected}at exit {words}"), done.stderr
    if "at exit" not in done.stdout:
        assert "EngineClosed" in done.stderr or "cannot schedule" in done.stderr
