"""OutputForwarder: the client shows what user code prints, logs or warns in a worker.

Text is sent line by line while a task runs, before the task's reply and on the same lane, so that
it appears before ``backward()`` returns. Other threads leave their text for the main thread, which
alone may use the worker's sockets.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from mpgrad.wire.output_record import (
    LOG,
    STDERR,
    STDOUT,
    WARNING,
    LogLine,
    Output,
    Text,
    Warned,
    encode_output,
)
from mpgrad.wire.packed_texts import optional_packed, pack_text
from mpgrad.wire.remote_error import encode_error

Send = Callable[[str, bytes], None]

#: What each record has, and what is sent in another form.
_OF_RECORDS = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
#: The maximum characters of a message; longer texts are sent in pieces.
PIECE_CHARACTERS = 1 << 20


class OutputForwarder:
    """Installed once per worker process, by the thread that runs its tasks.

    Args:
        slot: the worker's number, shown before each line.
        send: ``send(kind, data)`` sends one piece to the client.

    Attributes:
        waiting_fd: readable when another thread has left text; then call ``wake``.
    """

    def __init__(self, slot: int, send: Send) -> None:
        self._slot, self._send = slot, send
        self._thread = threading.get_ident()
        #: The number of the running task in its graph.
        self.task = -1
        self.waiting_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting: deque[tuple[str, Output]] = deque()
        self._streams = (_Stream(self, STDOUT, 1), _Stream(self, STDERR, 2))

    def install(self, log_level: int) -> None:
        """Redirect ``sys.stdout``, ``sys.stderr``, logging and warnings."""
        sys.stdout, sys.stderr = self._streams
        logging.basicConfig(handlers=[_Handler(self)], level=log_level, force=True)
        warnings.showwarning = self._show_warning  # type: ignore[assignment]
        # Every warning is forwarded; the filters of the client decide which ones are shown.
        warnings.resetwarnings()
        warnings.simplefilter("always")
        os.register_at_fork(after_in_child=self._leave_to_child)

    def flush(self) -> None:
        """Send incomplete lines, and text of other threads."""
        self._send_waiting()
        for stream in self._streams:
            stream.flush_rest()

    def wake(self) -> None:
        """Send the text of another thread between two tasks (``waiting_fd`` is readable)."""
        os.eventfd_read(self.waiting_fd)
        self.flush()

    def text(self, kind: str, text: str) -> None:
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            begins = start == 0 or text[start - 1] == "\n"
            self._pass_on(kind, Text(self._slot, pack_text(piece), begins))

    def record(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        more = len(message) - PIECE_CHARACTERS
        if more > 0:
            message = f"{message[:PIECE_CHARACTERS]} ... ({more:,} more characters)"
        self._pass_on(
            LOG,
            LogLine(
                self._slot,
                pack_text(record.name),
                record.levelno,
                pack_text(record.pathname),
                record.lineno,
                pack_text(message),
                optional_packed(record.funcName),
                {k: _plain(v) for k, v in vars(record).items() if k not in _OF_RECORDS},
            ),
        )

    def _show_warning(
        self, message: Any, category: type[Warning], filename: str, lineno: int, *_: Any
    ) -> None:
        warning = message if isinstance(message, Warning) else category(message)
        path = pack_text(filename)
        self._pass_on(WARNING, Warned(-1, encode_error(warning, ""), path, lineno))

    def _pass_on(self, kind: str, output: Output) -> None:
        if threading.get_ident() != self._thread:
            self._waiting.append((kind, output))
            os.eventfd_write(self.waiting_fd, 1)
            return
        self._send_waiting()
        self._send_now(kind, output)

    def _send_waiting(self) -> None:
        while self._waiting:
            self._send_now(*self._waiting.popleft())

    def _send_now(self, kind: str, output: Output) -> None:
        if isinstance(output, Warned):
            # It is the task that runs now: a thread may have left it in a task of another graph.
            output = msgspec.structs.replace(output, task=self.task)
        self._send(kind, encode_output(output))

    def _leave_to_child(self) -> None:
        """In a process that user code forks here, print and log normally."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        logging.basicConfig(level=logging.getLogger().level, force=True)
        warnings.showwarning = _SHOW_WARNING


_SHOW_WARNING = warnings.showwarning


class _Stream(io.TextIOBase):
    """A text stream whose lines go to the client. Thread-safe.

    Args:
        descriptor: the output of programs that are started with this stream.
    """

    encoding = "utf-8"
    #: Bytes that are no UTF-8 cross as lone surrogates; the client's stream decides.
    errors = "surrogateescape"

    def __init__(self, forwarder: OutputForwarder, kind: str, descriptor: int) -> None:
        self._forwarder, self._kind, self._descriptor = forwarder, kind, descriptor
        self._lock = threading.Lock()
        #: The text of an incomplete line.
        self._parts: list[str] = []
        self.buffer = _Buffer(self)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        """Write text; a carriage return ends a line, too, because progress bars use it."""
        end = 1 + max(text.rfind("\n"), text.rfind("\r"))
        with self._lock:
            if not end:
                self._parts.append(text)
                return len(text)
            lines = "".join([*self._parts, text[:end]])
            self._parts = [text[end:]] if end < len(text) else []
        self._forwarder.text(self._kind, lines)
        return len(text)

    def flush(self) -> None:
        """Do nothing: complete lines are sent at once, the rest when the task ends."""

    def flush_rest(self) -> None:
        with self._lock:
            rest, self._parts = "".join(self._parts), []
        if rest:
            self._forwarder.text(self._kind, rest + "\n")


class _Buffer(io.RawIOBase):
    """Decodes bytes and writes them as text."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._stream.write(raw.decode(self._stream.encoding, self._stream.errors))
        return len(raw)


class _Handler(logging.Handler):
    def __init__(self, forwarder: OutputForwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._forwarder.record(record)
        except Exception:
            self.handleError(record)


def _plain(value: Any) -> Any:
    """A number as it is; anything else as a text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return int(value)
    return str(value).encode(errors="replace").decode()
