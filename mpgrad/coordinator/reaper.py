"""Reaper: waits for a dead worker and describes how it ended and whether memory ran out."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NamedTuple

from mpgrad.base import machine
from mpgrad.base.exits import describe_exit
from mpgrad.coordinator.worker_template import ForkedProcess

#: The unit of ``ru_maxrss`` on Linux.
_KIB = 1024


class End(NamedTuple):
    """How a worker ended."""

    #: As in ``subprocess``: a negative value is the number of a signal.
    status: int
    #: "was killed by SIGKILL; ...".
    words: str
    #: What faulthandler wrote at a fault; empty if there was none.
    stack: str = ""

    @property
    def is_killed(self) -> bool:
        """Whether it ended by SIGKILL, which comes from outside: from a user or from the kernel."""
        return self.status == -signal.SIGKILL


class Reaper:
    """Reaps workers, and counts the kernel's out-of-memory kills that it has attributed."""

    def __init__(self) -> None:
        self._oom_kills = machine.oom_kills()

    def reap(self, process: subprocess.Popen[bytes] | ForkedProcess) -> End:
        """Wait for the end of ``process``."""
        peak_bytes = _wait(process)
        status = process.wait()
        words = describe_exit(status)
        if status == -signal.SIGKILL:
            if self._is_for_want_of_memory():
                words += ", because memory ran out"
            if peak_bytes is not None:
                words += (
                    f" (it had held up to {_mib(peak_bytes)} of {_mib(machine.memory_total())})"
                )
        return End(status, words)

    def _is_for_want_of_memory(self) -> bool:
        """Whether the kernel has made an out-of-memory kill that explains no earlier death."""
        if machine.oom_kills() <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True


def _wait(process: subprocess.Popen[bytes] | ForkedProcess) -> int | None:
    """Reap ``process``; return its peak memory, or None if it was reaped before."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * _KIB


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
