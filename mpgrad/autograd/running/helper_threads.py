"""on_helper_thread(): backwards nested thousands deep without overflowing any thread's stack.

Each backward inside a hook or a Function is on the stack of the one around it, and Python allows
about 1,000 frames. So after a few levels the next one runs on a helper thread, which takes over the
thread state (``thread_state``), while its caller waits. PyTorch's engine does the same after 60.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from mpgrad.autograd.running.running_backward import RunningBackward
from mpgrad.base.thread_state import ThreadState

T = TypeVar("T")

#: The number of nested backwards on one thread. Each takes about 20 of Python's 1,000 frames (in
#: ``process`` mode, with a Function and its user code), and the outermost call may itself be deep.
LEVELS_PER_THREAD = 16
#: Seconds between the checks of the main thread while it waits: a signal that comes just before it
#: falls asleep does not wake it.
WAKE_S = 0.2
#: The number of helper threads that wait for more work; others end when they are done.
IDLE_MAX = 32


def on_helper_thread(running: RunningBackward, execute: Callable[[], T]) -> T:
    """``execute()``, called on another thread that has this one's state.

    Raises:
        BaseException: what ``execute`` raised, as it is.
        KeyboardInterrupt: Ctrl-C came while this thread waited; raised once the other is done.
    """
    outermost = running.outermost()
    if outermost.is_interrupted:
        raise KeyboardInterrupt  # an endless recursion ends here
    running.levels = 0
    job = _Job(execute)
    helper = _take()
    helper.jobs.put(job)
    is_interrupted = False
    patience = WAKE_S if threading.current_thread() is threading.main_thread() else None
    while not job.is_done.is_set():
        try:
            job.is_done.wait(patience)
        except KeyboardInterrupt:
            # The helper uses arrays and sessions of this backward, so it must finish.
            is_interrupted = outermost.is_interrupted = True
    job.thread_state.unpack()
    if job.error is not None:
        error, job.error = job.error, None
        try:
            raise error
        finally:
            del error  # otherwise this frame and the traceback would keep each other
    if is_interrupted:
        raise KeyboardInterrupt
    result: T = job.result
    return result


class _Job:
    """A call for a helper thread, and its result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.thread_state = ThreadState()
        self.is_done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.thread_state.run(self._function)
        except BaseException as error:
            self.error = error


class _Helper(threading.Thread):
    """A thread that does one job after another."""

    def __init__(self) -> None:
        super().__init__(name="mpgrad-backward", daemon=True)
        self.jobs: SimpleQueue[_Job] = SimpleQueue()

    def run(self) -> None:
        stays = True
        while stays:
            job = self.jobs.get()
            job.run()
            stays = len(_idle) < IDLE_MAX
            if stays:
                _idle.append(self)  # first, so that the waiting thread finds it there
            job.is_done.set()
            del job


#: The last idle one is used first: its stack is still in the caches.
_idle: list[_Helper] = []


def _take() -> _Helper:
    try:
        return _idle.pop()
    except IndexError:
        helper = _Helper()
        helper.start()
        return helper


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_idle.clear)
