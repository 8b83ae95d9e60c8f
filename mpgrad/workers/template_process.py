"""fork_workers(): what a template does, see ``wire.template``."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable

from mpgrad.wire.environment import restore_environment
from mpgrad.wire.setup import WorkerSetup, begin_child, group_signals_held
from mpgrad.wire.template import READY, answer, next_request, read_to_end

#: What a worker loads when it starts, and for its first call.
_OF_EACH_WORKER = (
    "mpgrad.base.hook_for_tests",
    "mpgrad.shm.status_board",
    "mpgrad.wire.zeromq",
    "mpgrad.workers.calls",
    "mpgrad.workers.worker",
    "mpgrad.workers.worker_parts",
    "numpy.random",
)


def fork_workers(setup: WorkerSetup, load_tensors: Callable[[], None]) -> tuple[bytes, int]:
    """Load what workers need, and fork one whenever the coordinator asks.

    Returns:
        In each worker: its setup, and where it writes its stack.
    """
    try:
        restore_environment(setup.environment)
        load_tensors()
        from mpgrad.autograd.running import engine_slot  # it loads NumPy

        engine_slot.is_worker = True
        for module in (*_OF_EACH_WORKER, *setup.preload):
            importlib.import_module(module)
    except Exception:
        sys.exit(1)  # workers that start without a template meet it, too, and report it
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("a library that workers need has started threads, which no fork survives")
    gc.freeze()  # what is loaded stays, in pages that all workers share
    connection = socket.socket(fileno=setup.template_fd)
    connection.send(READY)
    while (request := next_request(connection)) is not None:
        pid = _fork(*request, connection, setup.coordinator_pid)
        if pid is None:
            return read_to_end(request[0]), request[1]
        for descriptor in request:
            os.close(descriptor)
        answer(connection, pid)
    sys.exit()


def _fork(reader: int, stack: int, connection: socket.socket, coordinator: int) -> int | None:
    """The pid of a new worker, 0 if there is none; in the worker: None."""
    read, write = os.pipe()
    with group_signals_held():
        try:
            between = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            return 0
        if between:
            os.close(write)
            found = int(read_to_end(read) or b"0")
            os.waitpid(between, 0)
            return found
        between, made = os.getpid(), 0
        try:
            made = os.fork()
            if made:
                os.write(write, str(made).encode())
        finally:
            if os.getpid() == between:
                os._exit(0)
        os.close(read)
        os.close(write)
        connection.close()
        while os.getppid() == between:
            os.sched_yield()
    begin_child()
    return None
