"""fork in the client while other threads are busy: the child finds no lock taken, no limit set."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import freeze
from mpgrad.calls.custom_functions import run_on
from mpgrad.engine import blas
from mpgrad.recording.tensors import accumulate_grad
from tests.leftovers import PATIENCE_S

pytestmark = [pytest.mark.process, pytest.mark.row("M12")]


class Doubles(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 2


def gradient() -> float:
    x = mg.ones(50, requires_grad=True)
    (Doubles.apply(x) * mg.exp(x @ x)).sum().backward()
    return float(x.grad.sum().item())


def said_by_child(action: Callable[[], object]) -> str:
    """What ``action`` gives in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(PATIENCE_S))  # it hangs
            os.write(writer, repr(action()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


@contextlib.contextmanager
def held_by_another_thread(*managers: Any) -> Iterator[None]:
    """Inside, a thread is in the middle of what takes these locks."""
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for manager in managers:
                stack.enter_context(manager)
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("mode", ["local", "process"])
def test_a_lock_that_another_thread_has(mode: str) -> None:
    def in_child() -> float:
        with mg.Engine(mode, cpu_workers=1):
            return gradient()

    with mg.Engine("local"):
        expected = gradient()
    locks = (
        blas._lock,
        run_on._lock,
        freeze._memory._lock,
        accumulate_grad._grad_lock,
    )
    with held_by_another_thread(*locks):
        assert said_by_child(in_child) == repr(expected)


def test_the_limit_of_another_threads_backward_ends_with_the_fork() -> None:
    def threads() -> list[int]:
        return [threads_of() for threads_of, _ in blas._libraries()]

    def after_a_backward() -> list[int]:
        with mg.Engine("local"):
            gradient()
        return threads()

    before = threads()
    with held_by_another_thread(blas.blas_limit(1)):
        assert set(threads()) == {1}
        assert said_by_child(after_a_backward) == repr(before)
    with blas.blas_limit(1):
        # That of the thread which forks goes on, and ends where it has to.
        assert said_by_child(after_a_backward) == repr([1] * len(before))
    assert threads() == before


def test_a_child_that_drops_gradients_gives_none_of_its_parents_back() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        x = mg.ones(1 << 12, requires_grad=True)
        (x * 3.0).sum().backward()

        def drop_and_go_on() -> float:
            x.grad = None
            return gradient()

        assert said_by_child(drop_and_go_on) == repr(gradient())
        assert engine.statistics().engine_arena.live_blocks == 1
        assert x.grad.tolist() == [3.0] * (1 << 12)
        x.grad = None
        assert engine.statistics().engine_arena.live_blocks == 0
        assert engine.statistics().protocol_errors == 0
