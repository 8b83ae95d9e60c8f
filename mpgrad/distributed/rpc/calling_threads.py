"""CallingThreads: run what other hosts call; a call that waits keeps no other from starting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class CallingThreads:
    """As many threads as calls run at once: nested calls never wait for a thread.

    A thread that has nothing to do ends after ``IDLE_S``.
    """

    IDLE_S = 5.0

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0
        #: Calls that have begun, or wait for a thread.
        self.busy = 0

    def run(self, task: Callable[[], None]) -> None:
        """Have ``task`` called soon; it raises nothing."""
        with self._condition:
            self.busy += 1
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._condition.notify()
                return
        threading.Thread(target=self._work, name="mpgrad-rpc", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                has_task = self._condition.wait_for(lambda: self._tasks, self.IDLE_S)
                self._idle -= 1
                if not has_task:
                    return
                task = self._tasks.popleft()
            try:
                task()
            finally:
                with self._condition:
                    self.busy -= 1
