"""What a worker does before it loads anything heavy: bind its life to its parent's, take over the
client's surroundings, and only then import NumPy and the rest."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from mpgrad.base.standard_streams import say
from mpgrad.wire.environment import WorkerEnvironment, restore_environment
from mpgrad.wire.setup import WorkerSetup, begin_child, receive_setup

if TYPE_CHECKING:
    from mpgrad.workers.worker import Worker

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, load_tensors: Callable[[], None]) -> None:
    """Run a worker until it is told to stop.

    Args:
        descriptor: gives the worker's setup.
        load_tensors: called as soon as the environment allows to load NumPy.
    """
    gc.disable()  # importing makes no garbage, and each time there would be more to look through
    begin_child()
    die_with_parent()
    try:
        setup = receive_setup(descriptor, WorkerSetup)
    except EOFError:
        sys.exit(1)
    if os.getppid() != setup.coordinator_pid:
        sys.exit(1)  # the coordinator died before the kernel knew that we follow it
    environment = restore_environment(setup.environment)
    sys.breakpointhook = _no_breakpoint
    load_tensors()
    worker = _worker(setup, environment)
    let_others_wake_up()  # behind the worker: the threads of its ZeroMQ context stay as they are
    gc.freeze()  # modules stay: the collector need not go through them in the middle of a task
    gc.enable()
    try:
        worker.run()
    except Exception as error:
        sys.stderr = sys.__stderr__  # nobody passes on any more what is written here
        who = f"worker {setup.peer} (pid {os.getpid()})"
        say(f"{who} met an internal error: {error}")
        raise


def _worker(setup: WorkerSetup, environment: WorkerEnvironment) -> Worker:
    from mpgrad.base.hook_for_tests import hooked
    from mpgrad.shm.status_board import StatusBoard
    from mpgrad.workers.worker import Worker
    from mpgrad.workers.worker_parts import ProcessExecutor

    executor, board = ProcessExecutor(setup, environment), StatusBoard.attach(setup.board_fd)
    return hooked("worker", Worker)(setup.endpoint, setup.peer, setup.slot, board, executor)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The coordinator starts workers from its main thread, which lives as long as the process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def let_others_wake_up() -> None:
    """Have the kernel not take the core from whoever wakes this process.

    In 63 of 240 backwards the coordinator woke one worker and lost its core to it for a time slice
    of 3 ms, while the other worker waited for its message; as a batch process in 5 of 240.
    Programs that user code starts are batch processes, too: they yield in this way, and no more.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _no_breakpoint(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "breakpoint() was reached in a worker process, which has no terminal. Run the backward in "
        'this process to debug it: Engine(mode="local") or MPGRAD_ENGINE=local.'
    )
