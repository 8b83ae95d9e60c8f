"""What user code prints, logs or warns on a worker, packed for the client."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from typing import TypeAlias

import msgspec

STDOUT, STDERR, LOG, WARNING = "stdout", "stderr", "log", "warning"


class Text(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Part of a stream."""

    slot: int
    text: str


class Record(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A logging record, its message formatted."""

    slot: int
    name: str
    level: int
    path: str
    line: int
    message: str
    function: str | None


class Warned(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A warning."""

    slot: int
    module: str
    category: str
    message: str
    path: str
    line: int


Output: TypeAlias = Text | Record | Warned

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Output)


def encode_output(output: Output) -> bytes:
    return _encoder.encode(output)


def show_output(kind: str, data: bytes) -> None:
    """Print, log or warn in this process what a worker did, saying which worker it was."""
    output = _decoder.decode(data)
    if isinstance(output, Text):
        stream = sys.stderr if kind == STDERR else sys.stdout
        stream.write(_prefixed(output))
        stream.flush()
    elif isinstance(output, Record):
        record = logging.LogRecord(
            output.name,
            output.level,
            output.path,
            output.line,
            f"[worker {output.slot}] {output.message}",
            None,
            None,
            output.function,
        )
        logger = logging.getLogger(output.name)
        if logger.isEnabledFor(output.level):
            logger.handle(record)
    else:
        warnings.warn_explicit(output.message, _category(output), output.path, output.line)


def _prefixed(output: Text) -> str:
    lines = output.text.splitlines(keepends=True)
    return "".join(f"[worker {output.slot}] {line}" for line in lines)


def _category(output: Warned) -> type[Warning]:
    try:
        found = getattr(importlib.import_module(output.module), output.category)
    except (ImportError, AttributeError):
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
