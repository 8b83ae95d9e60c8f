"""PeerProcess: a peer's programs in a separate interpreter, which measures the time itself."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.rounds import Array, Contender, average

NOT_INSTALLED = "not installed"
_ROOT = Path(__file__).resolve().parents[2]
#: mpgrad sets this for its own process, and children would inherit it.
_OURS = "OPENBLAS_THREAD_TIMEOUT"
#: The maximum characters shown of a dead peer's output.
_SAID_MAX = 2000
#: A peer is at rest when it used less CPU time than this in a pause of that length.
_REST_S, _PAUSE_S = 0.001, 0.005
#: A peer that never rests must not stop the benchmark.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class Program:
    """A peer's work for one case; made and run in the peer's process.

    Attributes:
        work: the timed part; its argument is the result of ``prepare``.
        prepare: the untimed part.
        gradients: of the last ``work``.
        close: frees what the program holds.
    """

    work: Callable[[Any], object]
    gradients: Callable[[], list[Array]]
    prepare: Callable[[], Any] = lambda: None
    close: Callable[[], object] = lambda: None


def is_installed(module: str) -> bool:
    """Whether it can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


class PeerFailed(RuntimeError):
    """The peer raised; the message is its own."""


class PeerProcess:
    """One interpreter for one library; a context manager.

    It starts with the first program, so that an unused peer costs nothing. Its stderr is shown only
    if it dies, because some libraries write much there.

    Args:
        name: the row of the table.
        module: the module that must be installed.
    """

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._is_installed = is_installed(module)
        self._child: subprocess.Popen[bytes] | None = None
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115, closed in __exit__

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()
        self._messages.close()

    def _end(self) -> None:
        """The child ends when its connection does."""
        if self._child is not None:
            self._connection.close()
            self._child.wait()
            self._child = None

    def contender(self, program: str, *args: Any, repeats: int = 1) -> Contender:
        """Take another program instead of the one before it.

        The row of a peer that is not installed, or that cannot set up its program, says so.

        Args:
            program: ``module.function`` in ``benchmarks.peers``, which returns a Program.
            args: for that function.
            repeats: see ``rounds.backward``.
        """
        if not self._is_installed:
            return Contender(self.name, None, remark=lambda: NOT_INSTALLED)
        try:
            self._ask("load", program, args)
        except PeerFailed as error:
            reason = f"failed: {str(error).splitlines()[0]}"
            return Contender(self.name, None, remark=lambda: reason)

        def renew() -> None:
            self._end()
            self._ask("load", program, args)

        return Contender(
            self.name,
            lambda: self._ask("sample", repeats),
            lambda: self._ask("gradients"),
            renew=renew,
        )

    def _ask(self, *request: Any) -> Any:
        if self._child is None:
            self._start()
        try:
            self._connection.send(request)
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PeerFailed(f"the process of {self.name} has ended:\n{self._said()}") from error
        if not succeeded:
            raise PeerFailed(answer)
        return answer

    def _said(self) -> str:
        self._messages.seek(0)
        return self._messages.read().decode(errors="replace")[-_SAID_MAX:]

    def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.peers.process", str(there.fileno())],
                pass_fds=(there.fileno(),),
                stderr=self._messages,
                cwd=_ROOT,
                env={name: text for name, text in os.environ.items() if name != _OURS},
            )
        self._connection = Connection(here.detach())


def _serve(connection: Connection) -> None:
    """The child: it runs programs and samples on request, until the connection closes."""
    program: Program | None = None
    while True:
        try:
            what, *details = connection.recv()
        except (EOFError, ConnectionResetError):
            break
        try:
            if what == "load":
                if program is not None:
                    program.close()
                    program = None
                name, args = details
                program, answer = _find(name)(*args), None
                _keep_collector_off()
            else:
                assert program is not None
                answer = _sample(program, *details) if what == "sample" else program.gradients()
            connection.send((True, answer))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))
    if program is not None:
        program.close()


def _find(name: str) -> Callable[..., Program]:
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)  # type: ignore[no-any-return]


def _keep_collector_off() -> None:
    """As in the measuring process (``rounds.measure``): collections only between samples."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _sample(program: Program, repeats: int) -> float:
    seconds = average(program.prepare, program.work, repeats)
    _rest()
    return seconds


def _rest() -> None:
    """Wait until threads that spin for more work sleep: they would use other processes' cores."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(_PAUSE_S)
        if time.process_time() - before < _REST_S:
            return


if __name__ == "__main__":
    # Not as __main__: programs and this loop must see the same classes.
    from benchmarks.peers import process

    process._serve(Connection(int(sys.argv[1])))
