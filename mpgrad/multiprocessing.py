"""``mg.multiprocessing``: the standard module's names, and PyTorch's ``spawn``.

A tensor that is sent to another process arrives there as a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import *  # noqa: F403
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

#: Seconds that the others have to end after SIGTERM, once one has failed; then SIGKILL comes.
AFTER_FAILURE_S = 30.0


class ProcessException(Exception):
    """A process of ``spawn`` has failed.

    Attributes:
        msg: what happened.
        error_index: the number of the process.
        error_pid: its id.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg, error_index, error_pid)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid

    def __str__(self) -> str:
        return self.msg


class ProcessRaisedException(ProcessException):
    """The function has raised an exception, whose traceback is in the message."""


class ProcessExitedException(ProcessException):
    """The process has ended by itself, or by a signal.

    Attributes:
        exit_code: of the process; -n if signal n has ended it.
        signal_name: of that signal, else None.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.args = (*self.args, exit_code, signal_name)
        self.exit_code, self.signal_name = exit_code, signal_name


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in ``nprocs`` new processes, with the number i of each.

    The processes may be the ranks of a group or of remote calls, at ``localhost``: they have a key
    in common. They end when this process ends.

    Args:
        fn: at the top level of a module, so that the processes can import it.
        args: of ``fn``, pickled.
        nprocs: how many processes.
        join: whether to wait for all of them.
        daemon: their ``daemon`` flag.
        start_method: another one than "spawn" is for ``start_processes``.

    Returns:
        None if ``join``; else what waits for them.

    Raises:
        ProcessRaisedException: ``fn`` has raised in a process; the others have been ended.
        ProcessExitedException: a process has ended with another code than 0; likewise.
    """
    if start_method != "spawn":
        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}). To use another "
            "one call start_processes()",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon)


def start_processes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """As ``spawn``, with any start method of ``multiprocessing``."""
    of_method: Any = get_context(start_method)
    # A file for each process takes a traceback of any length; a pipe would have to be read.
    folder = tempfile.mkdtemp(prefix="mpgrad-processes-")
    files = [Path(folder, str(number)) for number in range(nprocs)]
    processes = [
        of_method.Process(target=_run, args=(fn, number, tuple(args), file), daemon=daemon)
        for number, file in enumerate(files)
    ]
    context = ProcessContext(processes, files)
    weakref.finalize(context, shutil.rmtree, folder, ignore_errors=True)
    context.start()
    if not join:
        return context
    while not context.join():
        pass
    return None


class ProcessContext:
    """Waits for the processes of ``spawn``.

    Attributes:
        processes: of ``multiprocessing``, by number.
    """

    def __init__(self, processes: Sequence[Any], error_files: Sequence[Path]) -> None:
        self.processes, self._error_files = processes, error_files
        #: Those that nobody has waited for: their numbers, by what is waited on.
        self._running: dict[Any, int] = {}

    def start(self) -> None:
        """Start all processes, or none."""
        try:
            for number, process in enumerate(self.processes):
                process.start()
                self._running[process.sentinel] = number
        except BaseException:
            self._end_all([self.processes[number] for number in self._running.values()], None)
            raise

    def pids(self) -> list[int]:
        """The id of each process."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until a process ends; ``True`` once all have.

        Args:
            timeout: seconds to wait at most.
            grace_period: seconds that the others have to end by themselves if one has failed,
                and again to end after SIGTERM.

        Raises:
            ProcessRaisedException: see ``spawn``.
            ProcessExitedException: see ``spawn``.
        """
        for sentinel in connection.wait([*self._running], timeout) if self._running else ():
            number = self._running.pop(sentinel)
            self.processes[number].join()
            if self.processes[number].exitcode:
                failure = self._failure(number)
                self._end_all(self.processes, grace_period)
                raise failure
        return not self._running

    def _end_all(self, processes: Sequence[Any], grace_period: float | None) -> None:
        self._running = {}
        if grace_period is not None:
            _wait_for(processes, grace_period)
        for end in ("terminate", "kill"):
            for process in processes:
                if process.is_alive():
                    getattr(process, end)()
            _wait_for(processes, AFTER_FAILURE_S if grace_period is None else grace_period)

    def _failure(self, number: int) -> ProcessException:
        """What ``number`` has ended by. Ranks that lose a rank fail, too, and may end before it: of
        exceptions the first one counts."""
        written = {n: file for n, file in enumerate(self._error_files) if file.exists()}
        if number in written:
            first = min(written, key=lambda n: written[n].stat().st_mtime_ns)
            text = written[first].read_text("utf-8", "surrogatepass")
            says = f"\n\n-- Process {first} terminated with the following error:\n{text}"
            return ProcessRaisedException(says, first, self.processes[first].pid)
        process = self.processes[number]
        code, name = process.exitcode, None
        if code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
        how = f"exit code {code}" if code > 0 else f"signal {name or f'<Unknown signal {-code}>'}"
        return ProcessExitedException(
            f"process {number} terminated with {how}", number, process.pid, code, name
        )


def _wait_for(processes: Sequence[Any], seconds: float) -> None:
    """Until all have ended, at most so long."""
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


def _run(fn: Callable[..., Any], number: int, args: tuple[Any, ...], error_file: Path) -> None:
    """What a process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        fn(number, *args)
    except KeyboardInterrupt:
        pass  # the parent has ended, or has it, too
    except Exception:
        written = error_file.with_suffix(".part")
        written.write_text(traceback.format_exc(), "utf-8", "surrogatepass")
        written.rename(error_file)
        sys.exit(1)


def _end_with_parent() -> None:
    """As if Ctrl-C had been pressed here, once the parent is gone; two seconds later the end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2.0)
        os._exit(1)
