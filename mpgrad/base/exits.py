"""How a child process ended, in words for an error message; and whether a child is stopped."""

from __future__ import annotations

import os
import signal


def describe_exit(status: int) -> str:
    """Describe ``status`` of ``subprocess``: a negative value is the number of a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def is_stopped(pid: int) -> bool:
    """Whether a child of this process has got SIGSTOP and no SIGCONT since, without reaping it.

    A debugger's stop does not count.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
