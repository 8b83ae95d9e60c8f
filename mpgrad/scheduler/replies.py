"""Replies: what follows when a dispatched task is answered, given back, or lost.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from typing import Any

from mpgrad.errors import ProtocolError
from mpgrad.handles import ENGINE_ARENA, Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_endings import GraphEndings
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask
from mpgrad.scheduler.membership import Flight, FlightKey, MemberRecord
from mpgrad.scheduler.task_dispatch import Dispatcher


class Replies:
    """Each flight ends here, once: done, failed, dropped, or abandoned with its worker."""

    def __init__(
        self, tables: CoordinatorTables, endings: GraphEndings, dispatcher: Dispatcher
    ) -> None:
        self._tables = tables
        self._graphs, self._ready = tables.graphs, tables.ready
        self._leases, self._membership = tables.leases, tables.membership
        self._endings, self._dispatcher = endings, dispatcher

    def on_node_task_done(self, event: ev.NodeTaskDone) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self._graphs[key.graph]
        wanted = len(graph.specs[key.task].outputs)
        if len(event.outputs) != wanted:
            raise ProtocolError(f"{event.peer} returned {len(event.outputs)} outputs, not {wanted}")
        flight.check_reply(member, event.outputs, event.kept)
        del member.flights[key]
        self._tables.deaths_without_progress = 0
        self._keep(member, event.kept)
        graph.finish(key.task)
        if graph.phase is GraphPhase.RUNNING:
            self._publish(graph, key.task, event.outputs)
        self._release_flight(graph, key.task, flight)
        if member.is_worker:
            took = (event.duration_us, event.copied_bytes, event.times)
            graph.ran.append((key.task, member.slot, *took))
        self._endings.complete_if_done(graph)
        self._endings.close_if_drained(graph)

    def _publish(self, graph: GraphTask, task: int, outputs: tuple[GradientRef, ...]) -> None:
        """Deliver a task's outputs and let go what waited for it."""
        spec = graph.specs[task]
        for output, ref in zip(spec.outputs, outputs, strict=True):
            self._leases.hold(ref)
            if graph.deliver(output.task, output.slot, output.place, ref):
                self._dispatcher.enqueue(graph, [output.task])
        for successor in spec.unlocks:
            if graph.unlock(successor):
                self._dispatcher.enqueue(graph, [successor])

    def on_node_task_failed(self, event: ev.NodeTaskFailed) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self._graphs[key.graph]
        if not 0 <= event.step <= len(graph.specs[key.task].inner_positions):
            raise ProtocolError(f"{event.peer} blames Node {event.step} of a shorter task")
        flight.check_reply(member, (), event.kept)
        del member.flights[key]
        self._tables.deaths_without_progress = 0
        self._keep(member, event.kept)
        graph.finish(key.task)
        self._release_flight(graph, key.task, flight)
        graph.note_error(key.task, event.step, event.error)
        if graph.phase is GraphPhase.RUNNING and graph.first_error is not None:
            graph.skipped += self._ready.drop_graph(graph.number, graph.first_error[0])
        self._endings.close_if_drained(graph)

    def on_node_task_dropped(self, event: ev.NodeTaskDropped) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self._graphs[key.graph]
        if graph.phase is not GraphPhase.DRAINING:
            raise ProtocolError(f"{event.peer} dropped a task of a graph that nobody cancelled")
        self.abandon(member, key)
        self._endings.close_if_drained(graph)

    def abandon(self, member: MemberRecord, key: FlightKey) -> None:
        """A flight ends without a reply that counts: its task may be run again, elsewhere."""
        flight = member.flights.pop(key)
        for block in flight.blocks:
            self._leases.release(block)
        graph = self._graphs[key.graph]
        graph.requeue(key.task)
        if graph.phase is GraphPhase.RUNNING:
            self._dispatcher.enqueue(graph, [key.task])

    def _flight_of(self, event: Any) -> tuple[MemberRecord | None, FlightKey, Flight | None]:
        """Who answers for what; None for a reply that no longer counts (late or duplicate)."""
        key = FlightKey(event.graph, event.task, event.attempt)
        member = self._membership.get(event.peer)
        return member, key, None if member is None else member.flights.get(key)

    def _keep(self, member: MemberRecord, kept: tuple[Block, ...]) -> None:
        for block in kept:
            if block.arena == ENGINE_ARENA:
                self._leases.hold(block)
                member.kept[block] += 1

    def _release_flight(self, graph: GraphTask, task: int, flight: Flight) -> None:
        """The task is over: the blocks lent to it and its inputs lose one holder each."""
        for block in flight.blocks:
            self._leases.release(block)
        buffer = graph.buffers.pop(task, None)
        if buffer is not None:
            for block in buffer.blocks():
                self._leases.release(block)
