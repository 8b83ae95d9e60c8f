"""TaskDispatch: how tasks go to workers and what their replies cause. It does not end graphs.

    not ready -> ready -> dispatched -> done
                   ^___________|            lost with its process

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from mpgrad.base.handles import MESSAGE_PART_BYTES, Block, GradientRef, is_counted
from mpgrad.errors import InvariantViolated, ProtocolError, SharedMemoryExhausted
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_task import (
    GRAPH_TRANSITIONS,
    GraphEvent,
    GraphPhase,
    GraphTask,
    TaskState,
)
from mpgrad.scheduler.lease_table import BlockAllocator, LeaseTable
from mpgrad.scheduler.membership import Flight, FlightKey, MemberRecord, Membership
from mpgrad.scheduler.ready_queue import ReadyQueue, ReadyTask, lane_of, slot_of


class TaskDispatch:
    """The tables, and what changes them when tasks are dispatched and answered.

    Args:
        allocator: decides where blocks lie.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        #: Running and draining graphs by the coordinator's number.
        self.graphs: dict[int, GraphTask] = {}
        self.ready, self.leases, self.membership = ReadyQueue(), LeaseTable(allocator), Membership()
        #: Per slot (absent: none): the number of its workers that died in a row while no worker
        #: finished a task.
        self.deaths_without_progress: dict[int, int] = {}
        #: The reason why no worker can be started any more, from the shell or the restart budget.
        self.unavailable: str | None = None
        #: The instructions since the last event, in order; empty between two events.
        self.out: list[do.CoordinatorInstruction] = []
        #: See ``MESSAGE_PART_BYTES``.
        self.message_part_bytes = MESSAGE_PART_BYTES

    # ------------------------------------------------------------------ the life of a graph

    def happens(self, graph: GraphTask, event: GraphEvent, *given: Any) -> None:
        """Look the event up in ``GRAPH_TRANSITIONS``; ``given`` are the arguments of its action."""
        transition = GRAPH_TRANSITIONS.get((graph.phase, event))
        if transition is None:
            raise InvariantViolated(
                f"graph {graph.number} is {graph.phase}, which does not allow: {event}"
            )
        graph.phase = transition.phase
        getattr(self, transition.action)(graph, *given)

    def settle(self, graph: GraphTask) -> None:
        """Let the graph end if it can, after anything that may have been the last thing."""
        if self.unavailable is not None and self._is_stranded(graph):
            self.happens(graph, GraphEvent.HOPELESS, "lost", -1, self.unavailable.encode())
        if graph.phase is GraphPhase.RUNNING:
            if graph.first_error is None:
                if not graph.remaining and graph.is_complete:
                    self.happens(graph, GraphEvent.ALL_DONE)
                return
            if graph.is_settled:
                self.happens(graph, GraphEvent.ERROR_FINAL, "error", -1, b"")
        if graph.phase is GraphPhase.DRAINING and not self.holders_of(graph):
            self.happens(graph, GraphEvent.ALL_LANDED)

    def _is_stranded(self, graph: GraphTask) -> bool:
        """Whether the graph needs a device of which no worker is left."""
        left = [worker.device for worker in self.membership.workers()]
        return not left or any(device not in left for device in graph.devices)

    def holders_of(self, graph: GraphTask) -> list[MemberRecord]:
        """The members that have a task of the graph in flight."""
        return [
            member
            for member in self.membership.members.values()
            if any(key.graph == graph.number for key in member.flights)
        ]

    def ignore(self, graph: GraphTask, *given: Any) -> None:
        """The graph is ending: this makes no difference."""

    # ------------------------------------------------------------------ dispatch

    def enqueue(self, graph: GraphTask, tasks: Iterable[int]) -> None:
        """Put ready tasks into the queue, those of the client straight to its session."""
        for task in tasks:
            spec = graph.specs[task]
            if not graph.is_wanted(task):
                graph.skipped += 1
            elif spec.on_client:
                self._send(graph, task, self.membership.members[graph.owner], is_suspect=False)
            else:
                self.ready.push(
                    ReadyTask(
                        -graph.depth,
                        -spec.priority,
                        spec.position,
                        graph.number,
                        task,
                        min(spec.position, spec.needed_from),
                    ),
                    lane_of(spec.device, spec.near),
                )

    def dispatch_ready(self, near: str) -> None:
        """Dispatch ready tasks, most urgent first, as long as a worker has credit for them.

        ``near`` is the peer whose message made them ready.
        """
        lanes = self.ready.lanes()
        while (lane := self.ready.most_urgent(lanes)) is not None:
            if not self._dispatch_first(lane, near):
                lanes.remove(lane)

    def _dispatch_first(self, lane: int, near: str) -> bool:
        """Dispatch the first task of a lane; False if it has to wait."""
        first = self.ready.heaps[lane][0]
        graph = self.graphs[first.graph]
        is_suspect = graph.deaths.get(first.task, 0) > 0
        spec = graph.specs[first.task]
        slot = slot_of(lane)
        if slot >= 0:
            waiting = self.ready.length(lane)
            worker = self.membership.worker_for_branch(
                slot, waiting, for_suspect=is_suspect, priority=spec.priority
            )
        else:
            worker = self.membership.choose_worker(
                device=lane,
                for_suspect=is_suspect,
                for_short=spec.is_short,
                priority=spec.priority,
                near=near,
            )
        if worker is None:
            return False
        self.ready.pop(lane)
        return self._send(graph, first.task, worker, is_suspect=is_suspect)

    def _send(self, graph: GraphTask, task: int, member: MemberRecord, *, is_suspect: bool) -> bool:
        """ready -> dispatched; False if the task has to wait for memory."""
        spec = graph.specs[task]
        try:
            blocks = self._allot(graph, task)
        except SharedMemoryExhausted as full:
            return not self._must_wait_for_memory(graph, task, full)
        buffer = graph.buffers.get(task)
        inputs = buffer.inputs() if buffer is not None else ((),) * len(spec.places)
        published = graph.published.get(task)
        key = FlightKey(graph.number, task, graph.dispatch(task))
        flight = Flight(
            blocks, inputs, is_suspect, spec.is_short, spec.behind, spec.cost_us, spec.publications
        )
        member.begin(key, flight)
        self.out.append(
            do.DispatchNodeTask(
                member.peer,
                *key,
                graph.owner_number,
                graph.depth,
                spec.payload,
                inputs,
                blocks,
                spec.is_short,
                () if published is None else tuple(sorted(published)),
                spec.program,
            )
        )
        return True

    def _allot(self, graph: GraphTask, task: int) -> tuple[Block | None, ...]:
        """Allot the blocks of the task's large outputs: all or none. The client uses its own arena.

        Outputs that a lost attempt has published keep their blocks: others may be reading them.
        """
        spec = graph.specs[task]
        published = graph.published.get(task, ())
        if spec.on_client:
            return (None,) * len(spec.outputs)
        blocks: list[Block | None] = []
        try:
            for number, output in enumerate(spec.outputs):
                # Each block is appended at once: after an exception all of them are released.
                is_wanted = output.nbytes and number not in published
                blocks.append(self.leases.allot(output.nbytes) if is_wanted else None)
        except SharedMemoryExhausted:
            self.release(blocks)
            raise
        return tuple(blocks)

    def _must_wait_for_memory(
        self, graph: GraphTask, task: int, full: SharedMemoryExhausted
    ) -> bool:
        """Wait if a task in flight may release memory; else fail the graph."""
        if any(worker.flights for worker in self.membership.workers()):
            self.enqueue(graph, [task])
            return True
        figures = f"{full.requested} {full.used} {full.limit}"
        self.happens(graph, GraphEvent.HOPELESS, "memory", task, figures.encode())
        self.settle(graph)
        return False

    # ------------------------------------------------------------------ replies that give outputs

    def on_node_task_progress(self, event: ev.NodeTaskProgress) -> None:
        """Deliver outputs of a task that still runs to their consumers.

        Their blocks stay lent until the task ends, because it may read what it wrote.
        """
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        count = len(graph.specs[key.task].outputs)
        if not all(0 <= number < count for number, _ in event.outputs):
            raise ProtocolError(f"{event.peer} published an output that its task does not have")
        flight.check_reply(member, event.outputs, ())
        self._adopt(member, key, flight, [ref for _, ref in event.outputs])
        member.note_publication(key)
        self.happens(graph, GraphEvent.TASK_PUBLISHED, key.task, event.outputs)

    def on_node_task_done(self, event: ev.NodeTaskDone) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        wanted = len(graph.specs[key.task].outputs)
        if len(event.outputs) != wanted:
            raise ProtocolError(f"{event.peer} returned {len(event.outputs)} outputs, not {wanted}")
        flight.check_reply(member, enumerate(event.outputs), event.kept)
        flight = self._adopt(member, key, flight, event.outputs)
        published = self._end_flight(member, key, graph, event.kept)
        self.happens(graph, GraphEvent.TASK_DONE, key.task, event.outputs, published)
        self._release_flight(graph, key.task, flight)
        if member.is_worker:
            took = (event.duration_us, event.copied_bytes, event.times)
            graph.ran.append((key.task, member.slot, *took))
        self.settle(graph)

    def publish(
        self, graph: GraphTask, task: int, outputs: Iterable[tuple[int, GradientRef]]
    ) -> None:
        """Deliver those of the outputs that no attempt has published before."""
        published = graph.published.setdefault(task, set())
        fresh = {number: ref for number, ref in outputs if number not in published}
        published.update(fresh)
        self._deliver(graph, task, fresh.items())

    def deliver_the_rest(
        self,
        graph: GraphTask,
        task: int,
        outputs: tuple[GradientRef, ...],
        published: Collection[int],
    ) -> None:
        """Deliver what was not published, and unlock the tasks that waited for the end of it."""
        self._deliver(graph, task, [one for one in enumerate(outputs) if one[0] not in published])
        for successor in graph.specs[task].unlocks:
            if graph.unlock(successor):
                self.enqueue(graph, [successor])

    def _deliver(
        self, graph: GraphTask, task: int, outputs: Iterable[tuple[int, GradientRef]]
    ) -> None:
        """Deliver outputs of a task, by number, to their consumers and captures."""
        specs = graph.specs[task].outputs
        for number, ref in outputs:
            output = specs[number]
            self.leases.hold(ref)
            if graph.deliver(output.task, output.slot, output.place, ref):
                self.enqueue(graph, [output.task])
            if graph.inline_nbytes > self.message_part_bytes:
                told = graph.take_inline()
                self.out.append(do.DeliverCaptures(graph.owner, graph.owner_number, told))

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
            self.leases.adopt(block)
            member.newest_generation = max(member.newest_generation, block.generation)
        flight = member.flights[key] = flight._replace(blocks=flight.blocks + made)
        return flight

    # ------------------------------------------------------------------ errors, and lost tasks

    def on_node_task_failed(self, event: ev.NodeTaskFailed) -> None:
        member, key, flight = self._flight_of(event)
        if member is None or flight is None:
            return
        graph = self.graphs[key.graph]
        if not 0 <= event.step <= len(graph.specs[key.task].inner_positions):
            raise ProtocolError(f"{event.peer} blames Node {event.step} of a shorter task")
        flight.check_reply(member, (), event.kept)
        self._end_flight(member, key, graph, event.kept)
        self._release_flight(graph, key.task, flight)
        self.happens(graph, GraphEvent.TASK_FAILED, key.task, event.step, event.error)
        self.settle(graph)

    def on_client_failure(self, graph: GraphTask, task: int, step: int) -> None:
        """A task that the client runs without a dispatch has raised. The client has the error."""
        is_its_own = 0 <= task < len(graph.specs) and graph.states[task] is TaskState.DONE
        if not (is_its_own and 0 <= step <= len(graph.specs[task].inner_positions)):
            raise ProtocolError(f"{graph.owner} blames Node {step} of task {task}")
        self.happens(graph, GraphEvent.TASK_FAILED, task, step, b"")

    def skip_what_comes_later(self, graph: GraphTask, task: int, step: int, error: bytes) -> None:
        """Ready tasks that come after the first error will not run."""
        graph.note_error(task, step, error)
        if graph.first_error is not None:
            graph.skipped += self.ready.drop_graph(graph.number, graph.first_error[0])

    def on_node_task_dropped(self, event: ev.NodeTaskDropped) -> None:
        member, key, flight = self._flight_of(event)
        if member is not None and flight is not None:
            graph = self.graphs[key.graph]
            self.happens(graph, GraphEvent.TASK_DROPPED, member, key)
            self.settle(graph)

    def refuse(self, graph: GraphTask, member: MemberRecord, key: FlightKey) -> None:
        raise ProtocolError(f"{member.peer} dropped a task of a graph that nobody cancelled")

    def take_back(self, graph: GraphTask, member: MemberRecord, key: FlightKey) -> None:
        self.abandon(member, key)

    def abandon(self, member: MemberRecord, key: FlightKey) -> None:
        """End a flight without a valid reply: its task may run again elsewhere."""
        self.release(member.end(key).blocks)
        graph = self.graphs[key.graph]
        graph.requeue(key.task)
        self.happens(graph, GraphEvent.TASK_LOST, (key.task,))

    # ------------------------------------------------------------------ flights

    def _flight_of(self, event: Any) -> tuple[MemberRecord | None, FlightKey, Flight | None]:
        """The flight that a reply belongs to; None if it no longer counts (late or duplicate)."""
        key = FlightKey(event.graph, event.task, event.attempt)
        member = self.membership.get(event.peer)
        return member, key, None if member is None else member.flights.get(key)

    def _end_flight(
        self, member: MemberRecord, key: FlightKey, graph: GraphTask, kept: tuple[Block, ...]
    ) -> Collection[int]:
        """dispatched -> done; returns the outputs that were published earlier."""
        member.end(key)
        self.deaths_without_progress.clear()
        self._keep(member, kept)
        graph.finish(key.task)
        return graph.published.pop(key.task, ())

    def _keep(self, member: MemberRecord, kept: tuple[Block, ...]) -> None:
        """User code at ``member`` still references these blocks."""
        for block in kept:
            if is_counted(block):
                self.leases.hold(block)
                member.keep(block)

    def _release_flight(self, graph: GraphTask, task: int, flight: Flight) -> None:
        """The task is over: release the blocks lent to it and its inputs once each."""
        self.release(flight.blocks)
        buffer = graph.buffers.pop(task, None)
        if buffer is not None:
            self.release(buffer.blocks())

    def release(self, refs: Iterable[GradientRef]) -> None:
        """Remove one holder from each."""
        for ref in refs:
            self.leases.release(ref)
