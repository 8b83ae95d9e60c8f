"""The messages between hosts, and their frames: a typed head, then raw bytes of arrays.

Bump HOSTS_PROTOCOL when a message changes its meaning.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from mpgrad.errors import ProtocolError

HOSTS_PROTOCOL = 1

#: No head is longer.
HEAD_BYTES_MAX = 1024 * 1024
#: Arrays travel in frames of this many bytes, a multiple of every item's size. No frame is longer.
FRAME_BYTES = 8 * 1024 * 1024


class _Head(msgspec.Struct, frozen=True, array_like=True):
    pass


class Join(_Head, frozen=True, array_like=True, tag=1):
    """A process asks rank 0 for its rank."""

    rank: int
    world_size: int
    incarnation: str
    address: str
    versions: tuple[tuple[str, str], ...]


class Roster(_Head, frozen=True, array_like=True, tag=2):
    """Rank 0 tells a process who all the others are: (incarnation, address) by rank."""

    members: tuple[tuple[str, str], ...]


class Refusal(_Head, frozen=True, array_like=True, tag=3):
    """Rank 0 tells a process that it cannot take part."""

    reason: str
    is_timeout: bool


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


HostMessage: TypeAlias = (
    Join | Roster | Refusal | Segments | Parcel | Farewell | FarewellRead | Loss | Disagreement
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[HostMessage] = msgspec.msgpack.Decoder(HostMessage)


def encode_head(message: HostMessage) -> bytes:
    """The first frame of ``message``.

    Raises:
        ProtocolError: it is longer than HEAD_BYTES_MAX.
    """
    frame = _encoder.encode(message)
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
    return [array[k : k + FRAME_BYTES] for k in range(0, len(array), FRAME_BYTES)]
