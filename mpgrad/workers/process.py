"""The worker's loop: drain the lanes, let the core choose, run one task, reply, repeat."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd import engine_slot
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.environment import WorkerEnvironment
from mpgrad.wire.schema import PROTOCOL_VERSION, TO_WORKER, Hello
from mpgrad.wire.setup import WorkerSetup
from mpgrad.wire.transport import WORKER_LANES
from mpgrad.wire.zeromq import ZmqSpoke
from mpgrad.workers.memory import WorkerMemory
from mpgrad.workers.output import OutputForwarder
from mpgrad.workers.task import TaskRunner

Reply: TypeAlias = ev.NodeTaskDone | ev.NodeTaskFailed


class Worker:
    """The shell around WorkerState."""

    def __init__(self, setup: WorkerSetup, environment: WorkerEnvironment) -> None:
        np.seterr(**environment.numpy_errors)
        engine_slot.is_worker = True
        self._setup = setup
        self._board = StatusBoard.attach(setup.board_fd)
        self._memory = WorkerMemory(setup.client_arena_fd, setup.engine_arena_fd)
        self._state = WorkerState(setup.peer)
        where = f"worker {setup.slot} (pid {os.getpid()})"
        self._runner = TaskRunner(self._memory, where)
        self._spoke = ZmqSpoke.worker(setup.directory, setup.peer)
        #: The graph whose task runs, for what it prints.
        self._graph = -1
        self._output = OutputForwarder(setup.slot, self._emit_output)
        self._output.install(environment.log_level)

    def run(self) -> None:
        """Until the coordinator says ShutDown (or dies, which kills this process)."""
        hello = encode(Hello(self._setup.peer, self._setup.token, PROTOCOL_VERSION))
        for lane in WORKER_LANES:
            self._spoke.send([hello], lane)
        finished: Reply | None = None
        while True:
            # Between two tasks only look, else sleep until something comes. What has come is heard
            # before the next task is chosen, so that a cancellation or urgent work overtakes it.
            if finished is None:
                self._spoke.wait(None)
            instructions: list[Any] = []
            for frame in self._spoke.receive():
                instructions += self._state.handle_event(decode(frame, TO_WORKER))
            if finished is not None:
                instructions += self._state.handle_event(ev.NodeTaskFinished(finished))
            if any(isinstance(instruction, do.StopProcess) for instruction in instructions):
                break
            finished = self._perform(instructions)
        self._spoke.close()

    def _perform(self, instructions: list[Any]) -> Reply | None:
        """Send the replies, then run the task that the core chose, if any."""
        replies = [i for i in instructions if not isinstance(i, do.ExecuteNodeTask)]
        if replies:
            self._spoke.send([encode(reply) for reply in replies])
        for instruction in instructions:
            if isinstance(instruction, do.ExecuteNodeTask):
                return self._execute(instruction.dispatch)
        return None

    def _execute(self, dispatch: do.DispatchNodeTask) -> Reply:
        self._board.begin(self._setup.slot, dispatch.graph, dispatch.task, dispatch.attempt)
        self._graph = dispatch.graph
        reply, released = self._runner.run(dispatch)
        self._output.flush()
        self._graph = -1
        if released:
            self._spoke.send([encode(ev.BlocksReleased(self._setup.peer, released))])
        self._board.clear(self._setup.slot)
        return reply

    def _emit_output(self, kind: str, data: bytes) -> None:
        try:
            message = encode(ev.OutputEmitted(self._setup.peer, self._graph, kind, data))
        except ProtocolError:
            return  # one print of more than a message may hold
        self._spoke.send([message])
