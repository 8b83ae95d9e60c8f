"""``Engine(progress=True)``: a long backward in workers says how far it is."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest

import mpgrad as mg
from mpgrad.engine import progress_display
from tests.leftovers import wait_until

pytestmark = pytest.mark.process


class Waits(mg.Function):
    """Its backward waits until a pipe has an end: not before the test lets it go."""

    run_on = "worker"

    @staticmethod
    def forward(ctx, x, path):
        ctx.path = path
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        with open(ctx.path) as pipe:
            pipe.read()
        return grad, None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_while_one_task_waits(engine: mg.Engine, stream: io.StringIO, path: str) -> None:
    os.mkfifo(path)
    x = mg.ones(2, requires_grad=True)
    with engine:
        thread = threading.Thread(target=Waits.apply(x, path).sum().backward)
        thread.start()
        writer = os.open(path, os.O_WRONLY)  # the worker has it open now
        try:
            if engine._options.progress and stream.isatty():
                assert wait_until(lambda: "1 at work" in stream.getvalue())
        finally:
            os.close(writer)
            thread.join()


def test_a_terminal_shows_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(progress_display, "APPEARS_AFTER_S", 0.01)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    engine = mg.Engine("process", cpu_workers=1, progress=True)
    shown_while_one_task_waits(engine, stream, str(tmp_path / "pipe"))
    first, *_, last = stream.getvalue().split("\r\x1b[K")
    assert (first, last) == ("", "")
    assert "tasks, 1 at work, " in stream.getvalue()
    assert "backward [" in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_without_a_terminal_or_the_option_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path, is_terminal: bool
) -> None:
    monkeypatch.setattr(progress_display, "APPEARS_AFTER_S", 0.01)
    monkeypatch.setattr(sys, "stderr", stream := (Terminal() if is_terminal else io.StringIO()))
    engine = mg.Engine("process", cpu_workers=1, progress=not is_terminal)
    shown_while_one_task_waits(engine, stream, str(tmp_path / "pipe"))
    assert stream.getvalue() == ""


def test_the_line_counts_tasks_and_seconds() -> None:
    assert progress_display._line(10, 5, 2, 3.21) == (
        "backward [##########          ] 5/10 tasks, 2 at work, 3.2 s"
    )
    assert "0/10 tasks" in progress_display._line(10, 25, 2, 1.0)  # of other threads, too
