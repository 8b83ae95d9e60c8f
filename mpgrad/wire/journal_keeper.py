"""JournalKeeper: when the coordinator's journal is written, and where to.

A core that is used through ``keep`` leaves a trace that ``mpgrad replay`` can run again. The files
are private: small gradients and the text of errors stand in them.
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

#: Files in the directory; the oldest go first.
FILES_MAX = 40
#: Times that one process writes: a peer that provokes errors must not keep it busy.
WRITES_MAX = 8
SUFFIX = ".journal"


class JournalKeeper:
    """The journal of this process.

    Args:
        plan: when and where.
    """

    def __init__(self, plan: JournalPlan) -> None:
        self._plan = plan
        self._journal: Journal | None = None
        self._writes = 0
        # What a process of the same number left long ago is not about this one.
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
        """``handle_event``, from now on with a journal of it."""
        if self._plan.mode == "off":
            return handle_event
        self._journal = Journal(handle_event, tables, recorder)
        return self._journal.handle_event

    def handle_unrecorded(self, event: Any, handle_event: Callable[[Any], list[Any]]) -> list[Any]:
        """For an event that is too large to keep."""
        if self._journal is None:
            return handle_event(event)
        return self._journal.handle_unrecorded(event)

    def on_end(self) -> None:
        """The process ends as it should."""
        if self._plan.mode == "always":
            self._write("the process ended", "")

    def on_error(self, error: BaseException) -> str:
        """Something happened that must not: write, and say where; empty if that is not possible."""
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
        # What went wrong matters more than that it cannot be written down.
        with contextlib.suppress(Exception):
            _write_private(self.path, to_bytes(journal))
            _remove_oldest(self._plan.directory)
            return True
        return False


def path_of(directory: str, pid: int) -> str:
    """Where a coordinator writes its journal."""
    return os.path.join(directory, f"coordinator-{pid}{SUFFIX}")


def words(path: str) -> str:
    """For an error message: where the journal lies, and what to do with it."""
    return f"Its last events are in {path} (`mpgrad replay {path}`)"


def words_about(plan: JournalPlan, pid: int) -> str:
    """The same about another process, empty if it has left none."""
    path = path_of(plan.directory, pid)
    return words(path) if plan.mode != "off" and os.path.exists(path) else ""


def _write_private(path: str, data: bytes) -> None:
    """All or nothing, and for this user only."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    unfinished = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)
    # A file that somebody else has put there, who could read it then, is never written to.
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
