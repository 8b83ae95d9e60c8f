"""JournalKeeper: when and where the coordinator's journal is written.

After ``keep``, the events of a core can be run again with ``mpgrad replay``. The files are private:
they contain small gradients and the text of errors.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.wire.journal import AllocatorRecorder, Journal, describe
from mpgrad.wire.setup import JournalPlan

#: The number of files in the directory; the oldest are removed.
FILES_MAX = 40
#: The number of times that one process writes: a peer that provokes errors must not keep it busy.
WRITES_MAX = 8
SUFFIX = ".journal"


class JournalKeeper:
    """The journal of this process.

    Args:
        plan: when and where it is written.
    """

    def __init__(self, plan: JournalPlan) -> None:
        self._plan = plan
        self._journal: Journal | None = None
        self._writes = 0
        # A file of an earlier process with the same number is not about this one.
        if plan.mode != "off":
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    @property
    def path(self) -> str:
        return path_of(self._plan.directory, os.getpid())

    def keep(
        self,
        handle_event: Callable[[Any], list[Any]],
        tables: CoordinatorTables,
        recorder: AllocatorRecorder | None = None,
    ) -> Callable[[Any], list[Any]]:
        """``handle_event``, recorded in a journal from now on."""
        if self._plan.mode == "off":
            return handle_event
        self._journal = Journal(handle_event, tables, recorder)
        return self._journal.handle_event

    def handle_unrecorded(self, event: Any, handle_event: Callable[[Any], list[Any]]) -> list[Any]:
        """Handle an event that is too large to be kept."""
        if self._journal is None:
            return handle_event(event)
        return self._journal.handle_unrecorded(event)

    def on_end(self) -> None:
        """Write the journal at a normal end, if the plan says so."""
        if self._plan.mode == "always":
            self._write("the process ended", "")

    def on_error(self, error: BaseException) -> str:
        """Write the journal after an internal error; return its place, or an empty text."""
        import traceback

        details = "".join(traceback.format_exception(error))
        return words(self.path) if self._write(describe(error), details) else ""

    def _write(self, reason: str, details: str) -> bool:
        if self._journal is None or self._writes >= WRITES_MAX:
            return False
        self._writes += 1
        import datetime

        from mpgrad.wire.journal_file import JournalFile, to_bytes

        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        journal = JournalFile(
            os.getpid(),
            sys.modules["mpgrad"].__version__,  # the package itself is the top layer
            now,
            reason,
            details,
            self._journal.record(),
        )
        # The error itself matters more than a failure to write it down.
        with contextlib.suppress(Exception):
            _write_private(self.path, to_bytes(journal))
            _remove_oldest(self._plan.directory)
            return True
        return False


def path_of(directory: str, pid: int) -> str:
    """The path of a coordinator's journal."""
    return os.path.join(directory, f"coordinator-{pid}{SUFFIX}")


def words(path: str) -> str:
    """For an error message: the path of the journal, and how to replay it."""
    return f"Its last events are in {path} (`mpgrad replay {path}`)"


def words_about(plan: JournalPlan, pid: int) -> str:
    """The same about another process; empty if it has left no journal."""
    path = path_of(plan.directory, pid)
    return words(path) if plan.mode != "off" and os.path.exists(path) else ""


def _write_private(path: str, data: bytes) -> None:
    """Write a file atomically, readable for this user only."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unfinished = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)
    # Never write to a file that another user has put there and could read.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    os.replace(unfinished, path)


def _remove_oldest(directory: str) -> None:
    with os.scandir(directory) as found:
        files = [(entry.stat().st_mtime_ns, entry.path) for entry in found]
    journals = sorted(file for file in files if file[1].endswith(SUFFIX))
    for _, path in journals[:-FILES_MAX]:
        with contextlib.suppress(OSError):
            os.unlink(path)
