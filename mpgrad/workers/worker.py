"""The worker's loop: drain the lanes, let the core choose, run one task, reply, repeat."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn, TypeAlias

from mpgrad import standard_streams
from mpgrad.autograd import engine_slot
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.membership import SHORT_CREDIT
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.environment import WorkerEnvironment
from mpgrad.wire.output import STDOUT, text_of
from mpgrad.wire.schema import PROTOCOL_VERSION, TO_WORKER, Hello
from mpgrad.wire.setup import WorkerSetup
from mpgrad.wire.transport import WORKER_LANES
from mpgrad.workers.memory import WorkerMemory
from mpgrad.workers.output import OutputForwarder
from mpgrad.workers.task import Publication, TaskRunner

#: Replies that may wait for a short task; half of what the coordinator hands out of those, so that
#: it can send more meanwhile.
HELD_REPLIES_MAX = SHORT_CREDIT // 2

Reply: TypeAlias = ev.NodeTaskDone | ev.NodeTaskFailed


class Worker:
    """The shell around WorkerState."""

    def __init__(self, setup: WorkerSetup, environment: WorkerEnvironment) -> None:
        engine_slot.is_worker = True
        self._setup = setup
        self._board = StatusBoard.attach(setup.board_fd)
        self._memory, publication = _memory_of(setup)
        self._state = WorkerState(setup.peer)
        where = f"worker {setup.slot} (pid {os.getpid()})"
        self._runner = TaskRunner(self._memory, where, self._report)
        self._runner.publication = publication
        self._dealer = setup.endpoint.worker(setup.peer)
        #: Messages that the next send takes along.
        self._held: list[bytes] = []
        #: The graph whose task runs, for what it prints; -1 between tasks.
        self._graph = -1
        self._output = OutputForwarder(setup.slot, self._emit_output)
        self._output.install(environment.log_level)
        self._dealer.watch(self._output.waiting_fd)
        self._pid = os.getpid()

    def run(self) -> None:
        """Until the coordinator says ShutDown (or dies, which kills this process)."""
        hello = encode(Hello(self._setup.peer, self._setup.endpoint.token, PROTOCOL_VERSION))
        for lane in WORKER_LANES:
            self._dealer.send([hello], lane)
        finished: Reply | None = None
        while True:
            # Between two tasks only look, else sleep until something comes. What has come is heard
            # before the next task is chosen, so that a cancellation or urgent work overtakes it.
            if finished is None and self._dealer.wait(None):
                self._output.flush()  # of a thread that outlived its task
            instructions: list[Any] = []
            for frame in self._dealer.receive():
                instructions += self._state.handle_event(decode(frame, TO_WORKER))
            if finished is not None:
                instructions += self._state.handle_event(ev.NodeTaskFinished(finished))
            if any(isinstance(instruction, do.StopProcess) for instruction in instructions):
                break
            finished = self._perform(instructions)
        self._dealer.close()

    def _perform(self, instructions: list[Any]) -> Reply | None:
        """Send the replies, then run the task that the core chose, if any.

        Before a short task a few replies are held back: one message for all of them.
        """
        dispatch: do.DispatchNodeTask | None = None
        for instruction in instructions:
            if isinstance(instruction, do.ExecuteNodeTask):
                dispatch = instruction.dispatch
            elif isinstance(instruction, do.ReleaseBlocks):
                self._memory.release(instruction.blocks)
            else:
                self._held.append(encode(instruction))
        must_hold = dispatch is not None and dispatch.is_short
        if self._held and not (must_hold and len(self._held) < HELD_REPLIES_MAX):
            self._flush()
        return None if dispatch is None else self._execute(dispatch)

    def _flush(self) -> None:
        if self._held:
            self._dealer.send(self._held)
            self._held.clear()

    def _execute(self, dispatch: do.DispatchNodeTask) -> Reply:
        self._board.begin(self._setup.slot, dispatch.graph, dispatch.task, dispatch.attempt)
        self._graph, self._output.task = dispatch.graph, dispatch.task
        reply, released = self._runner.run(dispatch)
        if os.getpid() != self._pid:
            _end_forked_child(self._pid)
        self._output.flush()
        self._graph = -1
        if released:
            self._held.append(encode(ev.BlocksReleased(self._setup.peer, released)))
        self._board.clear(self._setup.slot)
        return reply

    def _report(self, progress: ev.NodeTaskProgress) -> None:
        self._held.append(encode(progress))
        self._flush()

    def _emit_output(self, kind: str, data: bytes) -> None:
        if self._graph < 0:
            stream = sys.__stdout__ if kind == STDOUT else sys.__stderr__
            standard_streams.write(stream, text_of(data))
            return
        self._held.append(encode(ev.OutputEmitted(self._setup.peer, self._graph, kind, data)))
        self._flush()


def _end_forked_child(worker_pid: int) -> NoReturn:
    """User code has forked and returned in the child, too, which is not this worker."""
    standard_streams.say(
        f"process {os.getpid()}, forked by a backward in worker process {worker_pid}, has returned "
        "from it and ends here; end it with os._exit() yourself"
    )
    os._exit(1)


def _memory_of(setup: WorkerSetup) -> tuple[WorkerMemory, Any]:
    """What it reads and writes, and how its outputs leave."""
    if setup.device < 0:
        return WorkerMemory(setup.client_arena_fd, setup.engine_arena_fd), Publication
    # Here and not above: a CPU worker does without what GPUs need.
    from mpgrad.workers.cuda import CudaPublication, CudaWorkerMemory

    return CudaWorkerMemory(setup), CudaPublication
