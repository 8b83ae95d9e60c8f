"""Events: everything that a core can be told. Past tense, immutable, validated by the codec.

Those with a ``peer`` field came over the wire: the shell writes the sender's identity there, so
that no message can speak for somebody else. A peer's name is unique per incarnation
("w3.1" is the second process in worker slot 3), hence whatever a dead one still says is recognised
by its name and dropped. NamedTuples, because msgspec writes and reads them as arrays in a third of
the time that dataclasses take.
"""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.plan_tables import NodeTaskSpec

# ----------------------------------------------------------------------- from a client


class SessionOpened(NamedTuple):
    """A calling thread of the client has connected."""

    peer: str


class SessionClosed(NamedTuple):
    """A calling thread has ended, or its process has died."""

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
    #: So many of the first tasks the client has run itself; what they gave is among the seeds.
    done: int = 0


class GraphExtended(NamedTuple):
    """More NodeTasks of a graph."""

    peer: str
    graph: int
    tasks: tuple[NodeTaskSpec, ...]
    is_whole: bool


class GraphCancelled(NamedTuple):
    """The caller no longer wants the result.

    After ``grace_ms`` milliseconds workers that still have tasks of it are ended (Ctrl-C); None
    lets these take as long as they take.
    """

    peer: str
    graph: int
    grace_ms: int | None = None


class BlocksReleased(NamedTuple):
    """The last view of each of these blocks has died at ``peer`` (client or worker)."""

    peer: str
    blocks: tuple[Block, ...]


# ----------------------------------------------------------------------- from a worker


class WorkerJoined(NamedTuple):
    """A worker process is ready for tasks: those of a GPU, or (ON_CPU) the others."""

    peer: str
    device: int = ON_CPU
    #: Number of the memory that it exports, if it has a GPU.
    arena: int = -1


class WorkerDied(NamedTuple):
    """A worker process is dead; from now on nothing of it counts.

    ``running`` is the task that it was really executing (graph, task, attempt), if any.
    ``killed`` is True for SIGKILL, which usually comes from outside.
    """

    peer: str
    cause: str
    killed: bool
    running: tuple[int, int, int] | None


class NodeTaskProgress(NamedTuple):
    """A NodeTask still runs, and others may already have these of its outputs.

    ``outputs`` are pairs of number and reference; the task changes none of them any more.
    """

    peer: str
    graph: int
    task: int
    attempt: int
    outputs: tuple[tuple[int, GradientRef], ...]


class NodeTaskDone(NamedTuple):
    """A NodeTask ran.

    ``outputs`` follows the task's OutputSpecs; those that were published before do not count again.
    """

    peer: str
    graph: int
    task: int
    attempt: int
    outputs: tuple[GradientRef, ...]
    #: Blocks among its inputs and outputs that user code still looks at.
    kept: tuple[Block, ...] = ()
    duration_us: int = 0
    #: Bytes of outputs that had to be copied into their block.
    copied_bytes: int = 0
    #: If the program asked for it, when its Nodes started and ended; the scheduler never looks.
    times: bytes | None = None


class NodeTaskFailed(NamedTuple):
    """A NodeTask raised; ``error`` is opaque here, the client rebuilds the exception."""

    peer: str
    graph: int
    task: int
    attempt: int
    error: bytes
    kept: tuple[Block, ...] = ()
    #: Which Node of the task it was.
    step: int = 0


class NodeTaskDropped(NamedTuple):
    """A worker gave a task back unrun, because its graph was cancelled."""

    peer: str
    graph: int
    task: int
    attempt: int


class OutputEmitted(NamedTuple):
    """Something printed, logged or warned while a task of ``graph`` ran."""

    peer: str
    graph: int
    kind: str
    data: bytes


# ----------------------------------------------------------------------- local facts


class WorkerUnavailable(NamedTuple):
    """The shell gave up starting workers; ``reason`` goes into the error."""

    reason: str


class WorkerHung(NamedTuple):
    """The shell has seen a living worker make no progress for longer than is allowed.

    ``running`` is the task that takes too long (graph, task, attempt), or None where the process
    itself stands still (somebody stopped it) and no task is to blame.
    """

    peer: str
    cause: str
    running: tuple[int, int, int] | None


class DeadlinePassed(NamedTuple):
    """The time is over that the shell was told by SetDeadline, for ``graph`` by our own number."""

    graph: int


class NodeTaskFinished(NamedTuple):
    """A worker's (or the client's) shell has run the task that its core told it to run."""

    reply: NodeTaskDone | NodeTaskFailed
