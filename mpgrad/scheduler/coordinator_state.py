"""CoordinatorState: all decisions of the coordinator. Events in, instructions out.

    coordinator_state   the entry, and the requests of clients
    replies             replies to tasks: done, progress, failed, dropped
    deaths              dead workers and sessions
    task_dispatch       dispatch of ready tasks to workers
    graph_endings       graphs that complete or fail
    coordinator_tables  the state that all of these read and change

Each file uses only the files below it.

Rules of these files:
1. Everything that decides what a backward does next happens here or in the tables.
2. They never read a clock, never wait, and iterate over nothing unordered: the same events give
   the same instructions, in every process and under every hash seed.
3. A message of an unknown peer comes from an incarnation that was replaced: ignore it.
4. Each holder of a block releases it once; ``simulation.invariants`` recounts every holder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.base.handles import Block, is_counted
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.deaths import Deaths
from mpgrad.scheduler.graph_endings import GraphEndings
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask
from mpgrad.scheduler.lease_table import BlockAllocator
from mpgrad.scheduler.replies import Replies
from mpgrad.scheduler.task_dispatch import Dispatcher

Instruction = do.CoordinatorInstruction

#: Limits: the results of one backward, and the milliseconds that a cancelled one may take to end.
CAPTURES_MAX, GRACE_MS_MAX = 10_000_000, 3_600_000


class CoordinatorState:
    """GraphTasks, the ReadyQueue, leases and members, behind one entry: :meth:`handle_event`.

    Args:
        allocator: decides where blocks lie.
        tables: the initial tables, such as those of a journal, instead of empty ones.
    """

    def __init__(self, allocator: BlockAllocator, tables: CoordinatorTables | None = None) -> None:
        self.tables = tables = CoordinatorTables() if tables is None else tables
        tables.leases.use(allocator)
        self.graphs, self.ready, self._out = tables.graphs, tables.ready, tables.out
        self.leases, self.membership = tables.leases, tables.membership
        self._endings = GraphEndings(tables)
        self._dispatcher = Dispatcher(tables, self._endings)
        self._replies = replies = Replies(tables, self._endings, self._dispatcher)
        deaths = Deaths(tables, self._endings, replies)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.SessionOpened: self._on_session_opened,
            ev.SessionClosed: deaths.on_session_closed,
            ev.GraphSubmitted: self._on_graph_submitted,
            ev.GraphExtended: self._on_graph_extended,
            ev.GraphCancelled: self._on_graph_cancelled,
            ev.BlocksReleased: self._on_blocks_released,
            ev.WorkerJoined: self._on_worker_joined,
            ev.WorkerDied: deaths.on_worker_lost,
            ev.WorkerHung: deaths.on_worker_hung,
            ev.DeadlinePassed: deaths.on_deadline_passed,
            ev.WorkerUnavailable: deaths.on_worker_unavailable,
            ev.NodeTaskProgress: replies.on_node_task_progress,
            ev.NodeTaskDone: replies.on_node_task_done,
            ev.NodeTaskFailed: replies.on_node_task_failed,
            ev.NodeTaskDropped: replies.on_node_task_dropped,
            ev.OutputEmitted: self._on_output_emitted,
        }

    def handle_event(self, event: Any) -> list[Instruction]:
        """Apply ``event`` to the tables and return what the shell has to do now, in order.

        Raises:
            ProtocolError: the event contradicts the tables. The shell fences the peer that sent it
                and recovers what that peer held, as if it had died.
        """
        self._handlers[type(event)](event)
        self._dispatcher.dispatch_ready(getattr(event, "peer", ""))
        if self.leases.freed:
            self._tell_makers()
        out = self._out.copy()
        self._out.clear()
        return out

    def _tell_makers(self) -> None:
        """Return blocks without a holder to the GPU workers that made them."""
        by_arena: dict[int, list[Block]] = {}
        for block in self.leases.freed:
            by_arena.setdefault(block.arena, []).append(block)
        self.leases.freed.clear()
        for arena, blocks in by_arena.items():
            maker = self.membership.owner_of(arena)
            if maker is not None:
                self._out.append(do.ReleaseBlocks(maker.peer, tuple(blocks)))

    def _on_session_opened(self, event: ev.SessionOpened) -> None:
        self.membership.join(event.peer, is_worker=False)

    def _on_worker_joined(self, event: ev.WorkerJoined) -> None:
        self.membership.join(event.peer, is_worker=True, device=event.device, arena=event.arena)

    def _on_graph_submitted(self, event: ev.GraphSubmitted) -> None:
        if self.membership.get(event.peer) is None:
            return
        if self.tables.graph_of(event.peer, event.graph) is not None:
            raise ProtocolError(f"{event.peer} submitted graph {event.graph} twice")
        if not 0 <= event.capture_count <= CAPTURES_MAX:
            raise ProtocolError(f"{event.peer} wants {event.capture_count} results")
        graph = self.tables.add_graph(event.peer, event.graph, event.depth, event.capture_count)
        self._dispatcher.enqueue(graph, graph.extend(event.tasks, event.is_whole, event.done))
        self._seed(graph, event)
        self._endings.end_if_stranded(graph)
        self._endings.complete_if_done(graph)

    def _seed(self, graph: GraphTask, event: ev.GraphSubmitted | ev.GraphExtended) -> None:
        """Deliver what the client gives: seeds, and outputs of tasks that it runs itself."""
        if [1 for seed in event.seeds if is_counted(seed[3])]:
            raise ProtocolError(f"{event.peer} seeds a graph with a block that is not its own")
        try:
            for task, slot, place, ref in event.seeds:
                if graph.deliver(task, slot, place, ref):
                    self._dispatcher.enqueue(graph, [task])
        except (LookupError, InvariantViolated) as error:
            raise ProtocolError(f"{event.peer} sent a seed that goes nowhere: {error}") from None

    def _on_graph_extended(self, event: ev.GraphExtended) -> None:
        graph = self.tables.graph_of(event.peer, event.graph)
        if graph is not None and graph.phase is GraphPhase.RUNNING:
            self._dispatcher.enqueue(graph, graph.extend(event.tasks, event.is_whole))
            self._seed(graph, event)
            if event.failed is not None:
                self._replies.on_client_failure(graph, *event.failed)
            self._endings.end_if_stranded(graph)
            self._endings.complete_if_done(graph)
            self._endings.close_if_drained(graph)

    def _on_graph_cancelled(self, event: ev.GraphCancelled) -> None:
        if event.grace_ms is not None and not 0 <= event.grace_ms <= GRACE_MS_MAX:
            raise ProtocolError(f"{event.peer} gives a graph {event.grace_ms} ms to end")
        graph = self.tables.graph_of(event.peer, event.graph)
        if graph is not None:
            self._endings.drain(graph, "cancelled", -1, b"cancelled by the caller")
            self._endings.close_if_drained(graph)
            if event.grace_ms is not None and graph.number in self.graphs:
                self._out.append(do.SetDeadline(graph.number, event.grace_ms))

    def _on_blocks_released(self, event: ev.BlocksReleased) -> None:
        member = self.membership.get(event.peer)
        if member is None:
            return
        # Hundreds of gradients of the last backward may be released just before the next one, so
        # each block is looked up as seldom as possible.
        kept = member.kept
        for number, block in enumerate(event.blocks):
            count = kept.get(block, 0)
            if count > 1:
                kept[block] = count - 1
            elif count == 1:
                del kept[block]
            else:
                for taken in event.blocks[:number]:
                    member.keep(taken)
                raise ProtocolError(f"{event.peer} released a block that it does not hold: {block}")
        for block in event.blocks:
            self.leases.release(block)

    def _on_output_emitted(self, event: ev.OutputEmitted) -> None:
        graph = self.graphs.get(event.graph)
        if graph is not None and self.membership.get(graph.owner) is not None:
            self._out.append(
                do.ForwardOutput(graph.owner, graph.owner_number, event.kind, event.data)
            )
