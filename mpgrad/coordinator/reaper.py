"""Reaper: waits for a dead worker and says how it ended, and what memory had to do with that."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NamedTuple

from mpgrad.base import machine
from mpgrad.base.exits import describe_exit

#: ``ru_maxrss`` counts in these on Linux.
_KIB = 1024


class End(NamedTuple):
    """How a worker ended."""

    #: As ``subprocess`` gives it: a negative one is a signal's number.
    status: int
    #: "was killed by SIGKILL; ...".
    words: str

    @property
    def is_killed(self) -> bool:
        """By SIGKILL, which comes from outside: from somebody, or from the kernel."""
        return self.status == -signal.SIGKILL


class Reaper:
    """Knows which of the kernel's kills for want of memory are accounted for."""

    def __init__(self) -> None:
        self._oom_kills = machine.oom_kills()

    def reap(self, process: subprocess.Popen[bytes]) -> End:
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
        """Whether the kernel has made a kill that no earlier death was put down to."""
        if machine.oom_kills() <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Reap ``process``; the most memory that it has held, None if it was reaped before."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * _KIB


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
