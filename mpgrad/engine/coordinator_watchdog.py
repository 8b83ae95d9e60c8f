"""CoordinatorWatchdog: whether the coordinator that a session waits for is stopped (SIGSTOP).

A dead coordinator is noticed by its pidfd, and it runs no user code that could keep it busy. A
stopped coordinator is not dead, and a session would wait for it forever. So a session that has
heard nothing for a while checks, prints a warning, and kills the coordinator after a longer time;
the rest follows as after any death. Time is counted in waits without an event and not read from the
clock: the time for which this process itself was stopped (Ctrl-Z, a suspended machine) does not
    count.
"""

from __future__ import annotations

from mpgrad.base.standard_streams import say
from mpgrad.engine.processes import CoordinatorProcess

#: The longest wait in milliseconds.
WAIT_MS = 1000
#: The number of waits after which a stopped coordinator is reported, and killed.
NOTICE_AFTER, KILL_AFTER = 3, 30


class CoordinatorWatchdog:
    """One per session."""

    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self._coordinator = coordinator
        #: Waits in a row without an event, after each of which it was found stopped.
        self._stopped = 0

    def note_wait(self, *, has_come: bool) -> None:
        """Record a wait; if something ``has_come``, the coordinator is running.

        A coordinator that has been stopped for too long is killed here; the next wait sees it die.
        """
        if has_come or not self._coordinator.is_stopped():
            self._stopped = 0
            return
        self._stopped += 1
        seconds = self._stopped * WAIT_MS / 1000
        if self._stopped == NOTICE_AFTER:
            self._say(seconds)
        elif self._stopped >= KILL_AFTER:
            self._coordinator.kill(f"was stopped (SIGSTOP) for {seconds:g} s and killed")

    def _say(self, seconds: float) -> None:
        pid, left_s = self._coordinator.pid, (KILL_AFTER - NOTICE_AFTER) * WAIT_MS / 1000
        say(
            f"the coordinator process (pid {pid}) has been stopped (SIGSTOP) for {seconds:g} s, "
            f"and a backward waits for it. `kill -CONT {pid}` lets it go on; in {left_s:g} s it is "
            "killed."
        )
