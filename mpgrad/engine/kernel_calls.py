"""require_calls(): tries each system call that an engine's processes need, once, before they start.

A filter of system calls holds for children, too. Refused there, a call would end them, let a
message wait for ever, or abort this process: libzmq does that for most of the calls of its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import signal
import socket
import struct
from functools import partial
from mmap import PAGESIZE

from mpgrad.base.refused_calls import named, refused
from mpgrad.shm.segment import Segment

_USE = "worker processes"
_needed = partial(named, use=_USE)

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_EPOLL_CTL_ADD, _POLLIN = 1, 1
#: ``struct ucred``: the process, user and group at the other end.
_CREDENTIALS = 12


def require_calls() -> None:
    """Make sure that none of these calls is refused here.

    Calls that only make things faster (affinity, priorities) are not among them.

    Raises:
        OSError: one is; the message names it.
    """
    segment = Segment.create_sparse(PAGESIZE, "a trial")
    try:
        segment.reserve(0, PAGESIZE)
    finally:
        segment.close()
    libc = ctypes.CDLL(None, use_errno=True)
    _require_processes(libc)
    _require_threads(libc)
    with contextlib.ExitStack() as opened:
        _require_messages(libc, opened)


def _require_processes(libc: ctypes.CDLL) -> None:
    """What starts, watches and ends processes."""
    own, died_with = os.getpid(), ctypes.c_int()
    with _needed("pidfd_open"):
        os.close(os.pidfd_open(own))
    with _needed("wait4"), contextlib.suppress(ChildProcessError):
        os.waitpid(own, os.WNOHANG)
    with _needed("waitid"), contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, own, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    with _needed("kill"):
        os.kill(own, 0)
    with _needed("pipe2"):
        for end in os.pipe():
            os.close(end)
    with _needed("rt_sigprocmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, ())
    _called(libc, "usleep", 1, name="clock_nanosleep")
    # What these two give is compared with what a process was told. They never fail, so the C
    # library gives what the filter has given.
    for call in ("getppid", "geteuid"):
        given = -int(getattr(libc, call)())
        if given in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise refused(call, given, _USE)
    _called(libc, "prctl", _PR_GET_PDEATHSIG, ctypes.byref(died_with), 0, 0, 0)
    _called(libc, "prctl", _PR_SET_PDEATHSIG, died_with.value, 0, 0, 0)


def _require_threads(libc: ctypes.CDLL) -> None:
    """libzmq gives each of its threads the policy that it has already."""
    thread, policy, parameter = ctypes.c_ulong(), ctypes.c_int(), ctypes.create_string_buffer(64)
    libc.pthread_self.restype = ctypes.c_ulong
    thread.value = libc.pthread_self()
    number = libc.pthread_getschedparam(thread, ctypes.byref(policy), parameter)
    if number:
        raise refused("sched_getscheduler or sched_getparam", number, _USE)
    number = libc.pthread_setschedparam(thread, policy, parameter)
    if number:
        raise refused("sched_setscheduler", number, _USE)


def _require_messages(libc: ctypes.CDLL, opened: contextlib.ExitStack) -> None:
    """What sends a message to another process; one byte goes from here to here.

    The functions of the C library are called: other code may have put its own into Python's
    modules, as gevent does.
    """

    def opens(call: str, *args: object, name: str | None = None) -> int:
        descriptor = _called(libc, call, *args, name=name)
        opened.callback(os.close, descriptor)
        return descriptor

    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    address = struct.pack("=H", socket.AF_UNIX) + f"\0mpgrad-{secrets.token_hex(16)}".encode()
    opens("eventfd", 0, os.EFD_CLOEXEC, name="eventfd2")
    poller = opens("epoll_create1", os.O_CLOEXEC)
    listener, sender = (opens("socket", socket.AF_UNIX, kind, 0) for _ in range(2))
    _called(libc, "bind", listener, address, len(address))
    _called(libc, "listen", listener, 1)
    _called(libc, "connect", sender, address, len(address))
    receiver = opens("accept4", listener, None, None, kind & ~socket.SOCK_STREAM)
    length = ctypes.c_int(_CREDENTIALS)
    credentials = ctypes.create_string_buffer(_CREDENTIALS)
    option = socket.SOL_SOCKET, socket.SO_PEERCRED
    _called(libc, "getsockopt", receiver, *option, credentials, ctypes.byref(length))
    _called(libc, "send", sender, b"\0", 1, 0, name="sendto")
    # struct epoll_event is packed on x86 alone; a place for the larger one serves both.
    watched = ctypes.create_string_buffer(struct.pack("=IQI", _POLLIN, 0, 0))
    _called(libc, "epoll_ctl", poller, _EPOLL_CTL_ADD, receiver, watched)
    _called(libc, "epoll_wait", poller, watched, 1, 0)
    polled = ctypes.create_string_buffer(struct.pack("=ihh", receiver, _POLLIN, 0))
    _called(libc, "poll", polled, 1, 0)
    _called(libc, "recv", receiver, ctypes.create_string_buffer(1), 1, 0, name="recvfrom")


def _called(libc: ctypes.CDLL, function: str, *args: object, name: str | None = None) -> int:
    """The result of a function of the C library.

    Args:
        libc: the library.
        function: its name.
        args: of the function.
        name: of its system call, if that is another one.

    Raises:
        OSError: it has given -1.
    """
    result = int(getattr(libc, function)(*args))
    if result == -1:
        raise refused(name or function, ctypes.get_errno(), _USE)
    return result
