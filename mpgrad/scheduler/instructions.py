"""Instructions: everything that a core asks its shell to do. Imperative.

Those with a ``peer`` field are sent to that peer as they are: one core's instruction is the next
core's event.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskDropped, NodeTaskFailed

# ----------------------------------------------------------------------- to a worker or client


class DispatchNodeTask(NamedTuple):
    """Run this task: add up ``inputs`` per slot, run the program at ``payload``, use ``blocks``."""

    peer: str
    graph: int
    task: int
    attempt: int
    #: The number that the session which submitted the graph knows it by.
    name: int
    depth: int
    payload: tuple[int, int]
    inputs: tuple[tuple[GradientRef, ...], ...]
    #: For each output the block to write it to, or None where it travels inside the message.
    blocks: tuple[Block | None, ...]
    #: True where the reply before it may wait until it has run.
    is_short: bool = False
    #: Outputs that an earlier attempt has published: they are not wanted again, and have no block.
    published: tuple[int, ...] = ()


class CancelGraph(NamedTuple):
    """Give back the tasks of this graph that have not begun."""

    peer: str
    graph: int


class ReleaseBlocks(NamedTuple):
    """Nobody holds these blocks of your GPU any more: their memory is yours again."""

    peer: str
    blocks: tuple[Block, ...]


class ShutDown(NamedTuple):
    """Finish."""

    peer: str


# ----------------------------------------------------------------------- to the client


class CompleteGraph(NamedTuple):
    """Every task is done; ``captures`` are the results in the order that the client gave."""

    peer: str
    graph: int
    captures: tuple[GradientRef, ...]
    #: For each capture whether nobody but the session holds its block.
    exclusive: tuple[bool, ...]
    #: For each task that a worker ran: task, worker slot, microseconds, copied bytes, times.
    ran: tuple[tuple[int, int, int, int, bytes | None], ...]


class FailGraph(NamedTuple):
    """The graph ended without a result and holds nothing any more.

    ``kind`` is "error" (``error`` as in NodeTaskFailed), "lost", "hung" (a task took too long),
    "memory" or "cancelled" (``error`` is UTF-8 text; for "memory": bytes asked for, used and
    allowed). ``task`` is -1 where no single task is to blame; ``step`` is the Node of the task
    whose rule raised.
    """

    peer: str
    graph: int
    kind: str
    task: int
    error: bytes
    step: int = 0


class ForwardOutput(NamedTuple):
    """Show what a worker printed, logged or warned."""

    peer: str
    graph: int
    kind: str
    data: bytes


# ----------------------------------------------------------------------- to the own shell


class StartWorker(NamedTuple):
    """Start a process for worker slot ``slot``."""

    slot: int


class FenceWorker(NamedTuple):
    """Kill this worker. Nothing that it holds is given to others before WorkerLost says it is dead,
    because until then it may write."""

    peer: str


class SetDeadline(NamedTuple):
    """Tell by DeadlinePassed when so many milliseconds are over; ``graph`` is our own number."""

    graph: int
    after_ms: int


class ExecuteNodeTask(NamedTuple):
    """Run a task in this very process; NodeTaskFinished follows."""

    dispatch: DispatchNodeTask


class StopProcess(NamedTuple):
    """Leave the loop and exit."""


Reply: TypeAlias = NodeTaskDone | NodeTaskFailed | NodeTaskDropped
ToWorker: TypeAlias = DispatchNodeTask | CancelGraph | ReleaseBlocks | ShutDown
ToClient: TypeAlias = DispatchNodeTask | CancelGraph | CompleteGraph | FailGraph | ForwardOutput
CoordinatorInstruction: TypeAlias = ToWorker | ToClient | StartWorker | FenceWorker | SetDeadline
WorkerInstruction: TypeAlias = Reply | ReleaseBlocks | ExecuteNodeTask | StopProcess
