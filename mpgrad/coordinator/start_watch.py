"""StartWatch: ends workers that do not start; deaths are noticed by pidfd."""

from __future__ import annotations

import math

from mpgrad.base.standard_streams import say
from mpgrad.base.start_deadline import StartDeadline, Verdict, notice_of_stop
from mpgrad.coordinator.supervisor import Supervisor, WorkerProcess

#: Seconds between two looks.
TICK_S = 1.0


class StartWatch:
    """Looks at the workers that start; a stopped one is replaced, as after any SIGKILL.

    Args:
        limit_s: the seconds for which a worker that starts may do nothing.
        supervisor: of the workers.
    """

    def __init__(self, limit_s: float, supervisor: Supervisor) -> None:
        self._limit_s, self._supervisor = limit_s, supervisor
        #: The time of the next look; None while no worker starts.
        self._next_s: float | None = None
        self._deadlines: dict[str, StartDeadline] = {}

    def wake(self, now_s: float) -> None:
        """A worker starts."""
        if self._next_s is None:
            self._next_s = now_s + TICK_S

    def wait_ms(self, now_s: float) -> int | None:
        """How long the loop may sleep; None: forever."""
        return None if self._next_s is None else max(0, math.ceil((self._next_s - now_s) * 1000))

    def look_in_time(self, now_s: float) -> None:
        """Look at the workers that start, if it is time."""
        if self._next_s is None or now_s < self._next_s:
            return
        starting = self._supervisor.starting()
        self._next_s = now_s + TICK_S if starting else None
        known = self._deadlines
        self._deadlines = {
            worker.peer: known.get(worker.peer) or StartDeadline(self._limit_s)
            for worker in starting
        }
        for worker in starting:
            self._look(worker)

    def _look(self, worker: WorkerProcess) -> None:
        deadline, child = self._deadlines[worker.peer], worker.child
        verdict = deadline.look(TICK_S, child.processor_use(), is_stopped=child.is_stopped())
        if verdict is Verdict.NOTICE:
            who, left_s = f"worker {worker.peer}", self._limit_s - deadline.idle_s
            waits = "the start of the engine"
            say(notice_of_stop(who, child.pid, waits, deadline.stopped_s, left_s))
        elif verdict is Verdict.STOPPED:
            self._supervisor.fence(worker.peer)
        elif verdict is Verdict.LATE:
            self._supervisor.give_up(worker.peer, deadline.words())
