"""The output of user code on a worker (printed, logged, warned), packed for the client."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from mpgrad.base import standard_streams
from mpgrad.wire.remote_error import decode_error

STDOUT, STDERR, LOG, WARNING = "stdout", "stderr", "log", "warning"


class Text(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Part of a stream, and whether it begins a line."""

    slot: int
    text: str
    begins: bool = True


class LogLine(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A logging record, its message formatted."""

    slot: int
    name: str
    level: int
    path: str
    line: int
    message: str
    function: str | None


class Warned(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A warning: which task of its graph gave it, and the Warning as ``encode_error`` packs it."""

    task: int
    warning: bytes
    path: str
    line: int


Output: TypeAlias = Text | LogLine | Warned

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Output)


def encode_output(output: Output) -> bytes:
    return _encoder.encode(output)


def show_output(kind: str, data: bytes) -> None:
    """Print or log the output of a worker in this process, with the worker's number.

    Without the stream it is dropped, as by ``print``.
    """
    output = _decoder.decode(data)
    if isinstance(output, Text):
        standard_streams.write(sys.stderr if kind == STDERR else sys.stdout, _prefixed(output))
    elif isinstance(output, LogLine):
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


def text_of(data: bytes) -> str:
    """The output of a worker between tasks: of a thread of user code that went on."""
    output = _decoder.decode(data)
    if isinstance(output, Text):
        return _prefixed(output)
    if isinstance(output, LogLine):
        return f"[worker {output.slot}] {output.message}\n"
    warning = decode_error(output.warning, with_traceback=False)
    return f"{output.path}:{output.line}: {type(warning).__name__}: {warning}\n"


def replay_warnings(pieces: Iterable[bytes], order: Callable[[int], int]) -> None:
    """Repeat the warnings of workers on this thread; the filters of this process decide.

    Args:
        pieces: the outputs of kind WARNING.
        order: the serial position of a task: warnings appear in the order of the serial engine.

    Raises:
        Warning: a filter of the user turns it into an error.
    """
    found = [output for piece in pieces if isinstance(output := _decoder.decode(piece), Warned)]
    for warned in sorted(found, key=lambda warned: order(warned.task)):
        warning = decode_error(warned.warning, with_traceback=False)
        if not isinstance(warning, Warning):
            warning = UserWarning(str(warning))  # its class exists only in the worker
        module, registry = _module_of(warned.path)
        warnings.warn_explicit(warning, type(warning), warned.path, warned.line, module, registry)


def _module_of(path: str) -> tuple[str | None, dict[Any, Any]]:
    """Name of the module in file ``path``, and its registry of warnings already shown."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path:
            return name, vars(module).setdefault("__warningregistry__", {})
    return None, _registries.setdefault(path, {})


#: For code that belongs to no module here (a file that was executed, an interactive cell).
_registries: dict[str, dict[Any, Any]] = {}


def _prefixed(output: Text) -> str:
    prefix = f"[worker {output.slot}] "
    text = prefix.join(output.text.splitlines(keepends=True))
    return prefix + text if output.begins else text
