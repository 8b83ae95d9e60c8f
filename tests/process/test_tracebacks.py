"""The traceback of an error in a backward shows the user's lines, and one line about ours."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.base.user_frames import HIDDEN
from mpgrad.errors import WorkerLost

pytestmark = pytest.mark.process

RunScript = Callable[..., CompletedProcess[str]]

SCRIPT = """
import mpgrad as mg

class Fails(mg.Function):
    run_on = {run_on!r}

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        return halve(grad, 0)


def halve(grad, by):
    return grad / (1 // by)


def train(engine):
    with engine:
        x = mg.ones(3, requires_grad=True)
        (Fails.apply(x) * x).sum().backward()


train(mg.Engine("{mode}", cpu_workers=1))
"""


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPGRAD_TRACEBACK", raising=False)


def places(stderr: str) -> list[str]:
    """The functions that a printed traceback names."""
    return re.findall(r'^  File ".*", line \d+, in (\S+)$', stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("mode", "run_on", "shown"),
    [
        ("local", None, ["<module>", "train", "backward", "halve"]),
        ("process", None, ["<module>", "train", "backward", "halve"]),
        # First what the worker has seen, then this process.
        ("process", "worker", ["backward", "halve", "<module>", "train"]),
    ],
)
def test_the_frames_of_the_user_alone(
    run_script: RunScript, mode: str, run_on: str | None, shown: list[str]
) -> None:
    done = run_script(SCRIPT.format(mode=mode, run_on=run_on))
    assert done.returncode == 1
    assert places(done.stderr) == shown
    assert done.stderr.count(HIDDEN) == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("mode", ["local", "process"])
def test_all_frames_on_request(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("MPGRAD_TRACEBACK", "full")
    done = run_script(SCRIPT.format(mode=mode, run_on="worker"))
    assert "execute" in places(done.stderr)
    assert HIDDEN not in done.stderr


def test_an_error_without_code_of_the_user() -> None:
    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        mg.ones(()).backward()
    (entry,) = traceback.extract_tb(caught.value.__traceback__)
    assert entry.name == "test_an_error_without_code_of_the_user"


class Outer(mg.Function):
    run_on = "client"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        try:
            mg.grad(mg.ones(()), mg.ones(()))
        except RuntimeError as error:
            raise ValueError("outer") from error


def test_a_nested_backward_says_it_once() -> None:
    with pytest.raises(ValueError, match="outer") as caught, mg.Engine("local"):
        Outer.apply(mg.ones(2, requires_grad=True)).sum().backward()
    text = "".join(traceback.format_exception(caught.value))
    assert places(text) == ["backward", "test_a_nested_backward_says_it_once", "backward"]
    assert caught.value.__notes__.count(HIDDEN) == 1


class Faults(mg.Function):
    """Ends its worker as a bug of C code does."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, signal_name: str) -> Any:
        ctx.signal_name = signal_name
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return end_by(ctx.signal_name)


def end_by(signal_name: str) -> Any:
    import os
    import signal

    os.kill(os.getpid(), getattr(signal, signal_name))


def test_the_python_stack_of_a_worker_that_died() -> None:
    with mg.Engine("process", cpu_workers=1):
        for name in ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS", "SIGILL"):
            with pytest.raises(WorkerLost, match=f"{name} \\(2 times\\)") as caught:
                Faults.apply(mg.ones(2, requires_grad=True), name).sum().backward()
            assert "The cause of this error (__cause__) is its Python stack." in str(caught.value)
            stack = str(caught.value.__cause__)
            assert stack.strip().startswith("Fatal Python error: ")
            assert re.findall(r"line \d+ in (\S+)", stack) == ["end_by", "backward"]


def test_a_death_without_a_stack() -> None:
    with mg.Engine("process", cpu_workers=1):
        with pytest.raises(WorkerLost, match="SIGKILL") as caught:
            Faults.apply(mg.ones(2, requires_grad=True), "SIGKILL").sum().backward()
        assert caught.value.__cause__ is None


class OneGradient(mg.Function):
    """Returns one gradient for two arguments."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, factor: float) -> Any:
        return x.numpy() * factor

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad


def test_what_mpgrad_itself_raises_on_a_worker_is_said_once() -> None:
    with mg.Engine("process", cpu_workers=1):
        with pytest.raises(RuntimeError, match=r"expected 2, got 1") as caught:
            OneGradient.apply(mg.ones(2, requires_grad=True), 3.0).sum().backward()
        assert caught.value.__cause__ is None
        assert any("raised in OneGradientBackward on worker" in n for n in caught.value.__notes__)
