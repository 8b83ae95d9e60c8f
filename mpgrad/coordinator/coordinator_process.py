"""The start of the coordinator: the template of its workers starts first, so that both import in
parallel."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
from typing import TYPE_CHECKING

from mpgrad.base import machine
from mpgrad.base.exits import signal_at_end_of_pipe
from mpgrad.coordinator.supervisor import Supervisor, WorkerProcess
from mpgrad.coordinator.worker_processes import WorkerSpawner
from mpgrad.shm.backing import Backing
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.setup import (
    STARTED,
    CoordinatorSetup,
    begin_child,
    decode_setup,
    start_reported,
)

if TYPE_CHECKING:
    from mpgrad.coordinator.coordinator import Coordinator

#: New objects between two runs of the garbage collector: there are hardly any cycles, and each run
#: has to look at the tables of all graphs.
GC_THRESHOLD = 1_000_000

#: The descriptors that the coordinator requests, more than the largest engine needs.
DESCRIPTORS = 16_384


def main(data: bytes) -> None:
    """Run until the client closes the engine or dies.

    Args:
        data: the coordinator's setup.
    """
    gc.disable()  # a run would only look at the modules that are being loaded
    begin_child()
    setup = decode_setup(data, CoordinatorSetup)
    try:
        client = os.pidfd_open(setup.client_pid)
    except ProcessLookupError:
        return
    if os.getppid() != setup.client_pid:
        return  # the client died before it could be watched
    said = _take_streams(setup)
    board = StatusBoard.create()
    spawner = WorkerSpawner(setup, board)
    try:
        with start_reported(said):
            coordinator = _start(setup, client, board, spawner)
        with contextlib.suppress(BrokenPipeError):  # the client has died meanwhile
            os.write(said, STARTED)
        os.close(said)
        try:
            coordinator.run()
        except Exception as error:
            coordinator.give_up(error)
            raise SystemExit(1) from None
        finally:
            coordinator.close()
    finally:
        spawner.close()


def _take_streams(setup: CoordinatorSetup) -> int:
    """Print where the client prints; return where the client hears of the start."""
    said = os.dup(2)
    for number, stream in enumerate(setup.streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    return said


def _start(
    setup: CoordinatorSetup, client: int, board: StatusBoard, spawner: WorkerSpawner
) -> Coordinator:
    """Start the workers, and make what serves them."""
    shared_fds = (
        setup.client_arena_fd, setup.engine_arena_fd, setup.device_board_fd, setup.lifeline_fd,
    )  # fmt: skip
    for shared in shared_fds:
        if shared >= 0:
            os.set_inheritable(shared, False)  # each worker's start names what it inherits
    # Stopped, this process would not notice the end of the client, and would stay with its workers.
    signal_at_end_of_pipe(setup.lifeline_fd, signal.SIGCONT)
    _allow_descriptors()
    spawner.prepare()

    from mpgrad.base.hook_for_tests import hooked
    from mpgrad.coordinator.coordinator import Coordinator

    supervisor = Supervisor(setup.cpu_workers, setup.gpus, board, spawner)
    workers, failure = start_workers(supervisor)
    # The loaded modules stay, and later objects make no cycles: the collector can skip them.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()
    router = hooked("coordinator", setup.endpoint.router())
    coordinator = Coordinator(setup, router, supervisor, _engine_arena(setup))
    coordinator.begin((client, setup.lifeline_fd), workers, failure)
    return coordinator


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
    soft, hard = machine.resource_limits(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):  # a sandbox may refuse it: fewer workers are enough
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
