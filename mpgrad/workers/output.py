"""OutputForwarder: what user code prints, logs or warns here is shown by the client.

Text is sent line by line while a task runs, and before the task's own reply on the same lane, so
that it appears before ``backward()`` returns.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from mpgrad.wire.output import (
    LOG,
    STDERR,
    STDOUT,
    WARNING,
    Output,
    Record,
    Text,
    Warned,
    encode_output,
)
from mpgrad.wire.remote_error import encode_error

Send = Callable[[str, bytes], None]


class OutputForwarder:
    """Installed once per worker process.

    Args:
        slot: the worker's number, shown before each line.
        send: ``send(kind, data)`` passes one piece on to the client.
    """

    def __init__(self, slot: int, send: Send) -> None:
        self._slot, self._send = slot, send
        #: Which task of its graph runs.
        self.task = -1
        self._streams = (_Stream(self, STDOUT), _Stream(self, STDERR))

    def install(self, log_level: int) -> None:
        """Redirect ``sys.stdout``, ``sys.stderr``, logging and warnings."""
        sys.stdout, sys.stderr = self._streams
        logging.basicConfig(handlers=[_Handler(self)], level=log_level, force=True)
        warnings.showwarning = self._show_warning  # type: ignore[assignment]
        # Every one is passed on: which of them are shown, and how often, the client's filters say.
        warnings.resetwarnings()
        warnings.simplefilter("always")

    def flush(self) -> None:
        """Send lines that have no end yet."""
        for stream in self._streams:
            stream.flush_rest()

    def text(self, kind: str, text: str) -> None:
        self._pass_on(kind, Text(self._slot, text))

    def record(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        self._pass_on(
            LOG,
            Record(
                self._slot,
                record.name,
                record.levelno,
                record.pathname,
                record.lineno,
                message,
                record.funcName,
            ),
        )

    def _show_warning(
        self, message: Any, category: type[Warning], filename: str, lineno: int, *_: Any
    ) -> None:
        warning = message if isinstance(message, Warning) else category(message)
        self._pass_on(WARNING, Warned(self.task, encode_error(warning, ""), filename, lineno))

    def _pass_on(self, kind: str, output: Output) -> None:
        self._send(kind, encode_output(output))


class _Stream(io.TextIOBase):
    """A text stream whose lines go to the client."""

    def __init__(self, forwarder: OutputForwarder, kind: str) -> None:
        self._forwarder, self._kind, self._rest = forwarder, kind, ""

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        lines, newline, self._rest = (self._rest + text).rpartition("\n")
        if newline:
            self._forwarder.text(self._kind, lines + newline)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: whole lines are sent at once, the rest when the task ends."""

    def flush_rest(self) -> None:
        rest, self._rest = self._rest, ""
        if rest:
            self._forwarder.text(self._kind, rest + "\n")


class _Handler(logging.Handler):
    def __init__(self, forwarder: OutputForwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._forwarder.record(record)
        except Exception:
            self.handleError(record)
