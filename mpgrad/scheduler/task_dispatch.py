"""Dispatcher: which worker gets which ready task, with which blocks for its outputs.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from mpgrad.base.handles import Block
from mpgrad.errors import SharedMemoryExhausted
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.graph_endings import GraphEndings
from mpgrad.scheduler.graph_task import GraphTask
from mpgrad.scheduler.membership import Flight, FlightKey, MemberRecord
from mpgrad.scheduler.ready_queue import ReadyTask


class Dispatcher:
    """Moves tasks from ready to dispatched."""

    def __init__(self, tables: CoordinatorTables, endings: GraphEndings) -> None:
        self._graphs, self._ready, self._out = tables.graphs, tables.ready, tables.out
        self._leases, self._membership = tables.leases, tables.membership
        self._endings = endings

    def enqueue(self, graph: GraphTask, tasks: list[int]) -> None:
        """Put ready tasks into the queue, those of the client straight to its session."""
        for task in tasks:
            spec = graph.specs[task]
            if not graph.is_wanted(task):
                graph.skipped += 1
            elif spec.on_client:
                self.send(graph, task, self._membership.members[graph.owner], is_suspect=False)
            else:
                self._ready.push(
                    ReadyTask(
                        -graph.depth,
                        -spec.priority,
                        spec.position,
                        graph.number,
                        task,
                        min(spec.position, spec.needed_from),
                    ),
                    spec.device,
                )

    def dispatch_ready(self, near: str) -> None:
        """Dispatch ready tasks, most urgent first, as long as a worker has credit for them.

        ``near`` is the peer whose message made them ready.
        """
        for device in self._ready.devices():
            if self._ready.peek(device) is not None:
                self._dispatch_on(device, near)

    def _dispatch_on(self, device: int, near: str) -> None:
        while (first := self._ready.peek(device)) is not None:
            graph = self._graphs[first.graph]
            is_suspect = graph.deaths.get(first.task, 0) > 0
            spec = graph.specs[first.task]
            worker = self._membership.choose_worker(
                device=device,
                for_suspect=is_suspect,
                for_short=spec.is_short,
                priority=spec.priority,
                near=near,
            )
            if worker is None:
                return
            self._ready.pop(device)
            if not self.send(graph, first.task, worker, is_suspect=is_suspect):
                return

    def send(self, graph: GraphTask, task: int, member: MemberRecord, *, is_suspect: bool) -> bool:
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
        self._out.append(
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
                blocks.append(self._leases.allot(output.nbytes) if is_wanted else None)
        except SharedMemoryExhausted:
            for block in blocks:
                self._leases.release(block)
            raise
        return tuple(blocks)

    def _must_wait_for_memory(
        self, graph: GraphTask, task: int, full: SharedMemoryExhausted
    ) -> bool:
        """Wait if a task in flight may release memory; else fail the graph."""
        if any(worker.flights for worker in self._membership.workers()):
            self.enqueue(graph, [task])
            return True
        figures = f"{full.requested} {full.used} {full.limit}"
        self._endings.drain(graph, "memory", task, figures.encode())
        self._endings.close_if_drained(graph)
        return False
