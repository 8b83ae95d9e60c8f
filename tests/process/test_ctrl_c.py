"""Ctrl-C where something would go on for ever: it is said, and ends; the next backward works."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg

pytestmark = [pytest.mark.process, pytest.mark.slow]

StartScript = Callable[..., subprocess.Popen[bytes]]


class RunsOn(mg.Function):
    """Its worker says that it has begun, and never ends."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        print("has begun", flush=True)
        while True:
            signal.pause()


class Nests(mg.Function):
    """Runs a backward of its own in the client."""

    run_on = "client"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        with mg.enable_grad():
            x = mg.ones(4, requires_grad=True)
            sum([RunsOn.apply(x * k).sum() for k in range(40)]).backward()  # a small one runs here
        return grad


SCRIPT = """
import os, signal, traceback
import mpgrad as mg
from mpgrad.autograd.running import deferred_interrupts as interrupts
from mpgrad.engine.preparation import Preparation
from tests.process.test_ctrl_c import Nests, RunsOn

# Where messages cost much, as on a busy machine, both Functions would be one task.
Preparation.expect_message_us = lambda self, message_us: None

for name, milliseconds in {times}.items():
    setattr(interrupts, name, milliseconds)


def waits_for_ever(grad):
    print("has begun", flush=True)
    while True:
        signal.pause()


def two(x):
    return RunsOn.apply(x).sum() + RunsOn.apply(x * 2).sum()


def hook(x):
    y = x * 2
    y.register_hook(waits_for_ever)
    return y.sum() + (x * 3).sum()


def nested(x):
    return Nests.apply(x).sum() + (x * 3).sum()


def stop(grad):
    os.kill(engine.coordinator_pid, signal.SIGSTOP)
    print("has begun", flush=True)


def stopped(x):
    y = x * 2
    y.register_hook(stop)
    return y.sum() + (x * 3).sum()


x = mg.ones(1000, requires_grad=True)
engine = mg.current_engine()
(x * x).sum().backward()
x.grad = None
coordinator, workers = engine.coordinator_pid, engine.worker_pids()
try:
    {loss}(x).backward()
except KeyboardInterrupt as error:
    where = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    print("interrupted", x.grad, "waits_for_ever" in where)
(x * x).sum().backward()
after = engine.worker_pids()
print(x.grad.sum().item(), engine.coordinator_pid == coordinator, len(set(workers) - set(after)))
print(engine.statistics().engine_arena.live_blocks - (x.grad.nbytes > 4096))
"""


#: As long as it takes here: what is tested in a script is not who is faster.
FOR_EVER_MS = 3_600_000


def interrupted(start_script: StartScript, loss: str, begun: int, **times: int) -> list[str]:
    """What the script prints from the interrupt on, and what it says on stderr."""
    source = SCRIPT.format(loss=loss, times=times)
    client = start_script(source, start_new_session=True, stderr=subprocess.PIPE)
    assert client.stdout is not None
    for _ in range(begun):
        assert client.stdout.readline().endswith(b"has begun\n")
    # As a terminal does it: the whole process group gets the signal.
    os.killpg(client.pid, signal.SIGINT)
    out, err = client.communicate(timeout=600)
    assert client.returncode == 0, err
    return [*out.decode().splitlines(), *err.decode().splitlines()]


STOPPING = (
    "mpgrad: stopping: running tasks have {} s, then their workers are replaced "
    "(press Ctrl-C again to stop at once)"
)


def test_workers_that_run_on_are_replaced(start_script: StartScript) -> None:
    said = interrupted(start_script, "two", begun=2, PATIENCE_MS=FOR_EVER_MS)
    assert said == ["interrupted None False", "2000.0 True 2", "0", STOPPING.format(1)]


def test_code_of_the_user_in_the_client_is_broken_off(start_script: StartScript) -> None:
    times = {"GRACE_MS": FOR_EVER_MS, "PATIENCE_MS": FOR_EVER_MS}
    said = interrupted(start_script, "hook", begun=1, **times)
    assert said == ["interrupted None True", "2000.0 True 0", "0", STOPPING.format(3600)]


def test_a_backward_inside_another_ends_with_it(start_script: StartScript) -> None:
    said = interrupted(start_script, "nested", begun=2, PATIENCE_MS=FOR_EVER_MS)
    assert said == ["interrupted None False", "2000.0 True 2", "0", STOPPING.format(1)]


def test_a_coordinator_that_does_not_answer_is_replaced(start_script: StartScript) -> None:
    said = interrupted(start_script, "stopped", begun=1)
    assert said == ["interrupted None False", "2000.0 False 2", "0", STOPPING.format(1)]
