"""refusing(): the first lines of a program for which the kernel refuses a system call."""

from __future__ import annotations

import platform

import pytest

#: The calls that an engine's processes make, beside those without which Python itself does not
#: start, by their numbers on x86-64.
NUMBERS = {
    "memfd_create": 319, "ftruncate": 77, "fallocate": 285, "prlimit64": 302, "sysinfo": 99,
    "sched_getaffinity": 204, "sched_setaffinity": 203, "sched_setscheduler": 144,
    "sched_getscheduler": 145, "sched_getparam": 143, "mbind": 237, "madvise": 28,
    "getrandom": 318, "eventfd2": 290, "epoll_create1": 291, "epoll_ctl": 233, "epoll_wait": 232,
    "poll": 7, "socket": 41, "bind": 49, "listen": 50, "connect": 42, "accept4": 288,
    "getsockopt": 55, "sendto": 44, "recvfrom": 45, "pidfd_open": 434, "prctl": 157, "pipe2": 293,
    "execve": 59, "wait4": 61, "sigaltstack": 131, "chdir": 80, "getppid": 110,
    "geteuid": 107,
}  # fmt: skip

on_x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64"
)

_SOURCE = """
import ctypes, struct

def refuse(number, error):
    # A filter in classic BPF: load the number of the call; if it is this one, give the error.
    load, is_it, give, let_pass = (0x20, 0, 0, 0), (0x15, 0, 1, number), 0x50000 | error, 0x7FFF0000
    steps = [load, is_it, (0x06, 0, 0, give), (0x06, 0, 0, let_pass)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(kept))
    libc = ctypes.CDLL(None)
    no_new_privileges, set_seccomp, with_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, with_filter, program) == 0

refuse({number}, {error})
"""


def refusing(call: str, error: int) -> str:
    """Source.

    Args:
        call: one of NUMBERS.
        error: the errno that it gives.
    """
    return _SOURCE.format(number=NUMBERS[call], error=error)
