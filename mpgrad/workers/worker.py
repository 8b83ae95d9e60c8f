"""The worker's loop: read the lanes, let the core choose, run one task, reply, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from mpgrad.base.handles import Block
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.membership import SHORT_CREDIT
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.schema import PROTOCOL_VERSION, TO_WORKER, Hello, decode, encode
from mpgrad.wire.transport import WORKER_LANES

#: The number of replies that may wait for a short task: half of the short tasks that a worker may
#: hold, so that the coordinator can send more meanwhile.
HELD_REPLIES_MAX = SHORT_CREDIT // 2

Reply: TypeAlias = ev.NodeTaskDone | ev.NodeTaskFailed


class TaskExecutor(Protocol):
    """Runs NodeTasks."""

    #: Sends a message of a running task; set by the Worker.
    send: Callable[[Any], None]
    #: Readable between two tasks when ``wake`` must be called.
    waiting_fd: int

    def wake(self) -> None:
        """Send the text of threads that have outlived their task."""
        ...

    def run(self, dispatch: do.DispatchNodeTask) -> tuple[Reply, tuple[Block, ...]]:
        """The reply, and the blocks that user code had kept and has now released."""
        ...

    def look_after(self) -> None:
        """Look at what the last task has left behind; its reply has gone."""
        ...

    def release(self, blocks: tuple[Block, ...]) -> None:
        """Free blocks of this process that have no holder any more."""
        ...

    def release_branches(self, numbers: tuple[int, ...]) -> None:
        """Forget branches that nobody will differentiate."""
        ...


class Worker:
    """The shell around WorkerState.

    Args:
        endpoint: the coordinator's endpoint.
        peer, slot: its name, and its row of the board.
        board: shows which task it is running.
        executor: runs the tasks.
    """

    def __init__(
        self, endpoint: Endpoint, peer: str, slot: int, board: StatusBoard, executor: TaskExecutor
    ) -> None:
        self.peer, self._slot, self._token = peer, slot, endpoint.token
        self._board, self._executor = board, executor
        executor.send = self.send
        self.state = WorkerState(peer)
        self._dealer = endpoint.worker(peer)
        #: Messages that the next send takes along.
        self._held: list[bytes] = []
        #: The coordinator has sent ShutDown.
        self.is_stopped = False

    def run(self) -> None:
        """Run until the coordinator sends ShutDown (or dies, which kills this process)."""
        self._dealer.watch(self._executor.waiting_fd)
        self.greet()
        finished: Reply | None = None
        while True:
            # Between two tasks it only polls, else it sleeps until something arrives.
            if finished is None and self._dealer.wait(None):
                self._executor.wake()
            dispatch = self.turn(finished)
            if self.is_stopped:
                break
            if finished is not None:
                self._executor.look_after()
            finished = None if dispatch is None else self._execute(dispatch)
        self.close()

    def greet(self) -> None:
        """Send Hello on each lane."""
        hello = encode(Hello(self.peer, self._token, PROTOCOL_VERSION))
        for lane in WORKER_LANES:
            self._dealer.send([hello], lane)

    def turn(self, finished: Reply | None) -> do.DispatchNodeTask | None:
        """Handle the messages that have arrived, and send the replies; return the task to run.

        Messages are handled before the next task is chosen, so that a cancellation or urgent work
        overtakes it. If there is nothing to choose from, the reply does not wait for them.

        Args:
            finished: the reply of the task that was run since the last turn.
        """
        if finished is not None and not self.state.waiting:
            self._perform(self.state.handle_event(ev.NodeTaskFinished(finished)))
            finished = None
        instructions: list[Any] = []
        for frame in self._dealer.receive():
            instructions += self.state.handle_event(decode(frame, TO_WORKER))
        if finished is not None:
            instructions += self.state.handle_event(ev.NodeTaskFinished(finished))
        return self._perform(instructions)

    def _perform(self, instructions: list[Any]) -> do.DispatchNodeTask | None:
        """Follow the core; a few replies before a short task wait and share one message."""
        dispatch: do.DispatchNodeTask | None = None
        for instruction in instructions:
            if isinstance(instruction, do.ExecuteNodeTask):
                dispatch = instruction.dispatch
            elif isinstance(instruction, do.ReleaseBlocks):
                self._executor.release(instruction.blocks)
            elif isinstance(instruction, do.ReleaseBranches):
                self._executor.release_branches(instruction.numbers)
            elif isinstance(instruction, do.StopProcess):
                self.is_stopped = True
            else:
                self._held.append(encode(instruction))
        must_hold = dispatch is not None and dispatch.is_short
        if self._held and not (must_hold and len(self._held) < HELD_REPLIES_MAX):
            self._flush()
        return dispatch

    def _execute(self, dispatch: do.DispatchNodeTask) -> Reply:
        self.begin(dispatch)
        reply, released = self._executor.run(dispatch)
        self.end(released)
        return reply

    def begin(self, dispatch: do.DispatchNodeTask) -> None:
        """A task is about to run."""
        self._board.begin(self._slot, dispatch.graph, dispatch.task, dispatch.attempt)

    def end(self, released: tuple[Block, ...]) -> None:
        """A task has run, and user code has released these blocks."""
        if released:
            self._held.append(encode(ev.BlocksReleased(self.peer, released)))
        self._board.clear(self._slot)

    def send(self, message: Any) -> None:
        """Send ``message`` at once, after the held ones."""
        self._held.append(encode(message))
        self._flush()

    def _flush(self) -> None:
        if self._held:
            self._dealer.send(self._held)
            self._held.clear()

    def close(self) -> None:
        self._dealer.close()
