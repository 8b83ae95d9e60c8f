"""The start of a worker, up to its loop.

It binds its life to its parent's and takes over the client's environment before it imports NumPy.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from mpgrad.base.standard_streams import say
from mpgrad.wire.environment import WorkerEnvironment, restore_environment
from mpgrad.wire.setup import WorkerSetup, begin_child, decode_setup, start_reported

if TYPE_CHECKING:
    from mpgrad.workers.worker import Worker

_PR_SET_PDEATHSIG = 1


def main(data: bytes, load_tensors: Callable[[], None]) -> None:
    """Run a worker until it is told to stop.

    Args:
        data: the worker's setup.
        load_tensors: called as soon as the environment allows NumPy to be loaded.
    """
    gc.disable()  # imports make no garbage, and every run would look at all their objects
    begin_child()
    die_with_parent()
    setup = decode_setup(data, WorkerSetup)
    if setup.template_fd >= 0:
        from mpgrad.workers.template_process import fork_workers

        if os.getppid() != setup.coordinator_pid:
            sys.exit(1)
        data, stack_fd = fork_workers(setup, load_tensors)
        die_with_parent()
        if not data:
            sys.exit(1)  # the coordinator has not heard of this process
        setup = msgspec.structs.replace(decode_setup(data, WorkerSetup), stack_fd=stack_fd)
    if os.getppid() != setup.coordinator_pid:
        sys.exit(1)  # the coordinator died before the kernel could bind this process to it
    _bind(setup)  # first: a page lies near the processor that touches it first
    report_faults(setup.stack_fd)
    with start_reported(setup.stack_fd):
        environment = restore_environment(setup.environment)
        sys.breakpointhook = _no_breakpoint
        load_tensors()
        worker = _worker(setup, environment)
    let_others_wake_up()  # after the worker is made: ZeroMQ's threads keep the normal policy
    gc.freeze()  # modules stay: the collector skips them
    gc.enable()
    try:
        worker.run()
    except Exception as error:
        sys.stderr = sys.__stderr__  # nothing forwards this stream any more
        who = f"worker {setup.peer} (pid {os.getpid()})"
        say(f"{who} met an internal error: {error}")
        raise


def _bind(setup: WorkerSetup) -> None:
    """Let this process and its threads run on the processors of the setup only."""
    if not setup.cpus:
        return
    try:
        os.sched_setaffinity(0, setup.cpus)
    except OSError as error:  # they have been taken from this group of processes since then
        numbers = ", ".join(map(str, setup.cpus))
        say(f"worker {setup.peer} is not bound to processor {numbers}: {error.strerror}")


def _worker(setup: WorkerSetup, environment: WorkerEnvironment) -> Worker:
    from mpgrad.base.hook_for_tests import hooked
    from mpgrad.shm.status_board import StatusBoard
    from mpgrad.workers.worker import Worker
    from mpgrad.workers.worker_parts import ProcessExecutor

    board = StatusBoard.attach(setup.board_fd)
    executor = ProcessExecutor(setup, environment, board)
    return hooked("worker", Worker)(setup.endpoint, setup.peer, setup.slot, board, executor)


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends.

    The coordinator starts workers from its main thread, which lives as long as the process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def report_faults(descriptor: int) -> None:
    """Write the Python stack there if a fault ends this process; its parent reads it then."""
    os.set_inheritable(descriptor, False)
    with contextlib.suppress(OSError, RuntimeError):  # a sandbox may refuse sigaltstack
        faulthandler.enable(descriptor, all_threads=False)
    # A process that user code forks here is not the worker.
    os.register_at_fork(after_in_child=faulthandler.disable)


def let_others_wake_up() -> None:
    """Use a scheduling policy under which this process does not preempt the one that wakes it.

    Otherwise the coordinator, which wakes one worker, loses its core to it while the other worker
    waits for its message. Programs that user code starts inherit the policy (SCHED_BATCH).
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _no_breakpoint(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "breakpoint() was reached in a worker process, which has no terminal. Run the backward in "
        'this process to debug it: Engine(mode="local") or MPGRAD_ENGINE=local.'
    )
