"""GraphEndings: how a backward ends and releases what it holds.

    running -> completed                when every task is done
    running -> draining -> failed       when no task of it is in flight

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from mpgrad.base.handles import is_counted
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask


class GraphEndings:
    """Removes graphs from the tables, with everything that they hold."""

    def __init__(self, tables: CoordinatorTables) -> None:
        self._tables = tables
        self._ready, self._leases, self._out = tables.ready, tables.leases, tables.out
        self._membership = tables.membership

    def drain(self, graph: GraphTask, kind: str, task: int, error: bytes) -> None:
        """running -> draining: dispatch nothing more, recall the tasks that have not begun."""
        if graph.phase is GraphPhase.DRAINING:
            return
        graph.phase = GraphPhase.DRAINING
        graph.failure = (kind, task, error, 0)
        if graph.first_error is not None and kind != "cancelled":
            graph.failure = ("error", *graph.first_error[1:])
        self._ready.drop_graph(graph.number)
        for member in self._membership.members.values():
            if any(key.graph == graph.number for key in member.flights):
                self._out.append(do.CancelGraph(member.peer, graph.number))

    def end_if_stranded(self, graph: GraphTask) -> None:
        """If workers cannot be started any more: fail a graph that needs a device without any."""
        reason = self._tables.unavailable
        if reason is None:
            return
        left = [worker.device for worker in self._membership.workers()]
        if not left or any(device not in left for device in graph.devices):
            self.drain(graph, "lost", -1, reason.encode())
            self.close_if_drained(graph)

    def close_if_drained(self, graph: GraphTask) -> None:
        """draining -> failed, once nothing of the graph is in flight."""
        if graph.phase is GraphPhase.RUNNING and graph.is_settled:
            self.drain(graph, "error", -1, b"")
        if graph.phase is not GraphPhase.DRAINING or graph.number not in self._tables.graphs:
            return
        for member in self._membership.members.values():
            if any(key.graph == graph.number for key in member.flights):
                return
        for buffer in graph.buffers.values():
            for block in buffer.blocks():
                self._leases.release(block)
        for ref in [*graph.captures, *(early[3] for early in graph.early)]:
            self._leases.release(ref)
        self._tables.forget(graph)
        if graph.failure is not None and self._membership.get(graph.owner) is not None:
            self._out.append(do.FailGraph(graph.owner, graph.owner_number, *graph.failure))

    def complete_if_done(self, graph: GraphTask) -> None:
        """running -> completed; the session now holds the captured blocks."""
        if graph.remaining or graph.phase is not GraphPhase.RUNNING or not graph.is_complete:
            return
        self._tables.forget(graph)
        owner = self._membership.members[graph.owner]
        for ref in graph.captures:
            if is_counted(ref):
                owner.keep(ref)
        self._out.append(
            do.CompleteGraph(
                graph.owner,
                graph.owner_number,
                tuple(graph.captures),
                tuple([self._leases.is_exclusive(ref) for ref in graph.captures]),
                tuple(graph.ran),
            )
        )
