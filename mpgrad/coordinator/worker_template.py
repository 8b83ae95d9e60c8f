"""WorkerTemplate: the process that forks workers, as the coordinator sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable

import msgspec

from mpgrad.wire.setup import WorkerSetup, send_setup
from mpgrad.wire.template_messages import READY, ask_for_worker

#: Seconds that the first worker of an engine waits for the template to be ready, at most.
PATIENCE_S = 15.0
#: Seconds that a template which is ready has to fork a worker.
FORK_S = 2.0

#: Starts a child with these descriptors; the child, and where to write its setup.
Start = Callable[[tuple[int, ...]], tuple["subprocess.Popen[bytes]", int]]


class ForkedProcess:
    """A child that another process has forked; what ``Popen`` would be for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it is not reaped yet, so the pid is its own

    def wait(self) -> int:
        """Its status, when it has ended."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class WorkerTemplate:
    """The template, and another one if it dies.

    Args:
        origin: see ``send_setup``.
        start: starts a worker process with the descriptors that each worker inherits, and one more.
        setup: of a worker, for the template.
        start_timeout_s: how long a start may take; the first worker waits for half of that until
            the template is ready.
    """

    def __init__(
        self, origin: bytes, start: Start, setup: WorkerSetup, start_timeout_s: float
    ) -> None:
        self._origin, self._start, self._setup = origin, start, setup
        self._patience_s = min(PATIENCE_S, start_timeout_s / 2)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._is_ready = False
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process, writer = self._start((theirs.fileno(),))
            setup = msgspec.structs.replace(self._setup, template_fd=theirs.fileno())
            send_setup(writer, self._origin, setup)
        self._process, self._connection, self._is_ready = process, ours, False

    def fork(self, reader: int, stack: int) -> ForkedProcess | None:
        """A worker that reads its setup from ``reader`` and writes its stack to ``stack``; None if
        the template is not ready."""
        patience_s, self._patience_s = self._patience_s, 0.0
        if not self._look(patience_s):
            return None
        assert self._connection is not None
        self._connection.settimeout(FORK_S)
        try:
            return ForkedProcess(ask_for_worker(self._connection, reader, stack))
        except OSError:  # it has been killed, or stopped
            self._begin_again()
            return None

    def _look(self, timeout_s: float) -> bool:
        """Whether it is ready; one that has died gets a successor."""
        if not self._is_ready and self._connection is not None:
            self._connection.settimeout(timeout_s)
            try:
                said = self._connection.recv(len(READY))
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                said = b""
            self._is_ready = said == READY
            if not said:
                # It has died before it was ready, and so would the next one, unless somebody has
                # killed it.
                killed = self._process is not None and self._process.wait() == -signal.SIGKILL
                self._begin_again() if killed else self.close()
        return self._is_ready

    def _begin_again(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._begin()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._connection, self._process, self._is_ready = None, None, False
