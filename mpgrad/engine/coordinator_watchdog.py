"""CoordinatorWatchdog: whether the coordinator that a session waits for is stopped (SIGSTOP).

Its death shows by its pidfd, and it runs no user code that could keep it busy. But a stopped
process is not dead, and who waits for it would wait for ever and not know why. So a session that
has heard nothing for a while looks, says so, and after a generous time has it killed; then all goes
on as after any other death. Ages are counted in waits that nothing ended and not read from the
clock: the time for which this process itself was stopped (Ctrl-Z, a suspended machine) is no age.
"""

from __future__ import annotations

from mpgrad.base.standard_streams import say
from mpgrad.engine.processes import CoordinatorProcess

#: Milliseconds that one wait lasts at most.
WAIT_MS = 1000
#: Waits after which a stopped coordinator is spoken of, and after which it is killed.
NOTICE_AFTER, KILL_AFTER = 3, 30


class CoordinatorWatchdog:
    """One per session."""

    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self._coordinator = coordinator
        #: Waits in a row that nothing ended and after which it was found stopped.
        self._stopped = 0

    def note_wait(self, *, has_come: bool) -> None:
        """A wait is over; if something ``has_come`` the coordinator is well.

        It is killed here if it has been stopped for too long: the next wait sees it die.
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
