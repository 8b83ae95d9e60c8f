"""CoordinatorState: all decisions of the coordinator. Events in, instructions out.

       client                        coordinator                      worker w<slot>.<n>
    (c<pid>.<n>: a session          (this core; its shell is        (one process for each
     of each thread)                 coordinator/coordinator.py)     slot; n counts restarts)
         |                                |                                |
         | GraphSubmitted, GraphExtended  |                                |
         | ------------------------------>|  DispatchNodeTask              |
         |                                | ------------------------------>|
         |                                |                                | runs the task
         |                                |  NodeTaskProgress, then        |
         |                                |  NodeTaskDone or -Failed       |
         |  DispatchNodeTask              |<------------------------------ |
         |  (a task of the client)        |                                |
         |<------------------------------ |  CancelGraph                   |
         |  NodeTaskDone or -Failed       |  (answer: NodeTaskDropped)     |
         | ------------------------------>| ------------------------------>|
         |  DeliverCaptures, then         |                                |
         |  CompleteGraph or FailGraph    |  ReleaseBlocks (to GPUs)       |
         |<------------------------------ | ------------------------------>|
         | GraphCancelled, BlocksReleased |  OutputEmitted, BlocksReleased |
         | ------------------------------>|<------------------------------ |
         | BranchesReleased               |  ReleaseBranches               |
         | ------------------------------>| ------------------------------>|
         |  ForwardOutput                 |                                |
         |<------------------------------ |  shell: WorkerDied, WorkerHung |

Gradients of more than 4 KiB lie in shared memory; messages name their blocks. The life of a graph
is a table: ``GRAPH_TRANSITIONS`` in ``graph_task``, whose docstring says how to print it. This file
has the lives of graphs and members; ``task_dispatch``, below it, has dispatch and replies.

Rules of both files:
1. Everything that decides what a backward does next happens here or in the tables.
2. They never read a clock, never wait, and iterate over nothing unordered: the same events give
   the same instructions, in every process and under every hash seed.
3. A message of an unknown peer comes from an incarnation that was replaced: ignore it.
4. Each holder of a block releases it once; ``invariants`` recounts every holder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mpgrad.base.handles import Block, GradientRef, is_counted
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_task import GraphEvent, GraphTask
from mpgrad.scheduler.invariants import Recounts
from mpgrad.scheduler.lease_table import BlockAllocator
from mpgrad.scheduler.membership import FlightKey, MemberRecord
from mpgrad.scheduler.task_dispatch import TaskDispatch

Instruction = do.CoordinatorInstruction

#: Limits: the results of one backward, and the milliseconds that a cancelled one may take to end.
CAPTURES_MAX, GRACE_MS_MAX = 10_000_000, 3_600_000
#: The number of workers that may die while they run one task before its graph fails: by the task's
#: own fault, and by SIGKILL (which usually comes from outside and says little about the task).
DEATHS_MAX = 2
KILLS_MAX = 10
#: The number of deaths in a row in one slot, while no worker finishes a task, before the engine
#: gives up. It is counted per slot, because one incident may kill any number of workers at once.
RESTARTS_WITHOUT_PROGRESS_MAX = 20
#: The number of events that are kept for the message of an internal error; of each the number of
#: tasks, and of bytes of an error or of printed text; and the number of characters that are shown.
EVENTS_KEPT, TASKS_KEPT, BYTES_KEPT, EVENT_SHOWN = 500, 100, 1024, 200


class CoordinatorState(TaskDispatch):
    """GraphTasks, the ReadyQueue, leases and members, behind one entry: :meth:`handle_event`.

    Args:
        allocator: decides where blocks lie.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        super().__init__(allocator)
        #: (session, the session's number of the graph) -> the coordinator's number.
        self.numbers: dict[tuple[str, int], int] = {}
        self._next_number = 0
        #: The last events, the newest last. What makes one large is left out.
        self.last_events: deque[Any] = deque(maxlen=EVENTS_KEPT)
        self.recounts = Recounts()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.SessionOpened: self._on_session_opened,
            ev.SessionClosed: self._on_session_closed,
            ev.GraphSubmitted: self._on_graph_submitted,
            ev.GraphExtended: self._on_graph_extended,
            ev.GraphCancelled: self._on_graph_cancelled,
            ev.GraphAwaited: self._on_graph_awaited,
            ev.BlocksReleased: self._on_blocks_released,
            ev.BranchesReleased: self._on_branches_released,
            ev.WorkerJoined: self._on_worker_joined,
            ev.WorkerDied: self._on_worker_died,
            ev.WorkerHung: self._on_worker_hung,
            ev.DeadlinePassed: self._on_deadline_passed,
            ev.WorkerUnavailable: self._on_worker_unavailable,
            ev.NodeTaskProgress: self.on_node_task_progress,
            ev.NodeTaskDone: self.on_node_task_done,
            ev.NodeTaskFailed: self.on_node_task_failed,
            ev.NodeTaskDropped: self.on_node_task_dropped,
            ev.OutputEmitted: self._on_output_emitted,
        }

    def handle_event(self, event: Any) -> list[Instruction]:
        """Apply ``event`` to the tables and return what the shell has to do now, in order.

        Raises:
            ProtocolError: the event contradicts the tables. The shell fences the peer that sent it
                and recovers what that peer held, as if it had died.
            InvariantViolated: the tables contradict the event. A note has the last events.
            TablesCorrupt: the tables contradict each other, with the same note.
        """
        shorten = _SHORTEN.get(type(event))
        self.last_events.append(event if shorten is None else shorten(event))
        try:
            self._handlers[type(event)](event)
            self.dispatch_ready(getattr(event, "peer", ""))
            self.recounts.note_event(self)
        except ProtocolError:
            raise
        except Exception as error:
            shown = [repr(past)[:EVENT_SHOWN] for past in self.last_events]
            error.add_note("\n".join(["The last events:", *shown]))
            raise
        if self.leases.freed:
            self._tell_makers()
        out = self.out.copy()
        self.out.clear()
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
                self.out.append(do.ReleaseBlocks(maker.peer, tuple(blocks)))

    # ------------------------------------------------------------------ a graph begins and goes on

    def graph_of(self, owner: str, owner_number: int) -> GraphTask | None:
        """The graph with that number in the session ``owner``, unless it has ended."""
        number = self.numbers.get((owner, owner_number))
        return None if number is None else self.graphs[number]

    def _on_graph_submitted(self, event: ev.GraphSubmitted) -> None:
        if self.membership.get(event.peer) is None:
            return
        if self.graph_of(event.peer, event.graph) is not None:
            raise ProtocolError(f"{event.peer} submitted graph {event.graph} twice")
        if not 0 <= event.capture_count <= CAPTURES_MAX:
            raise ProtocolError(f"{event.peer} wants {event.capture_count} results")
        number, self._next_number = self._next_number, self._next_number + 1
        captures: list[GradientRef] = [None] * event.capture_count
        graph = GraphTask(number, event.peer, event.graph, event.depth, captures)
        self.graphs[number], self.numbers[event.peer, event.graph] = graph, number
        self.enqueue(graph, graph.extend(event.tasks, event.is_whole, event.done))
        self._seed(graph, event)
        self.settle(graph)

    def _on_graph_extended(self, event: ev.GraphExtended) -> None:
        graph = self.graph_of(event.peer, event.graph)
        if graph is not None:
            self.happens(graph, GraphEvent.EXTENDED, event)
            self.settle(graph)

    def extend(self, graph: GraphTask, event: ev.GraphExtended) -> None:
        """Add the tables, and what the client has computed."""
        self.enqueue(graph, graph.extend(event.tasks, event.is_whole))
        self._seed(graph, event)
        if event.failed is not None:
            self.on_client_failure(graph, *event.failed)

    def _seed(self, graph: GraphTask, event: ev.GraphSubmitted | ev.GraphExtended) -> None:
        """Deliver what the client gives: seeds, and outputs of tasks that it runs itself."""
        if [1 for seed in event.seeds if is_counted(seed[3])]:
            raise ProtocolError(f"{event.peer} seeds a graph with a block that is not its own")
        try:
            for task, slot, place, ref in event.seeds:
                if graph.deliver(task, slot, place, ref):
                    self.enqueue(graph, [task])
        except (LookupError, InvariantViolated) as error:
            raise ProtocolError(f"{event.peer} sent a seed that goes nowhere: {error}") from None

    def _on_graph_cancelled(self, event: ev.GraphCancelled) -> None:
        if event.grace_ms is not None and not 0 <= event.grace_ms <= GRACE_MS_MAX:
            raise ProtocolError(f"{event.peer} gives a graph {event.grace_ms} ms to end")
        graph = self.graph_of(event.peer, event.graph)
        if graph is not None:
            cause = b"cancelled by the caller"
            self.happens(graph, GraphEvent.CANCELLED, "cancelled", -1, cause)
            self.settle(graph)
            if event.grace_ms is not None and graph.number in self.graphs:
                self.out.append(do.SetDeadline(graph.number, event.grace_ms))

    def _on_graph_awaited(self, event: ev.GraphAwaited) -> None:
        """Say whether the graph will end. An end that was just sent comes before this."""
        graph = self.graph_of(event.peer, event.graph)
        answer = do.GraphForgotten if graph is None or graph.is_stuck else do.GraphGoesOn
        if self.membership.get(event.peer) is not None:
            self.out.append(answer(event.peer, event.graph))

    def _on_deadline_passed(self, event: ev.DeadlinePassed) -> None:
        """The deadline of a cancelled graph has passed: kill the workers that still hold its tasks.

        This includes workers where such a task waits behind a task of another graph, which starts
        again elsewhere: a worker that does not listen cannot give a task back. No task is to blame.
        """
        for worker in self.membership.workers():
            if not worker.is_fenced and any(key.graph == event.graph for key in worker.flights):
                self._fence(worker)

    # ------------------------------------------------------------------ a graph ends

    def recall(self, graph: GraphTask, kind: str, task: int, error: bytes) -> None:
        """running -> draining: dispatch nothing more, recall the tasks that have not begun."""
        graph.failure = (kind, task, error, 0)
        if graph.first_error is not None and kind != "cancelled":
            graph.failure = ("error", *graph.first_error[1:])
        self.ready.drop_graph(graph.number)
        for member in self.holders_of(graph):
            self.out.append(do.CancelGraph(member.peer, graph.number))

    def close(self, graph: GraphTask) -> None:
        """draining -> failed: release everything that the graph holds."""
        for buffer in graph.buffers.values():
            self.release(buffer.blocks())
        self.release(graph.captures)
        self.release([early[3] for early in graph.early])
        self._forget(graph)
        if graph.failure is not None and self.membership.get(graph.owner) is not None:
            self.out.append(do.FailGraph(graph.owner, graph.owner_number, *graph.failure))

    def complete(self, graph: GraphTask) -> None:
        """running -> completed; the session now holds the captured blocks."""
        self._forget(graph)
        owner = self.membership.members[graph.owner]
        for ref in graph.captures:
            if is_counted(ref):
                owner.keep(ref)
        self.out.append(
            do.CompleteGraph(
                graph.owner,
                graph.owner_number,
                tuple(graph.captures),
                tuple([self.leases.is_exclusive(ref) for ref in graph.captures]),
                tuple(graph.ran),
            )
        )

    def _forget(self, graph: GraphTask) -> None:
        del self.graphs[graph.number]
        del self.numbers[graph.owner, graph.owner_number]

    # ------------------------------------------------------------------ a member lives

    def _on_session_opened(self, event: ev.SessionOpened) -> None:
        self.membership.join(event.peer, is_worker=False)

    def _on_worker_joined(self, event: ev.WorkerJoined) -> None:
        self.membership.join(event.peer, is_worker=True, device=event.device, arena=event.arena)

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
        self.release(event.blocks)

    def _on_branches_released(self, event: ev.BranchesReleased) -> None:
        for worker in self.membership.workers():  # the branches of dead ones are gone
            slots = (worker.slot, ev.ANY_SLOT)
            numbers = tuple([number for slot, number in event.branches if slot in slots])
            if numbers:
                self.out.append(do.ReleaseBranches(worker.peer, numbers))

    def _on_output_emitted(self, event: ev.OutputEmitted) -> None:
        graph = self.graphs.get(event.graph)
        if graph is not None and self.membership.get(graph.owner) is not None:
            self.out.append(
                do.ForwardOutput(graph.owner, graph.owner_number, event.kind, event.data)
            )

    # ------------------------------------------------------------------ a member dies

    def _on_session_closed(self, event: ev.SessionClosed) -> None:
        member = self.membership.leave(event.peer)
        if member is None:
            return
        self._release_row(member)
        for graph in [g for g in self.graphs.values() if g.owner == event.peer]:
            self.happens(graph, GraphEvent.CANCELLED, "cancelled", -1, b"the client has gone")
            for key in [key for key in member.flights if key.graph == graph.number]:
                self.abandon(member, key)
            self.settle(graph)

    def _on_worker_died(self, event: ev.WorkerDied) -> None:
        member = self.membership.leave(event.peer)
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
            self.abandon(member, key)
            graph = self.graphs[key.graph]
            touched[graph.number] = graph
            if key == event.running and not is_wanted:
                self._blame(graph, key.task, event, kind)
        if member.arena >= 0:
            touched.update(self._lose_arena(member.arena, event))
        for graph in touched.values():
            self.settle(graph)
        deaths = self.deaths_without_progress
        deaths[member.slot] = deaths.get(member.slot, 0) + (not is_wanted)
        self._replace_worker(member.slot, event.cause)

    def _blame(self, graph: GraphTask, task: int, event: ev.WorkerDied, kind: str) -> None:
        """Count a death for the task that the worker was running; its graph fails at the limit."""
        graph.deaths[task] = deaths = graph.deaths.get(task, 0) + 1
        kills = graph.kills.get(task, 0)
        if event.killed:
            graph.kills[task] = kills = kills + 1
        if kills >= KILLS_MAX or deaths - kills >= DEATHS_MAX:
            text = f"{event.cause} ({deaths} times)\n{event.stack}".rstrip("\n")
            self.happens(graph, GraphEvent.HOPELESS, kind, task, text.encode())

    def _lose_arena(self, arena: int, event: ev.WorkerDied) -> dict[int, GraphTask]:
        """Fail the graphs that have gradients in the memory of a dead GPU worker."""
        lost = {}
        for graph in self.graphs.values():
            refs: list[GradientRef] = [*graph.captures, *(early[3] for early in graph.early)]
            for buffer in graph.buffers.values():
                refs.extend(buffer.blocks())
            if any(isinstance(ref, Block) and ref.arena == arena for ref in refs):
                text = f"{event.cause}; gradients that lay on its GPU are gone"
                self.happens(graph, GraphEvent.HOPELESS, "lost", -1, text.encode())
                lost[graph.number] = graph
        return lost

    def _release_row(self, member: MemberRecord) -> None:
        """Release everything that its user code referenced."""
        for block, count in member.kept.items():
            for _ in range(count):
                self.leases.release(block)
        member.kept.clear()

    def _replace_worker(self, slot: int, cause: str) -> None:
        deaths = self.deaths_without_progress.get(slot, 0)
        if deaths > RESTARTS_WITHOUT_PROGRESS_MAX:
            self._give_up(
                f"{deaths} processes of worker slot {slot} died in a row, and no worker finished a "
                f"task meanwhile; the last one: {cause}"
            )
        elif self.unavailable is not None:
            self._give_up(self.unavailable)
        else:
            self.out.append(do.StartWorker(slot))

    def _on_worker_unavailable(self, event: ev.WorkerUnavailable) -> None:
        self._give_up(event.reason)

    def _give_up(self, reason: str) -> None:
        """Nobody starts workers any more: graphs end whose device has none."""
        self.unavailable = reason
        for graph in list(self.graphs.values()):
            self.settle(graph)

    # ------------------------------------------------------------------ a worker hangs

    def _on_worker_hung(self, event: ev.WorkerHung) -> None:
        """Kill the worker. Until it is dead it keeps its tasks, and a late reply counts."""
        member = self.membership.get(event.peer)
        if member is None or member.is_fenced:
            return
        if event.running is not None and FlightKey(*event.running) not in member.flights:
            return  # it has answered in the meantime
        member.hung = event
        self._fence(member)

    def _fence(self, worker: MemberRecord) -> None:
        worker.is_fenced = True
        self.out.append(do.FenceWorker(worker.peer))


def _fenced(event: ev.WorkerDied, hung: ev.WorkerHung) -> ev.WorkerDied:
    """The death of a worker that was killed because it hung.

    If a task took too long, that task alone is to blame, as if it had crashed. If the process was
    stopped, the kill counts as one from outside.
    """
    if hung.running is None:
        return event._replace(cause=hung.cause, killed=True)
    return event._replace(cause=hung.cause, killed=False, running=hung.running)


def _without_many_tasks(event: Any) -> Any:
    if len(event.tasks) <= TASKS_KEPT:
        return event
    return event._replace(tasks=event.tasks[:TASKS_KEPT])


def _are_few_bytes(outputs: Iterable[GradientRef]) -> bool:
    return sum([len(ref) for ref in outputs if type(ref) is bytes]) <= TASKS_KEPT * BYTES_KEPT


def _without_many_outputs(event: ev.NodeTaskDone) -> ev.NodeTaskDone:
    outputs = event.outputs
    is_small = len(outputs) <= TASKS_KEPT and _are_few_bytes(outputs)
    return event if is_small else event._replace(outputs=())


def _without_many_published(event: ev.NodeTaskProgress) -> ev.NodeTaskProgress:
    outputs = event.outputs
    is_small = len(outputs) <= TASKS_KEPT and _are_few_bytes([ref for _, ref in outputs])
    return event if is_small else event._replace(outputs=())


#: How an event is kept that may be large.
_SHORTEN: dict[type[Any], Callable[[Any], Any]] = {
    ev.NodeTaskDone: _without_many_outputs,
    ev.NodeTaskProgress: _without_many_published,
    ev.GraphSubmitted: _without_many_tasks,
    ev.GraphExtended: _without_many_tasks,
    ev.NodeTaskFailed: lambda event: event._replace(error=event.error[:BYTES_KEPT]),
    ev.OutputEmitted: lambda event: event._replace(data=event.data[:BYTES_KEPT]),
}
