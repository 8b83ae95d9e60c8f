"""RaisedOnWorker: a Function that raised on a worker, which is no error yet.

mpgrad has guessed that the Function may run there, and what `local` does counts. Nothing has been
committed, so the backward is thrown away and runs again in this process. If that succeeds, the
guess was wrong: the Function stays in this process from then on.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.user_frames import level_of_caller
from mpgrad.calls.custom_functions.run_on import keep_changing, keep_in_client
from mpgrad.engine.placement import note_said
from mpgrad.errors import (
    BytesCorrupted,
    InvariantViolated,
    PerformanceWarning,
    ProtocolError,
    add_note,
)
from mpgrad.scheduler.instructions import ForwardOutput
from mpgrad.wire.output_record import STDERR, STDOUT, LogLine, Text, decode_shown
from mpgrad.wire.packed_texts import unpack_text

_CHANGED = re.compile("the backward of (.*?) has changed (.*) in place, which .*")
#: The length of the worker's message in the warning.
MESSAGE_MAX = 300

_NOT_AGAIN = (
    "The backward was not run again in this process, because hooks or Functions of it had already "
    "run here, and those never run twice. From the next backward on, {0} runs in this process"
)


class RaisedOnWorker(Exception):
    """Asks for the whole backward to run again in this process.

    Args:
        function: the Function that raised.
        error: what it raised.
        shown: what the workers have printed and logged for this backward.
    """

    def __init__(
        self,
        function: type[Function],
        error: BaseException,
        shown: Sequence[ForwardOutput] = (),
    ) -> None:
        super().__init__(f"{function.__qualname__} raised on a worker")
        self.function, self.error, self.shown = function, error, shown


def is_guess(node: object, error: BaseException) -> bool:
    """Whether ``node`` is a Function that mpgrad sent to workers on its own account, and ``error``
    may have its cause there.

    Memory that ran out says nothing about the place, and what is broken must be seen.
    """
    broken = MemoryError | ProtocolError | InvariantViolated | BytesCorrupted
    return (
        isinstance(node, FunctionNode)
        and node.function.run_on is None
        and not isinstance(error, broken)
    )


def without_second_run(raised: RaisedOnWorker, error: BaseException) -> BaseException:
    """The ``error`` of a backward that must not run again; its Function stays here from now on."""
    _keep(raised)
    add_note(error, _NOT_AGAIN.format(raised.function.__qualname__))
    return error


def succeeded_here(raised: RaisedOnWorker) -> None:
    """Keep the Function here from now on.

    Warns:
        PerformanceWarning: says so, with the worker's exception.
    """
    warnings.warn(_keep(raised), PerformanceWarning, stacklevel=level_of_caller())


def _keep(raised: RaisedOnWorker) -> str:
    function, error = raised.function, raised.error
    first, _, _ = str(error).partition("\n")
    message = first if len(first) <= MESSAGE_MAX else f"{first[:MESSAGE_MAX]} ..."
    name = function.__qualname__
    changed = _CHANGED.fullmatch(first)
    if changed is not None:
        _, what = changed.groups()
        reason = keep_changing(function, what)
        note_said(reason)
        return reason
    if "read-only" in first:
        remedy = "if it writes into a copy instead (.copy(), .clone()), it can run on workers"
    else:
        remedy = f'run_on = "client" on {name} says so from the start'
    reason = (
        f"{name} runs in this process from now on: on a worker its backward raised "
        f"{type(error).__name__}: {message}; here it did not [{remedy}]"
    )
    keep_in_client(function, reason)
    note_said(reason)
    return reason


# ---------------------------------------------------------------------- what it prints twice


def without_repeats(shown: Iterable[ForwardOutput]) -> ExitStack:
    """A context that drops lines and log records of this process that workers have shown already.

    It is no generator: that would set an attribute of an exception which may refuse it.

    Args:
        shown: what they have shown; each line is dropped as often as it occurs there.
    """
    texts: dict[str, list[str]] = {STDOUT: [], STDERR: []}
    records: dict[str, list[str]] = {}
    for output in shown:
        content = decode_shown(output.data)
        if isinstance(content, Text):
            texts[output.kind].append(unpack_text(content.text))
        elif isinstance(content, LogLine):
            name, message = unpack_text(content.name), unpack_text(content.message)
            records.setdefault(name, []).append(message)
    stack = ExitStack()
    for kind, redirected in ((STDOUT, redirect_stdout), (STDERR, redirect_stderr)):
        stream = getattr(sys, kind)
        if texts[kind] and stream is not None:
            own = _WithoutRepeats(stream, "".join(texts[kind]))
            stack.enter_context(redirected(own))  # type: ignore[type-var]
            stack.callback(own.flush_rest)
    for name, messages in records.items():
        logger, drop = logging.getLogger(name), _drops(messages)
        logger.filters.insert(0, drop)  # before those of the user, which may count
        stack.callback(logger.removeFilter, drop)
    return stack


def _drops(messages: list[str]) -> Callable[[logging.LogRecord], bool]:
    """A filter that refuses one record for each of ``messages``."""

    def accepts(record: logging.LogRecord) -> bool:
        said = record.getMessage()
        for message in messages:
            if message == said or message.startswith(f"{said}\n"):  # a traceback follows
                messages.remove(message)
                return False
        return True

    return accepts


class _WithoutRepeats(io.TextIOBase):
    """A text stream in front of another that drops known lines.

    Args:
        stream: where the other lines go.
        known: the lines to drop.
    """

    def __init__(self, stream: Any, known: str) -> None:
        self._stream, self._known = stream, Counter(known.splitlines())
        #: The text of an incomplete line.
        self._rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._pass_on(line, "\n")
        return len(text)

    def flush_rest(self) -> None:
        """Write an incomplete line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._pass_on(rest, "")

    def _pass_on(self, line: str, end: str) -> None:
        if self._known[line]:
            self._known[line] -= 1
        else:
            self._stream.write(f"{line}{end}")
