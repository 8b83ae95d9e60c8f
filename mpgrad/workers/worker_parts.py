"""The parts of a worker process beside its loop: memory, TaskRunner, and user code's output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from mpgrad.autograd.running import engine_slot
from mpgrad.base import standard_streams
from mpgrad.base.handles import Block
from mpgrad.scheduler import events as ev
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.environment import WorkerEnvironment
from mpgrad.wire.output_record import STDOUT, text_of
from mpgrad.wire.schema import SPOILED
from mpgrad.wire.setup import WorkerSetup
from mpgrad.workers.captured_output import OutputForwarder
from mpgrad.workers.health_check import HealthCheck
from mpgrad.workers.publication import Publication
from mpgrad.workers.task import TaskRunner
from mpgrad.workers.worker import Reply
from mpgrad.workers.worker_memory import WorkerMemory


class ProcessExecutor:
    """Runs NodeTasks in this process, whose streams are forwarded to the client."""

    send: Callable[[Any], None]

    def __init__(
        self, setup: WorkerSetup, environment: WorkerEnvironment, board: StatusBoard
    ) -> None:
        engine_slot.is_worker = True
        self._peer = setup.peer
        self._memory, publication = _memory_of(setup)
        if environment.has_checksums:
            self._memory.use_checksums()
        where = f"worker {setup.slot} (pid {os.getpid()})"
        self.runner = TaskRunner(
            self._memory, where, lambda message: self.send(message), setup.slot
        )
        self.runner.publication = publication
        self.runner.branch_limit = environment.branch_limit
        self.runner.note_branches = partial(board.note_branches, setup.slot)
        self._pid = os.getpid()
        #: The graph of the running task, to which its output belongs; -1 between tasks.
        self._graph = -1
        self._output = OutputForwarder(setup.slot, self._emit_output)
        self._output.install(environment.log_level)
        self._health, self._is_spoiled = HealthCheck(), False
        #: Whether the last task has failed, if it has run user code that nobody has looked after.
        self._has_failed: bool | None = None
        self.waiting_fd = self._output.waiting_fd

    def run(self, dispatch: DispatchNodeTask) -> tuple[Reply, tuple[Block, ...]]:
        if self._is_spoiled:
            self._wait_for_end(dispatch.graph)
        self._graph, self._output.task = dispatch.graph, dispatch.task
        reply, released = self.runner.run(dispatch)
        if os.getpid() != self._pid:
            _end_forked_child(self._pid)
        self._output.flush()
        self._graph = -1
        if self.runner.has_run_function:
            self._has_failed = isinstance(reply, ev.NodeTaskFailed)
        return reply, released

    def look_after(self) -> None:
        if self._has_failed is not None:
            self._is_spoiled = not self._health.passes(is_thorough=self._has_failed)
            self._has_failed = None

    def _wait_for_end(self, graph: int) -> NoReturn:
        """The reply of the task that spoiled this process has left; another one runs the next."""
        self.send(ev.OutputEmitted(self._peer, graph, SPOILED, b""))
        while True:
            signal.pause()

    def release(self, blocks: tuple[Block, ...]) -> None:
        self._memory.release(blocks)

    def release_branches(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.runner.calls.forget(number)

    def wake(self) -> None:
        self._output.wake()

    def _emit_output(self, kind: str, data: bytes) -> None:
        if self._graph < 0:
            stream = sys.__stdout__ if kind == STDOUT else sys.__stderr__
            standard_streams.write(stream, text_of(data))
            return
        self.send(ev.OutputEmitted(self._peer, self._graph, kind, data))


def _end_forked_child(worker_pid: int) -> NoReturn:
    """End a child that user code has forked and that returns from the rule: it is no worker."""
    standard_streams.say(
        f"process {os.getpid()}, forked by a backward in worker process {worker_pid}, has returned "
        "from it and ends here; call os._exit() in the child instead"
    )
    os._exit(1)


def _memory_of(setup: WorkerSetup) -> tuple[WorkerMemory, Any]:
    """The memory that it reads and writes, and its kind of Publication."""
    if setup.device < 0:
        return WorkerMemory(setup.client_arena_fd, setup.engine_arena_fd), Publication
    # Imported here: a CPU worker does not need the GPU modules.
    from mpgrad.workers.gpu_worker import CudaPublication, CudaWorkerMemory

    return CudaWorkerMemory(setup), CudaPublication
