"""Texts as bytes, for messages.

A file name need not be UTF-8. Python then shows its other bytes as lone surrogates, which msgspec
refuses. So every text that may contain a file name, or comes from user code, crosses as bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec


def pack_text(text: str) -> bytes:
    """``text`` in UTF-8, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def unpack_text(data: bytes) -> str:
    """What ``pack_text`` was given.

    Raises:
        UnicodeDecodeError: something else wrote the bytes.
    """
    return data.decode("utf-8", "surrogatepass")


def optional_packed(text: str | None) -> bytes | None:
    """The same for a text that may be missing."""
    return None if text is None else pack_text(text)


def optional_unpacked(data: bytes | None) -> str | None:
    """The same for a text that may be missing."""
    return None if data is None else unpack_text(data)


def without_surrogates(text: str) -> str:
    """For people: lone surrogates as Python's stderr shows them (``\\udce9``)."""
    return text.encode(errors="backslashreplace").decode()


def encode_shown(encoder: msgspec.msgpack.Encoder, message: Any) -> bytes:
    """Encode a message whose texts are only shown; they lose their surrogates."""
    try:
        return encoder.encode(message)
    except UnicodeEncodeError:
        return encoder.encode(_shown(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    return list(map(_shown, value)) if isinstance(value, list | tuple) else value
