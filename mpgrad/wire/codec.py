"""encode() and decode(): one message is one frame: a byte for its kind, then typed msgpack.

Decoding checks the type of every field, so that malformed events cannot exist after it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mpgrad.errors import ProtocolError
from mpgrad.wire.schema import MESSAGE_BYTES_MAX, MESSAGES, Message

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
