"""Ends of processes: in words for error messages, and as a signal to those who depend on them."""

from __future__ import annotations

import contextlib
import fcntl
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


def signal_at_end_of_pipe(descriptor: int, number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when the other end of a pipe closes.

    That works where nobody reads the pipe, and in a stopped process, too. No other process may have
    got this end by a fork: one process has the signal.
    """
    with contextlib.suppress(OSError):  # a kernel without signals for pipes
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, number)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
