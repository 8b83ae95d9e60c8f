"""Runs each method in a process of its own, forked from this one, a few at a time."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, NoReturn

from conformance.methods import Method, Outcome, describe


class _Child:
    """A process that runs one method; what it prints and its outcome go to files."""

    def __init__(self, method: Method, run: Callable[[Method], Outcome], seconds: float) -> None:
        self.method = method
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._seconds = seconds
        sys.stdout.flush()
        has_begun, begins = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(run, begins)
        self.pidfd = os.pidfd_open(self.pid)
        os.close(begins)
        os.read(has_begun, 1)
        os.close(has_begun)
        self.deadline = time.monotonic() + seconds

    def _run(self, run: Callable[[Method], Outcome], begins: int) -> NoReturn:
        """In the child: never returns; closes ``begins`` when its time begins."""
        try:
            os.setsid()
            for stream in (1, 2):
                os.dup2(self._printed.fileno(), stream)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.enable(self._printed.fileno())
            os.close(begins)
            try:
                outcome = run(self.method)
            except BaseException as error:
                outcome = describe(error)
            self._told.write(json.dumps(outcome).encode())
            self._told.flush()
        finally:
            os._exit(0)

    def outcome(self) -> Outcome:
        """Once the process has ended, or its time is over: it and what it has started end."""
        late = time.monotonic() > self.deadline
        if late:
            self._tell_where_it_is()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self._printed.seek(0)
        self._told.seek(0)
        printed, told = self._printed.read().decode(errors="replace"), self._told.read()
        self._printed.close()
        self._told.close()
        if told:
            return Outcome(*json.loads(told))
        what = f"took longer than {self._seconds:.0f} s" if late else "the process died"
        return Outcome("crashed", what, printed)

    def _tell_where_it_is(self) -> None:
        """Have the process print its stacks and abort."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.poll(5000)


def outcomes(
    methods: Sequence[Method], run: Callable[[Method], Outcome], *, jobs: int, seconds: float
) -> Iterator[tuple[Method, Outcome]]:
    """Run all ``methods``; yield what became of each, in the order in which they end.

    Args:
        methods: which.
        run: runs one, in its process.
        jobs: how many processes at a time.
        seconds: how long one may take.
    """
    waiting, running = deque(methods), dict[int, _Child]()
    poll = select.poll()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _Child(waiting.popleft(), run, seconds)
                running[child.pidfd] = child
                poll.register(child.pidfd, select.POLLIN)
            now = time.monotonic()
            first = min(child.deadline for child in running.values())
            ended = {fd for fd, _ in poll.poll(max(0.0, first - now) * 1000 + 1)}
            ended |= {fd for fd, child in running.items() if time.monotonic() > child.deadline}
            for fd in ended:
                poll.unregister(fd)
                child = running.pop(fd)
                yield child.method, child.outcome()
    finally:
        for child in running.values():
            child.outcome()
