"""The messages of the protocol: the number of each on the wire, and which side may send it.

The messages are the scheduler's own events and instructions. This file only lists those that cross
a process boundary, and in which direction. One message is one frame: a byte for its kind, then
typed msgpack. ``decode`` checks the type of every field, so that malformed events cannot exist
after it. Bump PROTOCOL_VERSION when the meaning of a row changes, or that of ``programs``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import msgspec

from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do

PROTOCOL_VERSION = 14

#: Kind of an OutputEmitted by which a worker asks to be replaced, because user code has changed
#: the state of its process.
SPOILED = "spoiled"

#: The maximum length of a message: larger data go through an arena.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class Hello(NamedTuple):
    """A peer introduces itself with the token that it got over an inherited descriptor."""

    peer: str
    token: bytes
    version: int


class Welcome(NamedTuple):
    """The coordinator has accepted a session; the workers are ready."""

    peer: str
    workers: int


class Refused(NamedTuple):
    """The coordinator cannot serve the session."""

    peer: str
    reason: str


class Broken(NamedTuple):
    """The coordinator has met an internal error, and ends."""

    peer: str
    reason: str


class StopEngine(NamedTuple):
    """The client closes its engine."""

    peer: str


class QueryProcesses(NamedTuple):
    """The client asks for the processes of its engine."""

    peer: str


class Processes(NamedTuple):
    """Process ids of the workers, figures of the engine's arena, and frames that were refused."""

    peer: str
    worker_pids: tuple[int, ...]
    restarts: int
    arena: tuple[int, int, int, int, int]
    #: Refused frames: malformed, without a proof of identity, or against the sender's own tables.
    protocol_errors: int = 0
    #: In workers; and their bytes.
    branches: int = 0
    branch_bytes: int = 0


Message: TypeAlias = Any

#: Number on the wire -> message. Never reuse a number.
MESSAGES: dict[int, type[Any]] = {
    1: Hello,
    2: Welcome,
    3: Refused,
    5: StopEngine,
    6: QueryProcesses,
    7: Processes,
    8: Broken,
    10: ev.GraphSubmitted,
    11: ev.GraphExtended,
    12: ev.GraphCancelled,
    13: ev.BlocksReleased,
    14: ev.BranchesReleased,
    15: ev.GraphAwaited,
    20: ev.NodeTaskDone,
    21: ev.NodeTaskFailed,
    22: ev.NodeTaskDropped,
    23: ev.OutputEmitted,
    24: ev.NodeTaskProgress,
    30: do.DispatchNodeTask,
    31: do.CancelGraph,
    32: do.ShutDown,
    33: do.ReleaseBlocks,
    34: do.ReleaseBranches,
    40: do.CompleteGraph,
    41: do.FailGraph,
    42: do.ForwardOutput,
    43: do.DeliverCaptures,
    44: do.GraphForgotten,
    45: do.GraphGoesOn,
}

#: The messages that each side may send; any other is a ProtocolError.
FROM_CLIENT = (
    Hello,
    StopEngine,
    QueryProcesses,
    ev.GraphSubmitted,
    ev.GraphExtended,
    ev.GraphCancelled,
    ev.BlocksReleased,
    ev.BranchesReleased,
    ev.GraphAwaited,
    ev.NodeTaskDone,
    ev.NodeTaskFailed,
    ev.NodeTaskDropped,
)
TO_WORKER = (
    do.DispatchNodeTask,
    do.CancelGraph,
    do.ReleaseBlocks,
    do.ReleaseBranches,
    do.ShutDown,
)
TO_CLIENT = (
    Welcome,
    Refused,
    Broken,
    Processes,
    do.DispatchNodeTask,
    do.CancelGraph,
    do.DeliverCaptures,
    do.CompleteGraph,
    do.FailGraph,
    do.GraphForgotten,
    do.GraphGoesOn,
    do.ForwardOutput,
)
FROM_WORKER = (
    Hello,
    ev.NodeTaskProgress,
    ev.NodeTaskDone,
    ev.NodeTaskFailed,
    ev.NodeTaskDropped,
    ev.OutputEmitted,
    ev.BlocksReleased,
)


_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in MESSAGES.items()}
_kinds = {cls: bytes([kind]) for kind, cls in MESSAGES.items()}


def encode(message: Message) -> bytes:
    """The frame of ``message``.

    Raises:
        ProtocolError: it is longer than MESSAGE_BYTES_MAX.
    """
    frame = _kinds[type(message)] + _encoder.encode(message)
    if len(frame) > MESSAGE_BYTES_MAX:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(frame):,} bytes exceeds {MESSAGE_BYTES_MAX:,}"
        )
    return frame


def decode(frame: bytes | memoryview, allowed: tuple[type[Any], ...] | None = None) -> Message:
    """The message in ``frame``.

    Raises:
        ProtocolError: the frame is malformed, or not of a kind in ``allowed``.
    """
    if not frame or len(frame) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a frame of {len(frame):,} bytes, not 1 to {MESSAGE_BYTES_MAX:,}")
    decoder = _decoders.get(frame[0])
    if decoder is None or (allowed is not None and MESSAGES[frame[0]] not in allowed):
        raise ProtocolError(f"a message of kind {frame[0]} is not expected here")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed {MESSAGES[frame[0]].__name__}: {error}") from None
