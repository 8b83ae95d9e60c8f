"""Deaths: what follows when a worker or a session is gone, or a worker hangs and has to go.

What it held is released, its tasks go back to the queue or fail their graph, and a worker's slot
gets a new process as long as there is hope.

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

#: Workers that may die under one task by its own fault, and by SIGKILL (which usually comes from
#: outside and says little about the task), before its graph fails.
DEATHS_MAX = 2
KILLS_MAX = 10
#: Deaths in a row in one slot, while no worker finishes a task, before the engine gives up. Counted
#: per slot, because one incident may strike all workers at once, however many there are.
RESTARTS_WITHOUT_PROGRESS_MAX = 20


class Deaths:
    """Who is to blame, who is replaced, and when to give up."""

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
        """A GPU worker takes its memory with it: the graphs that have gradients there fail."""
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
        """Have it killed; until it is dead, its tasks stay with it, and a late reply counts."""
        member = self._membership.get(event.peer)
        if member is None or member.is_fenced:
            return
        if event.running is not None and FlightKey(*event.running) not in member.flights:
            return  # it has answered meanwhile
        member.hung = event
        self._fence(member)

    def on_deadline_passed(self, event: ev.DeadlinePassed) -> None:
        """A cancelled graph has had its time: end the workers that have not given back all of it.

        Also those where it waits behind another graph's task, which is begun anew elsewhere: nobody
        can take a task back from a worker that does not listen. No task is to blame for that.
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
        """The worker died while it ran this very task: a few times is the task's fault."""
        graph.deaths[task] = deaths = graph.deaths.get(task, 0) + 1
        kills = graph.kills.get(task, 0)
        if event.killed:
            graph.kills[task] = kills = kills + 1
        if kills >= KILLS_MAX or deaths - kills >= DEATHS_MAX:
            self._endings.drain(graph, kind, task, f"{event.cause} ({deaths} times)".encode())

    def _release_row(self, member: MemberRecord) -> None:
        for block, count in member.kept.items():
            for _ in range(count):
                self._leases.release(block)
        member.kept.clear()


def _fenced(event: ev.WorkerDied, hung: ev.WorkerHung) -> ev.WorkerDied:
    """The death of a worker that was killed because it hung.

    If a task took too long, that task and no other is to blame, as if it had crashed; if the
    process was stopped, the kill came from outside.
    """
    if hung.running is None:
        return event._replace(cause=hung.cause, killed=True)
    return event._replace(cause=hung.cause, killed=False, running=hung.running)
