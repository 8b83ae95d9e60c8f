"""Ends of processes: waited for, in words for error messages, and as a signal to those who depend
on them; and the end of a child."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import io
import os
import select
import signal
import sys
import threading


def describe_exit(status: int) -> str:
    """Describe ``status`` of ``subprocess``: a negative value is the number of a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def has_ended(pidfd: int, timeout_s: float) -> bool:
    """Whether a process has ended, or ends in that many seconds.

    ``Popen.wait`` with a timeout asks again and again, up to 50 ms after the end.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0.0) * 1e3))


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


def end_child() -> None:
    """End this process, nearly as ``multiprocessing`` ends its children.

    Threads are waited for, functions of ``atexit`` run, and so do those of C libraries. But modules
    and objects are not taken apart: in a forked process the kernel copies each page that this
    touches, which takes 40 ms. Where user code has left a file open, this returns: then Python
    ends the process, and writes what the file still holds.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if any(map(_is_open_file, gc.get_objects())):
        return
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # there may be none, or a closed one
            stream.flush()  # type: ignore[union-attr]
    ctypes.PyDLL(None).exit(0)  # not os._exit: Fortran and C libraries may have text to write


def _is_open_file(value: object) -> bool:
    # Of its type, not by isinstance(), which asks proxies what they are.
    return issubclass(type(value), io.IOBase) and not getattr(value, "closed", False)
