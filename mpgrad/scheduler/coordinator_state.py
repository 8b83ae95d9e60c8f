"""CoordinatorState: the coordinator's whole mind. Events in, instructions out.

Rules of this file:
1. Everything that decides what a backward does next happens here or in the tables it owns.
2. It never asks what time it is, never waits, and iterates over nothing unordered: the same events
   give the same instructions, in another process and under another hash seed too.
3. A message of an unknown peer is the voice of a dead incarnation: it is dropped whole.
4. A block is released by whoever held it, once; ``invariants`` recounts every holder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from mpgrad.errors import ProtocolError, SharedMemoryExhausted
from mpgrad.handles import ENGINE_ARENA, Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask
from mpgrad.scheduler.lease_table import BlockAllocator, LeaseTable
from mpgrad.scheduler.membership import Flight, FlightKey, MemberRecord, Membership
from mpgrad.scheduler.ready_queue import ReadyQueue, ReadyTask

#: Workers that may die under one task by its own fault, and by SIGKILL (which usually comes from
#: outside and says little about the task), before its graph fails.
DEATHS_MAX = 2
KILLS_MAX = 10
#: Deaths of workers in a row without a finished task between them, before the engine gives up.
RESTARTS_WITHOUT_PROGRESS_MAX = 20

Instruction = do.CoordinatorInstruction


class CoordinatorState:
    """GraphTasks, the ReadyQueue, leases and members, behind one entry: :meth:`handle_event`."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self.graphs: dict[int, GraphTask] = {}
        self.ready = ReadyQueue()
        self.leases = LeaseTable(allocator)
        self.membership = Membership()
        #: (session, its name for the graph) -> our number.
        self._numbers: dict[tuple[str, int], int] = {}
        self._next_number = 0
        self._deaths_without_progress = 0
        #: Why no worker can be had any more, once the shell or the restart budget says so.
        self._unavailable: str | None = None
        self._out: list[Instruction] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.SessionOpened: self._on_session_opened,
            ev.SessionClosed: self._on_session_closed,
            ev.GraphSubmitted: self._on_graph_submitted,
            ev.GraphExtended: self._on_graph_extended,
            ev.GraphCancelled: self._on_graph_cancelled,
            ev.BlocksReleased: self._on_blocks_released,
            ev.WorkerJoined: self._on_worker_joined,
            ev.WorkerLost: self._on_worker_lost,
            ev.WorkerUnavailable: self._on_worker_unavailable,
            ev.NodeTaskDone: self._on_node_task_done,
            ev.NodeTaskFailed: self._on_node_task_failed,
            ev.NodeTaskDropped: self._on_node_task_dropped,
            ev.OutputEmitted: self._on_output_emitted,
        }

    def handle_event(self, event: Any) -> list[Instruction]:
        """Change the tables as ``event`` demands; what the shell has to do now, in order.

        Raises:
            ProtocolError: the event contradicts the tables. The shell fences the peer that sent it,
                and what that peer held is taken back as if it had died.
        """
        self._handlers[type(event)](event)
        self._dispatch_ready()
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------------ members

    def _on_session_opened(self, event: ev.SessionOpened) -> None:
        self.membership.join(event.peer, is_worker=False)

    def _on_session_closed(self, event: ev.SessionClosed) -> None:
        member = self.membership.leave(event.peer)
        if member is None:
            return
        self._release_row(member)
        for graph in [g for g in self.graphs.values() if g.owner == event.peer]:
            self._drain(graph, "cancelled", -1, b"the client has gone")
            for key in [key for key in member.flights if key.graph == graph.number]:
                self._abandon(member, key)
            self._close_if_drained(graph)

    def _on_worker_joined(self, event: ev.WorkerJoined) -> None:
        self.membership.join(event.peer, is_worker=True)

    def _on_worker_lost(self, event: ev.WorkerLost) -> None:
        member = self.membership.leave(event.peer)
        if member is None:
            return
        self._release_row(member)
        touched = {}
        for key in list(member.flights):
            self._abandon(member, key)
            graph = self.graphs[key.graph]
            touched[graph.number] = graph
            if key == event.running:
                self._blame(graph, key.task, event)
        for graph in touched.values():
            self._close_if_drained(graph)
        self._replace_worker(member.slot, event.cause)

    def _replace_worker(self, slot: int, cause: str) -> None:
        self._deaths_without_progress += 1
        if self._deaths_without_progress > RESTARTS_WITHOUT_PROGRESS_MAX:
            self._give_up(
                f"{self._deaths_without_progress} workers died in a row without finishing a task; "
                f"the last one {cause}"
            )
        elif self._unavailable is not None:
            self._give_up(self._unavailable)
        else:
            self._out.append(do.StartWorker(slot))

    def _on_worker_unavailable(self, event: ev.WorkerUnavailable) -> None:
        self._give_up(event.reason)

    def _give_up(self, reason: str) -> None:
        self._unavailable = reason
        if not self.membership.workers():
            for graph in list(self.graphs.values()):
                self._drain(graph, "lost", -1, reason.encode())
                self._close_if_drained(graph)

    def _blame(self, graph: GraphTask, task: int, event: ev.WorkerLost) -> None:
        """The worker died while it ran this very task: a few times is the task's fault."""
        graph.deaths[task] = deaths = graph.deaths.get(task, 0) + 1
        kills = graph.kills.get(task, 0)
        if event.killed:
            graph.kills[task] = kills = kills + 1
        if kills >= KILLS_MAX or deaths - kills >= DEATHS_MAX:
            self._drain(graph, "lost", task, f"{event.cause} ({deaths} times)".encode())

    def _release_row(self, member: MemberRecord) -> None:
        for block, count in member.kept.items():
            for _ in range(count):
                self.leases.release(block)
        member.kept.clear()

    # ------------------------------------------------------------------ graphs

    def _on_graph_submitted(self, event: ev.GraphSubmitted) -> None:
        if self.membership.get(event.peer) is None:
            return
        if (event.peer, event.graph) in self._numbers:
            raise ProtocolError(f"{event.peer} submitted graph {event.graph} twice")
        number = self._next_number
        self._next_number += 1
        graph = GraphTask(number, event.peer, event.graph, event.depth, event.capture_count)
        self.graphs[number] = graph
        self._numbers[event.peer, event.graph] = number
        self._enqueue(graph, graph.extend(event.tasks, event.is_whole, event.done))
        for task, slot, place, ref in event.seeds:
            if graph.deliver(task, slot, place, ref):
                self._enqueue(graph, [task])
        if self._unavailable is not None and not self.membership.workers():
            self._drain(graph, "lost", -1, self._unavailable.encode())
            self._close_if_drained(graph)
        self._complete_if_done(graph)

    def _on_graph_extended(self, event: ev.GraphExtended) -> None:
        graph = self._graph_of(event.peer, event.graph)
        if graph is not None and graph.phase is GraphPhase.RUNNING:
            self._enqueue(graph, graph.extend(event.tasks, event.is_whole))
            self._complete_if_done(graph)
            self._close_if_drained(graph)

    def _on_graph_cancelled(self, event: ev.GraphCancelled) -> None:
        graph = self._graph_of(event.peer, event.graph)
        if graph is not None:
            self._drain(graph, "cancelled", -1, b"cancelled by the caller")
            self._close_if_drained(graph)

    def _graph_of(self, peer: str, name: int) -> GraphTask | None:
        number = self._numbers.get((peer, name))
        return None if number is None else self.graphs[number]

    def _drain(self, graph: GraphTask, kind: str, task: int, error: bytes) -> None:
        """running -> draining: dispatch nothing more, call back what has not begun."""
        if graph.phase is GraphPhase.DRAINING:
            return
        graph.phase = GraphPhase.DRAINING
        graph.failure = (kind, task, error, 0)
        if graph.first_error is not None and kind != "cancelled":
            graph.failure = ("error", *graph.first_error[1:])
        self.ready.drop_graph(graph.number)
        for member in self.membership.members.values():
            if any(key.graph == graph.number for key in member.flights):
                self._out.append(do.CancelGraph(member.peer, graph.number))

    def _close_if_drained(self, graph: GraphTask) -> None:
        """draining -> failed, once nothing of the graph is in flight."""
        if graph.phase is GraphPhase.RUNNING and graph.is_settled:
            self._drain(graph, "error", -1, b"")
        if graph.phase is not GraphPhase.DRAINING or graph.number not in self.graphs:
            return
        for member in self.membership.members.values():
            if any(key.graph == graph.number for key in member.flights):
                return
        for buffer in graph.buffers.values():
            for block in buffer.blocks():
                self.leases.release(block)
        for ref in [*graph.captures, *(early[3] for early in graph.early)]:
            self.leases.release(ref)
        self._forget(graph)
        if graph.failure is not None and self.membership.get(graph.owner) is not None:
            self._out.append(do.FailGraph(graph.owner, graph.name, *graph.failure))

    def _complete_if_done(self, graph: GraphTask) -> None:
        """running -> completed; the captured blocks now belong to the session."""
        if graph.phase is not GraphPhase.RUNNING or not graph.is_complete:
            return
        self._forget(graph)
        owner = self.membership.members[graph.owner]
        for ref in graph.captures:
            if isinstance(ref, Block) and ref.arena == ENGINE_ARENA:
                owner.kept[ref] += 1
        self._out.append(
            do.CompleteGraph(
                graph.owner,
                graph.name,
                tuple(graph.captures),
                tuple(self.leases.is_exclusive(ref) for ref in graph.captures),
                tuple(graph.ran),
            )
        )

    def _forget(self, graph: GraphTask) -> None:
        del self.graphs[graph.number]
        del self._numbers[graph.owner, graph.name]

    # ------------------------------------------------------------------ dispatch

    def _enqueue(self, graph: GraphTask, tasks: list[int]) -> None:
        """Ready tasks go to the queue, those of the client straight to its session."""
        for task in tasks:
            spec = graph.specs[task]
            if not graph.is_wanted(task):
                graph.skipped += 1
            elif spec.on_client:
                self._send(graph, task, self.membership.members[graph.owner], is_suspect=False)
            else:
                self.ready.push(
                    ReadyTask(-graph.depth, -spec.priority, spec.position, graph.number, task)
                )

    def _dispatch_ready(self) -> None:
        """Hand out ready tasks, most urgent first, as long as a worker has credit."""
        while (first := self.ready.peek()) is not None:
            graph = self.graphs[first.graph]
            is_suspect = graph.deaths.get(first.task, 0) > 0
            is_short = graph.specs[first.task].is_short
            worker = self.membership.choose_worker(for_suspect=is_suspect, for_short=is_short)
            if worker is None:
                return
            self.ready.pop()
            if not self._send(graph, first.task, worker, is_suspect=is_suspect):
                return

    def _send(self, graph: GraphTask, task: int, member: MemberRecord, *, is_suspect: bool) -> bool:
        """ready -> dispatched; False if memory is short, so that the task has to wait."""
        spec = graph.specs[task]
        try:
            blocks = self._allot(graph, task)
        except SharedMemoryExhausted as full:
            return not self._must_wait_for_memory(graph, task, full)
        buffer = graph.buffers.get(task)
        inputs = buffer.inputs() if buffer is not None else ((),) * len(spec.places)
        key = FlightKey(graph.number, task, graph.dispatch(task))
        member.flights[key] = Flight(blocks, inputs, is_suspect, spec.is_short)
        self._out.append(
            do.DispatchNodeTask(
                member.peer,
                *key,
                graph.name,
                graph.depth,
                spec.payload,
                inputs,
                blocks,
                spec.is_short,
            )
        )
        return True

    def _allot(self, graph: GraphTask, task: int) -> tuple[Block | None, ...]:
        """Blocks for the task's large outputs; all or none. The client uses its own arena."""
        spec = graph.specs[task]
        if spec.on_client:
            return (None,) * len(spec.outputs)
        blocks: list[Block | None] = []
        try:
            for output in spec.outputs:
                # One by one: what was allotted before an exception has to be given back.
                blocks.append(  # noqa: PERF401
                    self.leases.allot(output.nbytes) if output.nbytes else None
                )
        except SharedMemoryExhausted:
            for block in blocks:
                self.leases.release(block)
            raise
        return tuple(blocks)

    def _must_wait_for_memory(
        self, graph: GraphTask, task: int, full: SharedMemoryExhausted
    ) -> bool:
        """Wait while something in flight may give memory back; else the graph fails."""
        if any(worker.flights for worker in self.membership.workers()):
            self._enqueue(graph, [task])
            return True
        figures = f"{full.requested} {full.used} {full.limit}"
        self._drain(graph, "memory", task, figures.encode())
        self._close_if_drained(graph)
        return False

    # ------------------------------------------------------------------ replies

    def _on_node_task_done(self, event: ev.NodeTaskDone) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        wanted = len(graph.specs[key.task].outputs)
        if len(event.outputs) != wanted:
            raise ProtocolError(f"{event.peer} returned {len(event.outputs)} outputs, not {wanted}")
        flight.check_reply(member, event.outputs, event.kept)
        del member.flights[key]
        self._deaths_without_progress = 0
        self._keep(member, event.kept)
        graph.finish(key.task)
        if graph.phase is GraphPhase.RUNNING:
            self._publish(graph, key.task, event.outputs)
        self._release_flight(graph, key.task, flight)
        if member.is_worker:
            took = (event.duration_us, event.copied_bytes, event.times)
            graph.ran.append((key.task, member.slot, *took))
        self._complete_if_done(graph)
        self._close_if_drained(graph)

    def _publish(self, graph: GraphTask, task: int, outputs: tuple[GradientRef, ...]) -> None:
        """Deliver a task's outputs and let go what waited for it."""
        spec = graph.specs[task]
        for output, ref in zip(spec.outputs, outputs, strict=True):
            self.leases.hold(ref)
            if graph.deliver(output.task, output.slot, output.place, ref):
                self._enqueue(graph, [output.task])
        for successor in spec.unlocks:
            if graph.unlock(successor):
                self._enqueue(graph, [successor])

    def _on_node_task_failed(self, event: ev.NodeTaskFailed) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        if not 0 <= event.step <= len(graph.specs[key.task].inner_positions):
            raise ProtocolError(f"{event.peer} blames Node {event.step} of a shorter task")
        flight.check_reply(member, (), event.kept)
        del member.flights[key]
        self._deaths_without_progress = 0
        self._keep(member, event.kept)
        graph.finish(key.task)
        self._release_flight(graph, key.task, flight)
        graph.note_error(key.task, event.step, event.error)
        if graph.phase is GraphPhase.RUNNING and graph.first_error is not None:
            graph.skipped += self.ready.drop_graph(graph.number, graph.first_error[0])
        self._close_if_drained(graph)

    def _on_node_task_dropped(self, event: ev.NodeTaskDropped) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        if graph.phase is not GraphPhase.DRAINING:
            raise ProtocolError(f"{event.peer} dropped a task of a graph that nobody cancelled")
        self._abandon(member, key)
        self._close_if_drained(graph)

    def _flight_of(self, event: Any) -> tuple[MemberRecord | None, FlightKey, Flight | None]:
        """Who answers for what; None for a reply that no longer counts (late or duplicate)."""
        key = FlightKey(event.graph, event.task, event.attempt)
        member = self.membership.get(event.peer)
        return member, key, None if member is None else member.flights.get(key)

    def _keep(self, member: MemberRecord, kept: tuple[Block, ...]) -> None:
        for block in kept:
            if block.arena == ENGINE_ARENA:
                self.leases.hold(block)
                member.kept[block] += 1

    def _release_flight(self, graph: GraphTask, task: int, flight: Flight) -> None:
        """The task is over: the blocks lent to it and its inputs lose one holder each."""
        for block in flight.blocks:
            self.leases.release(block)
        buffer = graph.buffers.pop(task, None)
        if buffer is not None:
            for block in buffer.blocks():
                self.leases.release(block)

    def _abandon(self, member: MemberRecord, key: FlightKey) -> None:
        """A flight ends without a reply that counts: its task may be run again, elsewhere."""
        flight = member.flights.pop(key)
        for block in flight.blocks:
            self.leases.release(block)
        graph = self.graphs[key.graph]
        graph.requeue(key.task)
        if graph.phase is GraphPhase.RUNNING:
            self._enqueue(graph, [key.task])

    def _on_blocks_released(self, event: ev.BlocksReleased) -> None:
        member = self.membership.get(event.peer)
        if member is None:
            return
        for block, count in Counter(event.blocks).items():
            if count > member.kept[block]:
                raise ProtocolError(f"{event.peer} released a block that it does not hold: {block}")
        for block in event.blocks:
            member.kept[block] -= 1
            if member.kept[block] == 0:
                del member.kept[block]
            self.leases.release(block)

    def _on_output_emitted(self, event: ev.OutputEmitted) -> None:
        graph = self.graphs.get(event.graph)
        if graph is not None and self.membership.get(graph.owner) is not None:
            self._out.append(do.ForwardOutput(graph.owner, graph.name, event.kind, event.data))
