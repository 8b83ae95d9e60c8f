"""Each error of the executor says which process, pid, signal and Node, and what to do next."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import errors
from mpgrad.scheduler.events import GraphCancelled

pytestmark = pytest.mark.process


class Fails(mg.Function):
    """Doubles; its backward does what ``how`` says, in a worker."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, how: str) -> Any:
        ctx.how = how
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.how == "raise":
            raise ValueError("wrong")
        if ctx.how == "leave":
            os._exit(7)
        if ctx.how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if ctx.how == "kill the coordinator":
            os.kill(os.getppid(), signal.SIGKILL)
        while True:
            signal.pause()


def fails(how: str) -> Callable[[mg.Engine], None]:
    def run(engine: mg.Engine) -> None:
        x = mg.tensor([1.0, 2.0], requires_grad=True)
        try:
            Fails.apply(x, how).sum().backward()
        finally:
            assert x.grad is None

    return run


def needs_much_memory(engine: mg.Engine) -> None:
    weights = mg.tensor(np.ones((1 << 20, 4), np.float32), requires_grad=True)
    (weights * weights).exp().sum().backward()


def breaks_the_protocol(engine: mg.Engine) -> None:
    with engine._execution.sessions.session() as session:
        session._send(GraphCancelled("c0.0", 1))
        session.processes()


def uses_it_after_its_end(engine: mg.Engine) -> None:
    engine.close()
    mg.tensor([1.0], requires_grad=True).sum().backward()


WORKER = r"worker w\d\.\d \(pid \d+\)"
#: By what goes wrong: how, the error, and what its message and notes have to say.
TABLE: dict[str, tuple[Callable[[mg.Engine], None], type[BaseException], tuple[str, ...]]] = {
    "a rule raises": (
        fails("raise"), ValueError,
        ("wrong", r"raised in FailsBackward on worker \d \(pid \d+\)"),
    ),
    "a worker crashes": (
        fails("crash"), errors.WorkerLost,
        ("FailsBackward", WORKER, "SIGSEGV", r"No \.grad was changed", "Python stack"),
    ),
    "a worker leaves": (
        fails("leave"), errors.WorkerLost,
        ("FailsBackward", WORKER, "exited with status 7", r"No \.grad was changed", 'mode="local"'),
    ),
    "a task takes too long": (
        fails("hang"), errors.TaskTimedOut,
        ("FailsBackward", WORKER, r"after 1 s", r"No \.grad was changed", "task_timeout"),
    ),
    "the coordinator dies": (
        fails("kill the coordinator"), errors.CoordinatorLost,
        (r"coordinator process \(pid \d+\)", "SIGKILL", r"no \.grad was changed", "next backward"),
    ),
    "no memory is left": (
        needs_much_memory, errors.SharedMemoryExhausted,
        ("engine arena", r"\d bytes", "shm_limit", "MPGRAD_SHM_LIMIT", "the task .*Backward"),
    ),
    "a session is refused": (
        breaks_the_protocol, errors.EngineClosed,
        (r"coordinator process \(pid \d+\)", r"session c\d", "protocol error", "mpgrad doctor"),
    ),
    "the engine is closed": (
        uses_it_after_its_end, errors.EngineClosed, ("closed", "make a new one"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_an_error_tells_enough(case: str) -> None:
    provoke, kind, words = TABLE[case]
    timeout = 1.0 if kind is errors.TaskTimedOut else None
    limit = (8 if kind is errors.SharedMemoryExhausted else 256) << 20
    engine = mg.Engine("process", cpu_workers=1, shm_limit=limit, task_timeout=timeout)
    with engine, pytest.raises(kind) as caught:
        provoke(engine)
    assert caught.type is kind
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    for word in words:
        assert re.search(word, told), f"{word!r} is not in {told!r}"
