"""Deaths: what follows when a worker or session dies, or when a worker hangs and must be killed.

Its blocks are released, its tasks go back to the queue or fail their graph, and a worker slot gets
a new process while the restart budget lasts.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_endings import GraphEndings
from mpgrad.scheduler.graph_task import GraphTask
from mpgrad.scheduler.membership import FlightKey, MemberRecord
from mpgrad.scheduler.replies import Replies

#: The number of workers that may die while they run one task before its graph fails: by the task's
#: own fault, and by SIGKILL (which usually comes from outside and says little about the task).
DEATHS_MAX = 2
KILLS_MAX = 10
#: The number of deaths in a row in one slot, while no worker finishes a task, before the engine
#: gives up. It is counted per slot, because one incident may kill any number of workers at once.
RESTARTS_WITHOUT_PROGRESS_MAX = 20


class Deaths:
    """Decides which task is to blame, which worker is replaced, and when the engine gives up."""

    def __init__(self, tables: CoordinatorTables, endings: GraphEndings, replies: Replies) -> None:
        self._tables = tables
        self._graphs, self._leases, self._out = tables.graphs, tables.leases, tables.out
        self._membership = tables.membership
        self._endings, self._replies = endings, replies

    def on_session_closed(self, event: ev.SessionClosed) -> None:
        member = self._membership.leave(event.peer)
        if member is None:
            return
        self._release_row(member)
        for graph in [g for g in self._graphs.values() if g.owner == event.peer]:
            self._endings.drain(graph, "cancelled", -1, b"the client has gone")
            for key in [key for key in member.flights if key.graph == graph.number]:
                self._replies.abandon(member, key)
            self._endings.close_if_drained(graph)

    def on_worker_lost(self, event: ev.WorkerDied) -> None:
        member = self._membership.leave(event.peer)
        if member is None:
            return
        self._release_row(member)
        kind = "lost"
        if member.hung is not None:
            event = _fenced(event, member.hung)
            kind = "lost" if member.hung.running is None else "hung"
        touched = {}
        is_wanted = member.is_fenced and member.hung is None
        for key in list(member.flights):
            self._replies.abandon(member, key)
            graph = self._graphs[key.graph]
            touched[graph.number] = graph
            if key == event.running and not is_wanted:
                self._blame(graph, key.task, event, kind)
        if member.arena >= 0:
            touched.update(self._lose_arena(member.arena, event))
        for graph in touched.values():
            self._endings.close_if_drained(graph)
        deaths = self._tables.deaths_without_progress
        deaths[member.slot] = deaths.get(member.slot, 0) + (not is_wanted)
        self._replace_worker(member.slot, event.cause)

    def _lose_arena(self, arena: int, event: ev.WorkerDied) -> dict[int, GraphTask]:
        """Fail the graphs that have gradients in the memory of a dead GPU worker."""
        lost = {}
        for graph in self._graphs.values():
            refs: list[GradientRef] = [*graph.captures, *(early[3] for early in graph.early)]
            for buffer in graph.buffers.values():
                refs.extend(buffer.blocks())
            if any(isinstance(ref, Block) and ref.arena == arena for ref in refs):
                text = f"{event.cause}; gradients that lay on its GPU are gone"
                self._endings.drain(graph, "lost", -1, text.encode())
                lost[graph.number] = graph
        return lost

    def on_worker_hung(self, event: ev.WorkerHung) -> None:
        """Kill the worker. Until it is dead it keeps its tasks, and a late reply counts."""
        member = self._membership.get(event.peer)
        if member is None or member.is_fenced:
            return
        if event.running is not None and FlightKey(*event.running) not in member.flights:
            return  # it has answered in the meantime
        member.hung = event
        self._fence(member)

    def on_deadline_passed(self, event: ev.DeadlinePassed) -> None:
        """The deadline of a cancelled graph has passed: kill the workers that still hold its tasks.

        This includes workers where such a task waits behind a task of another graph, which starts
        again elsewhere: a worker that does not listen cannot give a task back. No task is to blame.
        """
        for worker in self._membership.workers():
            if not worker.is_fenced and any(key.graph == event.graph for key in worker.flights):
                self._fence(worker)

    def _fence(self, worker: MemberRecord) -> None:
        worker.is_fenced = True
        self._out.append(do.FenceWorker(worker.peer))

    def on_worker_unavailable(self, event: ev.WorkerUnavailable) -> None:
        self._give_up(event.reason)

    def _replace_worker(self, slot: int, cause: str) -> None:
        deaths = self._tables.deaths_without_progress.get(slot, 0)
        if deaths > RESTARTS_WITHOUT_PROGRESS_MAX:
            self._give_up(
                f"{deaths} processes of worker slot {slot} died in a row, and no worker finished a "
                f"task meanwhile; the last one: {cause}"
            )
        elif self._tables.unavailable is not None:
            self._give_up(self._tables.unavailable)
        else:
            self._out.append(do.StartWorker(slot))

    def _give_up(self, reason: str) -> None:
        self._tables.unavailable = reason
        for graph in list(self._graphs.values()):
            self._endings.end_if_stranded(graph)

    def _blame(self, graph: GraphTask, task: int, event: ev.WorkerDied, kind: str) -> None:
        """Count a death for the task that the worker was running; its graph fails at the limit."""
        graph.deaths[task] = deaths = graph.deaths.get(task, 0) + 1
        kills = graph.kills.get(task, 0)
        if event.killed:
            graph.kills[task] = kills = kills + 1
        if kills >= KILLS_MAX or deaths - kills >= DEATHS_MAX:
            text = f"{event.cause} ({deaths} times)\n{event.stack}".rstrip("\n")
            self._endings.drain(graph, kind, task, text.encode())

    def _release_row(self, member: MemberRecord) -> None:
        for block, count in member.kept.items():
            for _ in range(count):
                self._leases.release(block)
        member.kept.clear()


def _fenced(event: ev.WorkerDied, hung: ev.WorkerHung) -> ev.WorkerDied:
    """The death of a worker that was killed because it hung.

    If a task took too long, that task alone is to blame, as if it had crashed. If the process was
    stopped, the kill counts as one from outside.
    """
    if hung.running is None:
        return event._replace(cause=hung.cause, killed=True)
    return event._replace(cause=hung.cause, killed=False, running=hung.running)
