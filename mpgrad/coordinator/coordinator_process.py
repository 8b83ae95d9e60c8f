"""The start of the coordinator: it starts the workers first, so that all import in parallel."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys

from mpgrad.base.exits import signal_at_end_of_pipe
from mpgrad.coordinator.supervisor import Supervisor, WorkerProcess
from mpgrad.coordinator.worker_processes import WorkerSpawner
from mpgrad.shm.backing import Backing
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.setup import CoordinatorSetup, begin_child, receive_setup

#: New objects between two runs of the garbage collector. The journal keeps tens of thousands of
#: objects for a while, and each run has to look at them.
GC_THRESHOLD = 1_000_000

#: The descriptors that the coordinator requests, more than the largest engine needs.
DESCRIPTORS = 16_384


def main(descriptor: int) -> None:
    """Run until the client closes the engine or dies."""
    gc.disable()  # a run would only look at the modules that are being loaded
    begin_child()
    try:
        setup = receive_setup(descriptor, CoordinatorSetup)
    except EOFError:
        sys.exit(1)
    try:
        client = os.pidfd_open(setup.client_pid)
    except ProcessLookupError:
        return
    if os.getppid() != setup.client_pid:
        return  # the client died before it could be watched
    shared_fds = (
        setup.client_arena_fd, setup.engine_arena_fd, setup.device_board_fd, setup.lifeline_fd,
    )  # fmt: skip
    for shared in shared_fds:
        if shared >= 0:
            os.set_inheritable(shared, False)  # each worker's start names what it inherits
    # Stopped, this process would not notice the end of the client, and would stay with its workers.
    signal_at_end_of_pipe(setup.lifeline_fd, signal.SIGCONT)
    _allow_descriptors()
    board = StatusBoard.create()
    supervisor = Supervisor(setup.cpu_workers, setup.gpus, board, WorkerSpawner(setup, board))
    workers, failure = start_workers(supervisor)

    from mpgrad.base.hook_for_tests import hooked
    from mpgrad.coordinator.coordinator import Coordinator
    from mpgrad.wire.journal_keeper import JournalKeeper

    # The loaded modules stay, and later objects make no cycles: the collector can skip them.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()
    router = hooked("coordinator", setup.endpoint.router())
    journal = JournalKeeper(setup.journal)
    coordinator = Coordinator(setup, router, supervisor, _engine_arena(setup), journal)
    try:
        coordinator.begin((client, setup.lifeline_fd), workers, failure)
        coordinator.run()
        coordinator.journal.on_end()
    except Exception as error:
        coordinator.on_error(error)
        raise
    finally:
        coordinator.close()


def start_workers(supervisor: Supervisor) -> tuple[list[WorkerProcess], OSError | None]:
    """Start as many workers as the system allows; return them, and its error for the next one.

    They are returned even after an error, so that the caller can end them.
    """
    workers: list[WorkerProcess] = []
    try:
        workers.extend(supervisor.start(slot) for slot in range(supervisor.slots))
    except OSError as error:
        return workers, error
    return workers, None


def _engine_arena(setup: CoordinatorSetup) -> Backing:
    """The allocator of the engine's arena, and its pages."""
    segment = Segment.attach(os.dup(setup.engine_arena_fd))
    free_list = FreeList.within(segment.nbytes, setup.shm_limit, "engine arena")
    return Backing(segment, free_list, map_here=False)


def _allow_descriptors() -> None:
    """Raise the soft limit: hundreds of workers need five descriptors each, and sessions one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
