"""Shows how far a long backward in workers is: ``Engine(progress=True)``.

A thread beside the one that waits reads the coordinator's figures, and writes one line again and
again: to stderr where that is a terminal, under the cell in a notebook.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

from mpgrad.base.standard_streams import write
from mpgrad.shm.status_board import board_of, figures_in

#: Seconds until the line appears, and between two looks.
APPEARS_AFTER_S, EVERY_S = 0.5, 0.2
_WIDTH = 20


def progress_shown(coordinator: int, tasks: int) -> AbstractContextManager[None]:
    """Show how many of so many tasks are done while the block runs, if there is a place for it."""
    show = _notebook_cell() or _terminal_line()
    return nullcontext() if show is None else _shown(coordinator, tasks, show)


@contextmanager
def _shown(coordinator: int, tasks: int, show: Callable[[str], None]) -> Iterator[None]:
    has_ended = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(coordinator, tasks, has_ended, show), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _follow(
    coordinator: int, tasks: int, has_ended: threading.Event, show: Callable[[str], None]
) -> None:
    started, has_shown = perf_counter(), False
    while not has_ended.wait(EVERY_S if has_shown else APPEARS_AFTER_S):
        with contextlib.suppress(OSError, LookupError):  # it has died; who waits will say so
            figures = figures_in(board_of(coordinator))
            show(_line(tasks, figures.remaining, figures.dispatched, perf_counter() - started))
            has_shown = True
    if has_shown:
        show("")


def _line(tasks: int, remaining: int, dispatched: int, seconds: float) -> str:
    """Backwards of other threads count among what remains: it may be more than these tasks."""
    done = max(tasks - remaining, 0)
    bar = "#" * (_WIDTH * done // max(tasks, 1))
    return f"backward [{bar:<{_WIDTH}}] {done}/{tasks} tasks, {dispatched} at work, {seconds:.1f} s"


def _terminal_line() -> Callable[[str], None] | None:
    stream = sys.stderr
    try:
        if stream is None or not stream.isatty():
            return None
    except ValueError:  # it is closed
        return None
    # Back to the beginning, and erase what was there.
    return lambda text: write(stream, f"\r\x1b[K{text}")


def _notebook_cell() -> Callable[[str], None] | None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    display = sys.modules["IPython"].display.display
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
