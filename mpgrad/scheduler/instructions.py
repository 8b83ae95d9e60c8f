"""Instructions: all that a core asks its shell to do. Imperative.

Instructions with a ``peer`` field are sent to that peer unchanged: one core's instruction is the
next core's event.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskDropped, NodeTaskFailed

# ----------------------------------------------------------------------- to a worker or client


class DispatchNodeTask(NamedTuple):
    """Run this task: add up ``inputs`` per slot, run the program, use ``blocks``.

    The program is ``program``, or if that is empty the one at ``payload``.
    """

    peer: str
    graph: int
    task: int
    attempt: int
    #: The number of the graph in the session that submitted it.
    owner_number: int
    depth: int
    payload: tuple[int, int]
    inputs: tuple[tuple[GradientRef, ...], ...]
    #: For each output the block to write it to, or None if it travels inside the message.
    blocks: tuple[Block | None, ...]
    #: True if the reply to the task before may wait until this task has run.
    is_short: bool = False
    #: Outputs that an earlier attempt has published: they have no block and are not sent again.
    published: tuple[int, ...] = ()
    program: bytes = b""


class CancelGraph(NamedTuple):
    """Return the tasks of this graph that have not begun."""

    peer: str
    graph: int


class ReleaseBlocks(NamedTuple):
    """Free these blocks of your GPU: they have no holder any more."""

    peer: str
    blocks: tuple[Block, ...]


class ReleaseBranches(NamedTuple):
    """Forget these branches, if they are there."""

    peer: str
    numbers: tuple[int, ...]


class ShutDown(NamedTuple):
    """Finish."""

    peer: str


# ----------------------------------------------------------------------- to the client


class DeliverCaptures(NamedTuple):
    """Some results of a graph that still runs, by number: together they would be too long a message
    at its end."""

    peer: str
    graph: int
    captures: tuple[tuple[int, bytes], ...]


class CompleteGraph(NamedTuple):
    """Every task is done; ``captures`` are the results in the order that the client gave.

    None stands for an undefined gradient, and for what was delivered before.
    """

    peer: str
    graph: int
    captures: tuple[GradientRef, ...]
    #: For each capture whether the session is the only holder of its block.
    exclusive: tuple[bool, ...]
    #: For each task that a worker ran: task, worker slot, microseconds, copied bytes, times.
    ran: tuple[tuple[int, int, int, int, bytes | None], ...]


class FailGraph(NamedTuple):
    """The graph ended without a result and holds nothing any more.

    ``kind`` is "error" (``error`` as in NodeTaskFailed), "lost", "hung" (a task took too long),
    "memory" or "cancelled" (``error`` is UTF-8 text; for "memory": the bytes requested, used and
    allowed). ``task`` is -1 if no single task is to blame; ``step`` is the index of the Node in
    the task whose rule raised.
    """

    peer: str
    graph: int
    kind: str
    task: int
    error: bytes
    step: int = 0


class GraphForgotten(NamedTuple):
    """The graph that the session waits for is not known, or cannot go on: a bug."""

    peer: str
    graph: int


class GraphGoesOn(NamedTuple):
    """The graph that the session waits for is known, and will end."""

    peer: str
    graph: int


class ForwardOutput(NamedTuple):
    """Show the output of a worker: printed text, a log record or a warning."""

    peer: str
    graph: int
    kind: str
    data: bytes


# ----------------------------------------------------------------------- to its own shell


class StartWorker(NamedTuple):
    """Start a process for worker slot ``slot``."""

    slot: int


class FenceWorker(NamedTuple):
    """Kill this worker. Nobody else gets what it holds before WorkerDied, because it may write
    until it is dead."""

    peer: str


class SetDeadline(NamedTuple):
    """Send DeadlinePassed after this many milliseconds; ``graph`` is the coordinator's number."""

    graph: int
    after_ms: int


class ExecuteNodeTask(NamedTuple):
    """Run a task in this process; NodeTaskFinished follows."""

    dispatch: DispatchNodeTask


class StopProcess(NamedTuple):
    """Leave the loop and exit."""


Reply: TypeAlias = NodeTaskDone | NodeTaskFailed | NodeTaskDropped
ToWorker: TypeAlias = DispatchNodeTask | CancelGraph | ReleaseBlocks | ReleaseBranches | ShutDown
ToClient: TypeAlias = (
    DispatchNodeTask
    | CancelGraph
    | DeliverCaptures
    | CompleteGraph
    | FailGraph
    | GraphForgotten
    | GraphGoesOn
    | ForwardOutput
)
CoordinatorInstruction: TypeAlias = ToWorker | ToClient | StartWorker | FenceWorker | SetDeadline
WorkerInstruction: TypeAlias = (
    Reply | ReleaseBlocks | ReleaseBranches | ExecuteNodeTask | StopProcess
)
