"""The messages between hosts, and their frames: a typed head, then raw bytes of arrays.

Bump HOSTS_PROTOCOL when a message changes its meaning.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from mpgrad.distributed.states.upstream import Upstream
from mpgrad.errors import ProtocolError
from mpgrad.wire.packed_texts import encode_shown

HOSTS_PROTOCOL = 10

#: No head is longer.
HEAD_BYTES_MAX = 1024 * 1024
#: No frame is longer.
FRAME_BYTES_MAX = 8 * 1024 * 1024
#: Arrays travel in frames of this many bytes, a multiple of every item's size: while one is
#: encrypted, the one before it is under way.
CUT_BYTES = 1024 * 1024


class _Head(msgspec.Struct, frozen=True, array_like=True):
    pass


class Join(_Head, frozen=True, array_like=True, tag=1):
    """A process asks rank 0 for its rank."""

    rank: int
    world_size: int
    incarnation: str
    address: str
    versions: tuple[tuple[str, str], ...]
    #: What decides how the sender's numbers round: (what, which).
    arithmetic: tuple[tuple[str, str], ...] = ()
    #: Of a process that asks for the next rank 0: the numbers of the processes that it knows.
    numbers: tuple[int, ...] = ()
    #: How often it has connected to ask: the answer has the same number.
    attempt: int = 0


class Roster(_Head, frozen=True, array_like=True, tag=2):
    """Rank 0 tells who all ranks are: (incarnation, address, number of processes before it)."""

    members: tuple[tuple[str, str, int], ...]
    #: Of the receiver's last question: what a dead process has answered does not count.
    attempt: int = 0


class Refusal(_Head, frozen=True, array_like=True, tag=3):
    """Rank 0 tells a process that it cannot take part."""

    reason: str
    is_timeout: bool


class JoinHeard(_Head, frozen=True, array_like=True, tag=32):
    """Rank 0 has heard a process, and waits for others."""


class Segments(_Head, frozen=True, array_like=True, tag=4):
    """A message of a collective; its bytes follow."""

    #: The group of ranks, and the number of the collective in it.
    group: int
    number: int
    phase: int
    #: What the sender does, in words: all ranks have to do the same.
    what: str


class Parcel(_Head, frozen=True, array_like=True, tag=5):
    """A tensor from ``send``; its bytes follow."""

    group: int
    tag: int
    what: str


class Farewell(_Head, frozen=True, array_like=True, tag=6):
    """The sender leaves the group; it has sent all that it owes."""

    #: The rank that it knows to be lost, and why; -1 for none.
    lost: int = -1
    cause: str = ""
    #: What else it knows that has ended the group.
    disagreement: str = ""
    #: How many ends it knows to have come; see EndAsked.
    ends: int = 0


class Loss(_Head, frozen=True, array_like=True, tag=7):
    """The sender knows that a rank is lost."""

    rank: int
    cause: str


class Disagreement(_Head, frozen=True, array_like=True, tag=8):
    """The sender's collective does not fit another rank's; this says how."""

    group: int
    text: str


class FarewellRead(_Head, frozen=True, array_like=True, tag=9):
    """The sender has read the receiver's farewell."""


class EndAsked(_Head, frozen=True, array_like=True, tag=25):
    """The sender has lost a rank, and asks whether all had ended what they run together."""

    lost: int
    cause: str


class EndTold(_Head, frozen=True, array_like=True, tag=26):
    """The answer: how often all ranks of this generation have ended what they run together."""

    ends: int


class Assignment(_Head, frozen=True, array_like=True, tag=27):
    """Host 0 tells the host of incarnation ``to`` to run these ranks, beside those that it has."""

    to: str
    host: int
    #: How many hosts the job has begun with, and how many losses of hosts have led to this.
    hosts: int
    losses: int
    ranks: tuple[int, ...]
    #: Where rank 0 listens, on host 0.
    master_port: int


class RanksDone(_Head, frozen=True, array_like=True, tag=28):
    """Ranks of the sender's host have ended well."""

    ranks: tuple[int, ...]


class Dismissal(_Head, frozen=True, array_like=True, tag=29):
    """The job needs the host of incarnation ``to`` no more."""

    to: str


class RpcReady(_Head, frozen=True, array_like=True, tag=10):
    """The sender takes calls, under this name (see ``packed_texts``)."""

    name: bytes
    #: Of the file that it runs as ``__main__``: functions of the same one go by their names.
    main: str
    #: How often it has taken calls in this group of ranks before, and ended that.
    life: int = 0


class Call(_Head, frozen=True, array_like=True, tag=11):
    """The sender calls a function of the receiver; its pickle and arrays follow."""

    number: int
    #: The value that the result becomes, and the reference of the sender; -1 for a plain call.
    value: tuple[int, int] = (-1, -1)
    fork: tuple[int, int] = (-1, -1)
    #: The autograd context that it belongs to, and its number as a message with tensors that
    #: require grad; -1 for none.
    context: int = -1
    message: int = -1
    #: The next sequence number of the caller: the callee counts on from it.
    sequence_nr: int = 0
    #: What the tensors of the message lead back to.
    upstream: tuple[Upstream, ...] = ()
    #: Of a call that a dead process had answered: the number of that answer as a message, which the
    #: new answer gets, too.
    answer: int = -1


class CallEnded(_Head, frozen=True, array_like=True, tag=12):
    """The answer to a call: the pickle of the result and its arrays follow, or of the error."""

    number: int
    is_error: bool
    #: As in Call; the caller counts on from the callee's number.
    message: int = -1
    sequence_nr: int = 0
    upstream: tuple[Upstream, ...] = ()


class ForkHeld(_Head, frozen=True, array_like=True, tag=13):
    """The sender holds a new reference to a value of the receiver."""

    value: tuple[int, int]
    fork: tuple[int, int]
    parent: int


class ForkReleased(_Head, frozen=True, array_like=True, tag=14):
    """The sender needs references to values of the receiver no more: (value, fork)."""

    forks: tuple[tuple[tuple[int, int], tuple[int, int]], ...]


class ForkConfirmed(_Head, frozen=True, array_like=True, tag=15):
    """The owner knows of a reference that the receiver has passed on."""

    fork: tuple[int, int]


class IdleReported(_Head, frozen=True, array_like=True, tag=30):
    """The sender wants to leave, once nobody has anything to do; so much has it itself."""

    busy: int


class IdleAnswered(_Head, frozen=True, array_like=True, tag=31):
    """Rank 0 says whether nobody has; else all report again."""

    is_last: bool


class _OfBackward(_Head, frozen=True, array_like=True):
    """Belongs to one backward: that of its context which rank ``root`` called as its ``number``."""

    context: int
    root: int
    number: int


class AskMarks(_OfBackward, frozen=True, array_like=True, tag=16):
    """These slots of messages that the receiver has sent will get gradients: (message, slot)."""

    question: int
    slots: tuple[tuple[int, int], ...]


class AnswerMarks(_OfBackward, frozen=True, array_like=True, tag=17):
    """All that a question of the receiver leads to is marked; the hosts that it has reached.

    These slots of the receiver's messages will get gradients, too.
    """

    question: int
    hosts: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]


class BeginPart(_OfBackward, frozen=True, array_like=True, tag=18):
    """All marks are final: the receiver runs its part.

    These slots of its messages are marked, beside those that it was asked about.
    """

    slots: tuple[tuple[int, int], ...]
    keep_graph: bool
    #: Only the gradients of some tensors of the root count.
    is_partial: bool
    #: The rank whose death has ended the backward that this one repeats; -1 for none.
    follows: int = -1


class Gradients(_OfBackward, frozen=True, array_like=True, tag=19):
    """The gradients of a message that the receiver has sent; their pickle and arrays follow."""

    message: int
    keep_graph: bool
    is_smart: bool
    is_partial: bool
    follows: int = -1


class PartState(_OfBackward, frozen=True, array_like=True, tag=20):
    """The sender's part waits for the gradients of a message, or is done."""

    report: int
    waits_for: int
    #: What the message was, in words.
    what: str
    #: (rank, how many gradients).
    sent: tuple[tuple[int, int], ...]
    received: tuple[tuple[int, int], ...]


class PartError(_OfBackward, frozen=True, array_like=True, tag=21):
    """The sender's part has failed; its error follows."""


class Conclusion(_OfBackward, frozen=True, array_like=True, tag=22):
    """All parts are done, and their gradients count; or none does."""

    commits: bool
    #: The parts have kept their graphs, which nobody needs any more.
    frees: bool = False


class ConclusionRead(_OfBackward, frozen=True, array_like=True, tag=23):
    """The gradients of the sender's part are in its context."""


class ContextReleased(_Head, frozen=True, array_like=True, tag=24):
    """An autograd context is no more: it was left, or a rank (-1: none) that it spans is lost."""

    context: int
    lost: int = -1
    cause: str = ""


BackwardMessage: TypeAlias = (
    AskMarks
    | AnswerMarks
    | BeginPart
    | Gradients
    | PartState
    | PartError
    | Conclusion
    | ConclusionRead
    | ContextReleased
)
RpcMessage: TypeAlias = (
    RpcReady
    | Call
    | CallEnded
    | ForkHeld
    | ForkReleased
    | ForkConfirmed
    | IdleReported
    | IdleAnswered
    | BackwardMessage
)
HostMessage: TypeAlias = (
    Join
    | Roster
    | Refusal
    | Segments
    | Parcel
    | Farewell
    | FarewellRead
    | Loss
    | Disagreement
    | JoinHeard
    | EndAsked
    | EndTold
    | Assignment
    | RanksDone
    | Dismissal
    | RpcMessage
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[HostMessage] = msgspec.msgpack.Decoder(HostMessage)


def encode_head(message: HostMessage) -> bytes:
    """The first frame of ``message``.

    Raises:
        ProtocolError: it is longer than HEAD_BYTES_MAX.
    """
    frame = encode_shown(_encoder, message)
    if len(frame) > HEAD_BYTES_MAX:
        raise ProtocolError(f"a {type(message).__name__} of {len(frame):,} bytes")
    return frame


def decode_head(frame: bytes | memoryview) -> HostMessage:
    """The message that begins with ``frame``.

    Raises:
        ProtocolError: it is malformed.
    """
    if len(frame) > HEAD_BYTES_MAX:
        raise ProtocolError(f"the head of a message has {len(frame):,} bytes")
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a malformed message of another host: {error}") from None


def cut(array: memoryview) -> list[Any]:
    """The frames in which the bytes of an array travel."""
    return [array[k : k + CUT_BYTES] for k in range(0, len(array), CUT_BYTES)]
