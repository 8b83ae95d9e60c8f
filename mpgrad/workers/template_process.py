"""fork_workers(): what the template of workers does, see ``wire.template_messages``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable

from mpgrad.wire.environment import restore_environment
from mpgrad.wire.setup import WorkerSetup, begin_child, group_signals_held
from mpgrad.wire.template_messages import READY, answer, next_request, read_to_end

#: What a worker loads when it starts, and for its first call and that call's backward.
_OF_EACH_WORKER = (
    "mpgrad.base.hook_for_tests",
    "mpgrad.engine.engine",
    "mpgrad.engine.execution",
    "mpgrad.ops.calling.out_argument",
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
        for module in _OF_EACH_WORKER:
            importlib.import_module(module)
    except Exception:
        os._exit(1)  # workers that start without a template meet it, too, and report it
    for module in setup.preload:
        with contextlib.suppress(Exception):  # the task that needs it will say so
            importlib.import_module(module)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else each worker would write it
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # threads survive no fork: workers start without a template
    gc.freeze()  # what is loaded stays, in pages that all workers share
    with socket.socket(fileno=setup.template_fd) as connection:
        connection.send(READY)
        while (request := next_request(connection)) is not None:
            pid = _fork(*request)
            if pid is None:
                break
            for descriptor in request:
                os.close(descriptor)
            answer(connection, pid)
    if request is None:
        os._exit(0)  # what runs at the end of a process is for those that have worked
    sys.modules["numpy"].random.seed()  # each worker has numbers of its own
    return read_to_end(request[0]), request[1]


def _fork(reader: int, stack: int) -> int | None:
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
        while os.getppid() == between:
            os.sched_yield()
    begin_child()
    return None
