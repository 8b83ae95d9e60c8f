"""WorkerState: what a worker does next. One task runs at a time; the others wait here.

Rules of this file: as in ``coordinator_state``. The shell empties its lanes between tasks, so that
a cancellation or an urgent task overtakes prefetched tasks.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do


class WorkerState:
    """The prefetched tasks: deeper graphs first, then in order of arrival."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.running: do.DispatchNodeTask | None = None
        #: (-depth, arrival number, task).
        self.waiting: list[tuple[int, int, do.DispatchNodeTask]] = []
        self._arrivals = 0
        self.is_stopping = False

    def handle_event(self, event: Any) -> list[do.WorkerInstruction]:
        """The reaction to ``event``: replies to send, a task to run, or the end of the process."""
        out: list[do.WorkerInstruction] = []
        if isinstance(event, do.DispatchNodeTask):
            heappush(self.waiting, (-event.depth, self._arrivals, event))
            self._arrivals += 1
        elif isinstance(event, do.CancelGraph):
            out.extend(self._give_back(event.graph))
        elif isinstance(event, do.ReleaseBlocks | do.ReleaseBranches):
            out.append(event)
        elif isinstance(event, do.ShutDown):
            self.is_stopping = True
        elif isinstance(event, ev.NodeTaskFinished):
            out.append(self._finish(event))
        else:
            raise InvariantViolated(f"a worker cannot handle {type(event).__name__}")
        out.extend(self._next())
        return out

    def _finish(self, event: ev.NodeTaskFinished) -> ev.NodeTaskDone | ev.NodeTaskFailed:
        running, reply = self.running, event.reply
        if running is None or (running.graph, running.task, running.attempt) != (
            reply.graph,
            reply.task,
            reply.attempt,
        ):
            raise InvariantViolated(f"{self.peer} finished a task that it did not run")
        self.running = None
        return reply

    def _give_back(self, graph: int) -> list[do.WorkerInstruction]:
        """Return the tasks of a cancelled graph that have not begun."""
        dropped = [entry for entry in self.waiting if entry[2].graph == graph]
        self.waiting = [entry for entry in self.waiting if entry[2].graph != graph]
        heapify(self.waiting)
        return [
            ev.NodeTaskDropped(self.peer, task.graph, task.task, task.attempt)
            for _, _, task in sorted(dropped, key=lambda entry: entry[:2])
        ]

    def _next(self) -> list[do.WorkerInstruction]:
        if self.running is not None:
            return []
        if self.is_stopping:
            return [do.StopProcess()]
        if not self.waiting:
            return []
        self.running = heappop(self.waiting)[2]
        return [do.ExecuteNodeTask(self.running)]
