"""How a child process ended, in words for an error message, and whether one is stopped."""

from __future__ import annotations

import os
import signal


def describe_exit(status: int) -> str:
    """``status`` as ``subprocess`` gives it: a negative one is a signal's number."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def is_stopped(pid: int) -> bool:
    """Whether a child of this process got SIGSTOP and no SIGCONT since; asking changes nothing.

    A debugger's stop is not seen as one.
    """
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
