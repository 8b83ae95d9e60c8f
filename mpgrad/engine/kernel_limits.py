"""What an engine needs of the kernel: descriptors, processes and threads; its calls are in
``kernel_calls``.

A shortage is reported before the start: libzmq aborts the whole process if the kernel refuses it a
descriptor or a thread, without a message that helps.
"""

from __future__ import annotations

import errno
import os
import resource
import threading

from mpgrad.base import machine
from mpgrad.base.standard_streams import occupy_standard_streams

#: The descriptors that the client opens for an engine, and for one more calling thread: 13 and 3,
#: and some more while processes start.
FOR_ENGINE, FOR_SESSION = 24, 6
#: The descriptors that the coordinator opens by itself and for each worker: 24 and 5.
FOR_COORDINATOR, FOR_WORKER = 64, 5

#: The threads of a ZeroMQ context: one for input and output, and one that closes sockets.
CONTEXT_THREADS = 2


def require_descriptors(count: int, what: str) -> None:
    """Make sure that this process may open ``count`` more descriptors, numbered from 3.

    Raises:
        OSError: (EMFILE) it may not; the message says that ``what`` needs them.
    """
    occupy_standard_streams()
    limit, _ = machine.resource_limits(resource.RLIMIT_NOFILE)
    used = _open_descriptors()
    if limit != resource.RLIM_INFINITY and used + count > limit:
        raise OSError(
            errno.EMFILE,
            f"{what} needs up to {count} file descriptors, and {used} of the {limit} that this "
            "process may have are in use; close files, or raise the limit (`ulimit -n`)",
        )


def require_hard_limit(cpu_workers: int) -> None:
    """Make sure that the coordinator may raise its own soft limit as far as it needs.

    Raises:
        OSError: (EMFILE) it may not.
    """
    _, limit = machine.resource_limits(resource.RLIMIT_NOFILE)
    count = FOR_COORDINATOR + FOR_WORKER * cpu_workers
    if limit != resource.RLIM_INFINITY and count > limit:
        raise OSError(
            errno.EMFILE,
            f"an engine with {cpu_workers} workers needs {count} file descriptors in its "
            f"coordinator, and the hard limit is {limit} (`ulimit -Hn`); use fewer workers",
        )


def require_real_threads() -> None:
    """Make sure that nobody has put something else in the place of threads and processes.

    Raises:
        RuntimeError: gevent has; the message says how to leave it out.
    """
    import subprocess  # here, since workers start nothing

    patched = [
        name
        for name, value in (("thread", threading.get_ident), ("subprocess", subprocess.Popen))
        if (value.__module__ or "").partition(".")[0] == "gevent"
    ]
    if patched:
        raise RuntimeError(
            f"gevent has patched {' and '.join(patched)}: worker processes cannot be started and "
            "waited for. Call gevent.monkey.patch_all(thread=False, subprocess=False), or use "
            'Engine(mode="local")'
        )


def require_same_user(user: int) -> None:
    """Make sure that an engine that was started as ``user`` hears this process.

    Raises:
        PermissionError: this process has become another user since.
    """
    if os.geteuid() != user:
        raise PermissionError(
            errno.EPERM,
            f"this process has become user {os.geteuid()}; the engine was started as user {user} "
            "and hears no other one. Start an engine behind os.setuid() (mg.Engine(...)), or use "
            'Engine(mode="local")',
        )


def require_processes(count: int) -> None:
    """Make sure that the system allows ``count`` more processes, each with its ZeroMQ threads.

    Raises:
        BlockingIOError: (EAGAIN) it does not.
    """
    release = threading.Event()
    threads: list[threading.Thread] = []
    needed = CONTEXT_THREADS + count * (1 + CONTEXT_THREADS)
    try:
        while len(threads) < needed:
            thread = threading.Thread(target=release.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        raise BlockingIOError(
            errno.EAGAIN,
            f"{os.strerror(errno.EAGAIN)}: an engine with {count} child processes needs {needed} "
            f"more processes and threads, and the system allows {len(threads)} (`ulimit -u`, the "
            "cgroup's pids.max and, for the stacks of threads, `ulimit -v` say how many); "
            'Engine(mode="local") needs none',
        ) from None
    finally:
        release.set()
        for thread in threads:
            thread.join()


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return machine.resource_limits(resource.RLIMIT_NOFILE)[0]
        return 0  # without /proc the start is tried, and may fail
