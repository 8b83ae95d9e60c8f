"""Replies: what follows when a dispatched task is answered, returned or lost.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpgrad.base.handles import Block, GradientRef, is_counted
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_endings import GraphEndings
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask, TaskState
from mpgrad.scheduler.membership import Flight, FlightKey, MemberRecord
from mpgrad.scheduler.task_dispatch import Dispatcher


class Replies:
    """What a flight publishes, and its one end: done, failed, dropped, or abandoned."""

    def __init__(
        self, tables: CoordinatorTables, endings: GraphEndings, dispatcher: Dispatcher
    ) -> None:
        self._tables = tables
        self._graphs, self._ready = tables.graphs, tables.ready
        self._leases, self._membership = tables.leases, tables.membership
        self._endings, self._dispatcher = endings, dispatcher

    def on_node_task_progress(self, event: ev.NodeTaskProgress) -> None:
        """Deliver outputs of a task that still runs to their consumers.

        Their blocks stay lent until the task ends, because it may read what it wrote.
        """
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self._graphs[key.graph]
        count = len(graph.specs[key.task].outputs)
        if not all(0 <= number < count for number, _ in event.outputs):
            raise ProtocolError(f"{event.peer} published an output that its task does not have")
        flight.check_reply(member, event.outputs, ())
        self._adopt(member, key, flight, [ref for _, ref in event.outputs])
        member.note_publication(key)
        if graph.phase is GraphPhase.RUNNING:
            published = graph.published.setdefault(key.task, set())
            fresh = {number: ref for number, ref in event.outputs if number not in published}
            published.update(fresh)
            self._deliver(graph, key.task, fresh.items())

    def on_node_task_done(self, event: ev.NodeTaskDone) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self._graphs[key.graph]
        wanted = len(graph.specs[key.task].outputs)
        if len(event.outputs) != wanted:
            raise ProtocolError(f"{event.peer} returned {len(event.outputs)} outputs, not {wanted}")
        flight.check_reply(member, enumerate(event.outputs), event.kept)
        flight = self._adopt(member, key, flight, event.outputs)
        member.end(key)
        self._tables.deaths_without_progress.clear()
        self._keep(member, event.kept)
        graph.finish(key.task)
        published = graph.published.pop(key.task, None)
        if graph.phase is GraphPhase.RUNNING:
            rest = list(enumerate(event.outputs))
            if published is not None:
                rest = [output for output in rest if output[0] not in published]
            self._deliver(graph, key.task, rest)
            self._unlock_successors(graph, key.task)
        self._release_flight(graph, key.task, flight)
        if member.is_worker:
            took = (event.duration_us, event.copied_bytes, event.times)
            graph.ran.append((key.task, member.slot, *took))
        self._endings.complete_if_done(graph)
        self._endings.close_if_drained(graph)

    def _adopt(
        self,
        member: MemberRecord,
        key: FlightKey,
        flight: Flight,
        outputs: Iterable[GradientRef],
    ) -> Flight:
        """Add the blocks that a GPU worker has made to its flight, which holds them until it ends.

        Raises:
            ProtocolError: the worker names a block that it made earlier.
        """
        if member.arena < 0:
            return flight
        owned = flight.owned()
        made = tuple(
            ref
            for ref in dict.fromkeys(outputs)
            if isinstance(ref, Block) and ref.arena == member.arena and ref not in owned
        )
        for block in made:
            # The generations of a worker's blocks rise, so an old one belongs to an earlier block.
            if block.generation <= member.newest_generation:
                raise ProtocolError(f"{member.peer} names a block that is not its own: {block}")
        for block in made:
            self._leases.adopt(block)
            member.newest_generation = max(member.newest_generation, block.generation)
        flight = member.flights[key] = flight._replace(blocks=flight.blocks + made)
        return flight

    def _deliver(
        self, graph: GraphTask, task: int, outputs: Iterable[tuple[int, GradientRef]]
    ) -> None:
        """Deliver outputs of a task, by number, to their consumers and captures."""
        specs = graph.specs[task].outputs
        for number, ref in outputs:
            output = specs[number]
            self._leases.hold(ref)
            if graph.deliver(output.task, output.slot, output.place, ref):
                self._dispatcher.enqueue(graph, [output.task])

    def _unlock_successors(self, graph: GraphTask, task: int) -> None:
        for successor in graph.specs[task].unlocks:
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
        member.end(key)
        self._tables.deaths_without_progress.clear()
        self._keep(member, event.kept)
        graph.finish(key.task)
        graph.published.pop(key.task, None)
        self._release_flight(graph, key.task, flight)
        self._note_error(graph, key.task, event.step, event.error)
        self._endings.close_if_drained(graph)

    def on_client_failure(self, graph: GraphTask, task: int, step: int) -> None:
        """A task that the client runs without a dispatch has raised. The client has the error."""
        is_its_own = 0 <= task < len(graph.specs) and graph.states[task] is TaskState.DONE
        if not (is_its_own and 0 <= step <= len(graph.specs[task].inner_positions)):
            raise ProtocolError(f"{graph.owner} blames Node {step} of task {task}")
        self._note_error(graph, task, step, b"")

    def _note_error(self, graph: GraphTask, task: int, step: int, error: bytes) -> None:
        """Ready tasks that come after the first error will not run."""
        graph.note_error(task, step, error)
        if graph.phase is GraphPhase.RUNNING and graph.first_error is not None:
            graph.skipped += self._ready.drop_graph(graph.number, graph.first_error[0])

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
        """End a flight without a valid reply: its task may run again elsewhere."""
        flight = member.end(key)
        for block in flight.blocks:
            self._leases.release(block)
        graph = self._graphs[key.graph]
        graph.requeue(key.task)
        if graph.phase is GraphPhase.RUNNING:
            self._dispatcher.enqueue(graph, [key.task])

    def _flight_of(self, event: Any) -> tuple[MemberRecord | None, FlightKey, Flight | None]:
        """The flight that a reply belongs to; None if it no longer counts (late or duplicate)."""
        key = FlightKey(event.graph, event.task, event.attempt)
        member = self._membership.get(event.peer)
        return member, key, None if member is None else member.flights.get(key)

    def _keep(self, member: MemberRecord, kept: tuple[Block, ...]) -> None:
        for block in kept:
            if is_counted(block):
                self._leases.hold(block)
                member.keep(block)

    def _release_flight(self, graph: GraphTask, task: int, flight: Flight) -> None:
        """The task is over: release the blocks lent to it and its inputs once each."""
        for block in flight.blocks:
            self._leases.release(block)
        buffer = graph.buffers.pop(task, None)
        if buffer is not None:
            for block in buffer.blocks():
                self._leases.release(block)
