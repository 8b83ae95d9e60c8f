"""A debugger stops in this process, also in Functions that would run on workers."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.leftovers import PATIENCE_S
from tests.process.conftest import script_environment

pytestmark = [pytest.mark.process, pytest.mark.slow]

FUNCTION = """
import mpgrad as mg


class Scales(mg.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.numpy() * factor

    @staticmethod
    def backward(ctx, grad):
        here = "here"
        {line}
        return grad * ctx.factor, None


x = mg.ones(3, requires_grad=True)
(Scales.apply(x, 7.0) * x).sum().backward()
print("gradient", x.grad.tolist())
"""


class Terminal:
    """A program at a pseudo-terminal: what it has written, and what one types."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process, self._descriptor = process, descriptor
        self.shown = ""

    def read_until(self, text: str) -> str:
        """What is shown up to ``text`` and was not read before."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} does not come: {self.shown}"
            if select.select([self._descriptor], [], [], left)[0]:
                try:
                    data = os.read(self._descriptor, 4096)
                except OSError:  # the program has gone
                    data = b""
                assert data, f"{text!r} does not come: {self.shown}"
                self.shown += data.decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())


@contextmanager
def at_terminal(*command: object) -> Iterator[Terminal]:
    """Run a program at a terminal of its own, and end it."""
    ours, its = os.openpty()
    environment = {**script_environment(), "TERM": "dumb", "NO_COLOR": "1"}
    try:
        with subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True,
        ) as process:  # fmt: skip
            os.close(its)
            try:
                yield Terminal(process, ours)
            finally:
                process.kill()
    finally:
        os.close(ours)


def script(directory: Path, line: str) -> Path:
    path = directory / "script.py"
    path.write_text(FUNCTION.format(line=line))
    return path


@pytest.mark.parametrize("line", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_function_that_calls_a_debugger(tmp_path: Path, line: str) -> None:
    with at_terminal(script(tmp_path, line)) as terminal:
        said = terminal.read_until("(Pdb) ")
        assert "it stops in this process" in said
        terminal.type("p ctx.factor, len(grad)")
        assert "(7.0, 3)" in terminal.read_until("(Pdb) ")
        terminal.type("continue")
        terminal.read_until("gradient [14.0, 14.0, 14.0]")
        assert terminal.process.wait(PATIENCE_S) == 0


def test_a_breakpoint_in_its_file(tmp_path: Path) -> None:
    path = script(tmp_path, "twice = 2 * ctx.factor")
    line = path.read_text().splitlines().index("        twice = 2 * ctx.factor") + 1
    with at_terminal("-m", "pdb", path) as terminal:
        terminal.read_until("(Pdb) ")
        terminal.type(f"break {line}")
        terminal.read_until("(Pdb) ")
        terminal.type("continue")
        assert "twice = 2 * ctx.factor" in terminal.read_until("(Pdb) ")
        terminal.type("p ctx.factor, here")
        assert "(7.0, 'here')" in terminal.read_until("(Pdb) ")
        terminal.type("quit")
        terminal.process.wait(PATIENCE_S)


def test_a_function_that_fails_on_a_worker_is_looked_at_here(tmp_path: Path) -> None:
    with at_terminal("-m", "mpgrad", "run", "--pdb", script(tmp_path, "0 / 0")) as terminal:
        said = terminal.read_until("(Pdb) ")
        assert "ZeroDivisionError" in said
        terminal.type("p ctx.factor, len(grad)")
        assert "(7.0, 3)" in terminal.read_until("(Pdb) ")
        terminal.type("quit")
        assert terminal.process.wait(PATIENCE_S) == 1
