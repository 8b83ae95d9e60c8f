"""Watchdog: notices workers that are alive but make no progress; deaths are noticed by pidfd.
StartWatch: ends workers that do not start. Deadlines: when cancelled graphs must have ended.

A heartbeat of the worker itself would not help, since a rule may hold the GIL for an hour. So once
per tick the coordinator checks what each busy worker does, on the status board and in the kernel;
without tasks it does not check, so an idle engine sleeps. Time is counted in ticks and not read
from the clock, so that the time for which the coordinator itself was stopped (Ctrl-Z, a suspended
machine) does not count.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from mpgrad.base.standard_streams import say
from mpgrad.base.start_deadline import StartDeadline, Verdict, notice_of_stop
from mpgrad.scheduler.events import DeadlinePassed, WorkerHung
from mpgrad.scheduler.instructions import SetDeadline

if TYPE_CHECKING:
    from mpgrad.coordinator.supervisor import Supervisor, WorkerProcess

#: Seconds between two checks, and the least number of checks of a task with a timeout.
TICK_S, LOOKS_PER_TIMEOUT = 1.0, 4
#: Seconds for which a worker with tasks may be stopped (SIGSTOP). Stopping the whole process group
#: stops the coordinator, too; a debugger's stop does not count as one.
STOPPED_LIMIT_S = 3.0
#: Seconds for which a worker with tasks may run none of them.
IDLE_LIMIT_S = 60.0


class Sight(NamedTuple):
    """The state of one worker with tasks at a check."""

    peer: str
    #: "worker w0.1 (pid 123)".
    who: str
    #: The task that it is executing (graph, task, attempt), if any.
    running: tuple[int, int, int] | None
    is_stopped: bool


class Watchdog:
    """Records for how long each worker has been in the same state.

    Args:
        task_timeout_s: the longest time of a task in seconds; None: unlimited.
    """

    def __init__(self, task_timeout_s: float | None) -> None:
        self._timeout_s = math.inf if task_timeout_s is None else task_timeout_s
        self._tick_s = min(TICK_S, self._timeout_s / LOOKS_PER_TIMEOUT)
        #: The time of the next check; None while no worker has tasks.
        self._next_s: float | None = None
        #: The last state of each peer, and its number of ticks.
        self._seen: dict[str, tuple[Sight, int]] = {}

    def wait_ms(self, now_s: float) -> int | None:
        """How long the loop may sleep; None: forever."""
        if self._next_s is None:
            return None
        return max(0, math.ceil((self._next_s - now_s) * 1000))

    def wake(self, now_s: float) -> None:
        """A message has arrived, so that there may be tasks."""
        if self._next_s is None:
            self._next_s = now_s + self._tick_s

    def is_due(self, now_s: float) -> bool:
        return self._next_s is not None and now_s >= self._next_s

    def look(self, now_s: float, sights: list[Sight]) -> list[WorkerHung]:
        """Compare with the last check; return the workers that have hung for too long.

        Args:
            now_s: the time of this check.
            sights: the state of every worker with tasks.
        """
        self._next_s = now_s + self._tick_s if sights else None
        seen = {}
        for sight in sights:
            before, ticks = self._seen.get(sight.peer, (None, -1))
            seen[sight.peer] = (sight, ticks + 1 if sight == before else 0)
        self._seen = seen
        return [hung for hung in map(self._judge, seen.values()) if hung is not None]

    def _judge(self, seen: tuple[Sight, int]) -> WorkerHung | None:
        sight, ticks = seen
        age_s = ticks * self._tick_s
        if sight.is_stopped:
            if age_s >= STOPPED_LIMIT_S:
                cause = f"was stopped (SIGSTOP) for {STOPPED_LIMIT_S:g} s and killed"
                return WorkerHung(sight.peer, f"{sight.who} {cause}", None)
        elif sight.running is None:
            if age_s >= IDLE_LIMIT_S:
                cause = f"began none of its tasks for {IDLE_LIMIT_S:g} s and was killed"
                return WorkerHung(sight.peer, f"{sight.who} {cause}", None)
        elif age_s >= self._timeout_s:
            cause = f"had not finished it after {self._timeout_s:g} s and was killed"
            return WorkerHung(sight.peer, f"{sight.who} {cause}", sight.running)
        return None


class Deadlines:
    """The deadlines that have not passed (``SetDeadline``)."""

    def __init__(self) -> None:
        #: (time, graph), the next one first.
        self._pending: list[tuple[float, int]] = []

    def set(self, deadline: SetDeadline, now_s: float) -> None:
        """Add a deadline that the core asked for."""
        heappush(self._pending, (now_s + deadline.after_ms / 1000, deadline.graph))

    def wait_ms(self, now_s: float) -> int | None:
        """How long the loop may sleep; None: forever."""
        if not self._pending:
            return None
        return max(0, math.ceil((self._pending[0][0] - now_s) * 1000))

    def take_passed(self, now_s: float) -> list[DeadlinePassed]:
        """Remove and return the deadlines that have passed."""
        passed = []
        while self._pending and self._pending[0][0] <= now_s:
            passed.append(DeadlinePassed(heappop(self._pending)[1]))
        return passed


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
