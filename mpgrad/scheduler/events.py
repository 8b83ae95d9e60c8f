"""Events: all inputs of the cores. Past tense, immutable, validated by the codec.

Events with a ``peer`` field came over the wire. The shell writes the sender's identity there, so no
message can claim another sender. A peer's name is unique per incarnation ("w3.1" is the second
process in worker slot 3), so a late message of a dead incarnation is recognised and ignored.
Events are NamedTuples because msgspec reads and writes them faster than dataclasses.
"""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.plan_tables import NodeTaskSpec

# ----------------------------------------------------------------------- from a client


class SessionOpened(NamedTuple):
    """A calling thread of the client connected."""

    peer: str


class SessionClosed(NamedTuple):
    """A calling thread ended, or its process died."""

    peer: str


class GraphSubmitted(NamedTuple):
    """A backward begins. Large graphs continue in GraphExtended until ``is_whole``."""

    peer: str
    graph: int
    depth: int
    tasks: tuple[NodeTaskSpec, ...]
    #: Seed gradients: task, slot, place, reference.
    seeds: tuple[tuple[int, int, int, GradientRef], ...]
    capture_count: int
    is_whole: bool = True
    #: The number of first tasks that the client runs itself. Their outputs are among the seeds,
    #: here or in GraphExtended.
    done: int = 0


class GraphExtended(NamedTuple):
    """More NodeTasks of a graph, or what the client has computed meanwhile."""

    peer: str
    graph: int
    tasks: tuple[NodeTaskSpec, ...]
    is_whole: bool
    #: As in GraphSubmitted.
    seeds: tuple[tuple[int, int, int, GradientRef], ...] = ()
    #: The task of the client that raised, and the index of the Node within it.
    failed: tuple[int, int] | None = None


class GraphCancelled(NamedTuple):
    """The caller no longer wants the result.

    After ``grace_ms`` milliseconds, workers that still hold its tasks are killed (Ctrl-C). With
    None, running tasks may take as long as they need.
    """

    peer: str
    graph: int
    grace_ms: int | None = None


class GraphAwaited(NamedTuple):
    """The caller has heard nothing for a long time, and waits for the end of this graph."""

    peer: str
    graph: int


class BlocksReleased(NamedTuple):
    """The last view of each of these blocks has died at ``peer`` (client or worker)."""

    peer: str
    blocks: tuple[Block, ...]


#: The slot of a branch if nobody knows which worker has recorded it: its call has given no answer.
ANY_SLOT = -1


class BranchesReleased(NamedTuple):
    """Nobody will differentiate these branches: pairs of a worker's slot (or ANY_SLOT) and a
    number."""

    peer: str
    branches: tuple[tuple[int, int], ...]


# ----------------------------------------------------------------------- from a worker


class WorkerJoined(NamedTuple):
    """A worker process is ready for tasks: those of one GPU, or those of the CPU (ON_CPU)."""

    peer: str
    device: int = ON_CPU
    #: The arena number of the memory that it exports, if it has a GPU.
    arena: int = -1


class WorkerDied(NamedTuple):
    """A worker process died; none of its later messages counts.

    ``running`` is the task that it was executing (graph, task, attempt), if any.
    ``killed`` is True for SIGKILL, which usually comes from outside.
    ``stack`` is its Python stack when a fault ended it, as text; empty if there is none.
    """

    peer: str
    cause: str
    killed: bool
    running: tuple[int, int, int] | None
    stack: str = ""


class NodeTaskProgress(NamedTuple):
    """A NodeTask published some of its outputs and still runs.

    ``outputs`` are pairs of number and reference. The task does not change them any more.
    """

    peer: str
    graph: int
    task: int
    attempt: int
    outputs: tuple[tuple[int, GradientRef], ...]


class NodeTaskDone(NamedTuple):
    """A NodeTask ran.

    ``outputs`` follows the task's OutputSpecs; entries of outputs published earlier are ignored.
    """

    peer: str
    graph: int
    task: int
    attempt: int
    outputs: tuple[GradientRef, ...]
    #: Blocks among its inputs and outputs that user code still references.
    kept: tuple[Block, ...] = ()
    duration_us: int = 0
    #: The bytes of outputs that were copied into their block.
    copied_bytes: int = 0
    #: When its Nodes started and ended, if the program asks for it; the scheduler never reads it.
    times: bytes | None = None


class NodeTaskFailed(NamedTuple):
    """A NodeTask raised. ``error`` is opaque here; the client rebuilds the exception."""

    peer: str
    graph: int
    task: int
    attempt: int
    error: bytes
    kept: tuple[Block, ...] = ()
    #: The index of the Node within the task.
    step: int = 0


class NodeTaskDropped(NamedTuple):
    """A worker returned a task unrun, because its graph was cancelled."""

    peer: str
    graph: int
    task: int
    attempt: int


class OutputEmitted(NamedTuple):
    """A task of ``graph`` printed, logged or warned."""

    peer: str
    graph: int
    kind: str
    data: bytes


# ----------------------------------------------------------------------- local facts


class WorkerUnavailable(NamedTuple):
    """The shell cannot start workers any more; ``reason`` goes into the error."""

    reason: str


class WorkerHung(NamedTuple):
    """A living worker has made no progress for longer than is allowed.

    ``running`` is the task that takes too long (graph, task, attempt). It is None if the process
    itself is stopped, so that no task is to blame.
    """

    peer: str
    cause: str
    running: tuple[int, int, int] | None


class DeadlinePassed(NamedTuple):
    """The time given in SetDeadline is over; ``graph`` is the coordinator's number."""

    graph: int


class NodeTaskFinished(NamedTuple):
    """The shell of a worker or client has run the task that its core told it to run."""

    reply: NodeTaskDone | NodeTaskFailed
