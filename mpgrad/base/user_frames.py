"""Which frames of the stack are the user's, and which are mpgrad's; tracebacks without the latter.

``MPGRAD_TRACEBACK=full`` shows all frames.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from types import CodeType, TracebackType

from mpgrad.base import config
from mpgrad.base.generated_code import WRITTEN

#: Where all files of mpgrad begin.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Standard library that stands between two of our frames.
_BETWEEN = os.path.join(os.path.dirname(os.__file__), "contextlib.py")
#: Of the code that ``interpreter.command`` gives to Python.
_FIRST_FRAME = re.compile(r'  File "<string>", line \d+ in <module>')
HIDDEN = "mpgrad's own frames are left out: MPGRAD_TRACEBACK=full shows them"


def level_of_caller() -> int:
    """The ``stacklevel`` of a warning for the line outside of this package that led to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_code):
        level, frame = level + 1, frame.f_back
    return level


def is_ours(code: CodeType) -> bool:
    """Whether ``code`` belongs to mpgrad."""
    return code.co_filename.startswith((PACKAGE, *WRITTEN))


def hide_our_frames(error: BaseException) -> None:
    """Take our frames out of the traceback of ``error``, and of those that it came from.

    It is called where our code is left: ``except BaseException as error: hide_our_frames(error);
    raise``. The frame that does so is not added again.
    """
    if config.traceback() == "full":
        return
    hidden = 0
    for member in _chain(error):
        kept, hidden_here = _without_ours(member.__traceback__)
        BaseException.with_traceback(member, kept)  # a class of the user's may refuse attributes
        hidden += hidden_here
    if hidden and HIDDEN not in getattr(error, "__notes__", ()):
        with contextlib.suppress(Exception):  # a class of the user's that allows no changes
            error.add_note(HIDDEN)


def _without_ours(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """The traceback without our frames, and how many these were."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        if not _is_hidden(entry.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    hidden = sum([_is_hidden(entry.tb_frame.f_code.co_filename) for entry in entries])
    return kept, hidden


def format_without_ours(error: BaseException) -> str:
    """The text of ``error``'s traceback without our frames; it changes nothing."""
    import traceback  # imported here: only errors need it

    described = traceback.TracebackException.from_exception(error)
    pending = [described]
    while pending:
        one = pending.pop()
        one.stack[:] = [entry for entry in one.stack if not _is_hidden(entry.filename)]
        pending += [other for other in (one.__cause__, one.__context__) if other is not None]
        pending += one.exceptions or ()
    return "".join(described.format())


def stack_without_ours(text: str) -> str:
    """A stack as ``faulthandler`` writes it without our frames, unless all are wanted."""
    if config.traceback() == "full":
        return text
    ours = tuple(f'  File "{start}' for start in (PACKAGE, *WRITTEN))
    left_out = (*ours, "Extension modules:")
    lines = [line for line in text.splitlines() if line and not line.startswith(left_out)]
    if lines and _FIRST_FRAME.fullmatch(lines[-1]):
        del lines[-1]  # the outermost frame: how the process was started
    return "\n".join(lines).strip()


def _is_hidden(file: str) -> bool:
    return file.startswith((PACKAGE, *WRITTEN)) or file == _BETWEEN


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error``, its causes and contexts, and the members of groups; each once."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        pending += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
