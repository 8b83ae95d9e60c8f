"""The output of user code on a worker (printed, logged, warned), packed for the client.

Texts are bytes in it, see ``packed_texts``.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from mpgrad.base import standard_streams
from mpgrad.errors import ProtocolError
from mpgrad.wire.packed_texts import optional_unpacked, unpack_text
from mpgrad.wire.remote_error import decode_error

STDOUT, STDERR, LOG, WARNING = "stdout", "stderr", "log", "warning"
#: For the engine: what a Function got and gave, and what one changed on its ctx.
RUN, CHANGED = "run", "changed"


class Text(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Part of a stream, and whether it begins a line."""

    slot: int
    text: bytes
    begins: bool = True


class LogLine(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A logging record, its message formatted; ``extra``: as texts, what is no number."""

    slot: int
    name: bytes
    level: int
    path: bytes
    line: int
    message: bytes
    function: bytes | None
    extra: dict[str, Any]


class Warned(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A warning: which task of its graph gave it, and the Warning as ``encode_error`` packs it."""

    task: int
    warning: bytes
    path: bytes
    line: int


class Content(msgspec.Struct, frozen=True, array_like=True):
    """An array to the last bit, but for its memory layout."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class FunctionRun(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What a Function got and gave: the number of its Node in its graph, which gradients were
    wanted, those that flowed in, and what backward returned."""

    node: int
    needs: tuple[bool, ...]
    inputs: tuple[Content | None, ...]
    outputs: tuple[Content | None, ...]


class ContextChanged(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Lists and dictionaries on the ctx of a Node that backward has changed in place, as
    ``pack_attributes`` packs them."""

    node: int
    attributes: bytes
    buffers: tuple[bytes, ...]


Output: TypeAlias = Text | LogLine | Warned | FunctionRun | ContextChanged

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Output)


def encode_output(output: Output) -> bytes:
    return _encoder.encode(output)


def content_of(array: Any) -> Content | None:
    """``array`` as it is now; None for None."""
    return None if array is None else Content(array.dtype.str, array.shape, array.tobytes())


T = TypeVar("T", FunctionRun, ContextChanged)


def decode_as(data: bytes, kind: type[T]) -> T:
    """What came with the kind RUN or CHANGED.

    Raises:
        ProtocolError: it is something else.
    """
    output = _decoder.decode(data)
    if not isinstance(output, kind):
        raise ProtocolError(f"a {type(output).__name__} came in place of a {kind.__name__}")
    return output


def decode_shown(data: bytes) -> Output:
    """What came with another kind."""
    return _decoder.decode(data)


def show_output(kind: str, data: bytes) -> None:
    """Print or log the output of a worker in this process, with the worker's number.

    Without the stream it is dropped, as by ``print``.
    """
    output = _decoder.decode(data)
    if isinstance(output, Text):
        standard_streams.write(sys.stderr if kind == STDERR else sys.stdout, _prefixed(output))
    elif isinstance(output, LogLine):
        record = logging.LogRecord(
            unpack_text(output.name),
            output.level,
            unpack_text(output.path),
            output.line,
            f"[worker {output.slot}] {unpack_text(output.message)}",
            None,
            None,
            optional_unpacked(output.function),
        )
        vars(record).update(output.extra)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(output.level):
            logger.handle(record)


def text_of(data: bytes) -> str:
    """The output of a worker between tasks: of a thread of user code that went on."""
    output = _decoder.decode(data)
    if isinstance(output, Text):
        return _prefixed(output)
    if isinstance(output, LogLine):
        return f"[worker {output.slot}] {unpack_text(output.message)}\n"
    if isinstance(output, FunctionRun | ContextChanged):
        return ""
    warning = decode_error(output.warning, with_traceback=False)
    return f"{unpack_text(output.path)}:{output.line}: {type(warning).__name__}: {warning}\n"


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
        path = unpack_text(warned.path)
        module, registry = _module_of(path)
        warnings.warn_explicit(warning, type(warning), path, warned.line, module, registry)


def _module_of(path: str) -> tuple[str, dict[Any, Any]]:
    """Name of the module in file ``path``, and its registry of warnings already shown.

    Code that has no file (a notebook's cell) gets the name that ``warnings`` would give it:
    without one the warning would vanish.
    """
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == path:
            return name, vars(module).setdefault("__warningregistry__", {})
    return path.removesuffix(".py") or "<unknown>", _registries.setdefault(path, {})


#: For code that belongs to no module here (a file that was executed, an interactive cell).
_registries: dict[str, dict[Any, Any]] = {}


def _prefixed(output: Text) -> str:
    prefix = f"[worker {output.slot}] "
    text = prefix.join(unpack_text(output.text).splitlines(keepends=True))
    return prefix + text if output.begins else text
