"""Situations: the rare situations that a World has reached, beyond the injected faults.

A simulation proves nothing about a situation that it never reaches. So each situation that the
protocol has a rule for is counted, and the tests require that none is missing. One more promise is
checked here: no worker is idle while a task waits that it could run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mpgrad.base.handles import WORKER_DEVICE_ARENA, Block
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.membership import NEAR_WAITING_MAX, FlightKey, MemberRecord
from mpgrad.scheduler.ready_queue import ReadyTask, lane_of, slot_of
from simulation.expectations import require

REPLIES = (ev.NodeTaskDone, ev.NodeTaskFailed, ev.NodeTaskDropped)

DEAD_INCARNATION = "a reply of a dead incarnation came late"
SECOND_REPLY = "a reply came twice"
INNER_ORPHANED = "the owner of an inner graph was gone"
PREFETCHED_LOST = "a worker died with tasks that it had not begun"
SUSPECT_ALONE = "a suspect task was run again, alone"
THIRD_ATTEMPT = "a task was begun for the third time"
CREDIT_EXHAUSTED = "tasks waited because every worker had its fill"
MEMORY_AWAITED = "tasks waited for memory, not for a worker"
EARLIER_ERROR = "an error came after a later one and took its place"
ERROR_OF_DRAINING = "a task failed in a graph that was ending already"
CANCELLED_TOO_LATE = "a graph had ended when its caller cancelled it"
EARLY_ARRIVAL = "a gradient arrived before the tables of its task"
STOPPED_FENCED = "a stopped worker was fenced"
DEADLINE_FENCED = "a worker was fenced that ran on in a cancelled graph"
BYSTANDER_FENCED = "a worker was fenced for a cancelled graph and had tasks of another one"
FENCE_OVERTAKEN = "a hung task ended between the fence and the death"
NO_WORKER = "tasks waited because no worker was there"
MEMORY_RETURNED = "a GPU worker was told that its blocks are free"
BEREAVED = "a GPU worker died, and gradients of a graph with it"
PEER_READ = "a GPU worker read what another one had made"
PARTS_JOINED = "a task joined a gradient that came in parts"
CALLER_RAN = "a caller ran a task while workers ran others"
CALLER_FAILED = "a caller's task failed while workers ran others"
SUBMITTED_TOGETHER = "a caller submitted graphs while others of its own were under way"
BRANCH_FOUND = "a task found its branch"
BRANCH_MADE_AGAIN = "a task made its branch again"
BRANCH_LOST = "a worker died with branches between the passes"
BRANCH_EVICTED = "a worker had no room for a branch"
BRANCH_OF_ANOTHER_ENGINE = "a task wanted a branch of an engine that is gone"
DIED_IN_FORWARD = "a worker died in a call"
DIED_IN_BACKWARD = "a worker died while it differentiated a branch"
MAP_FAILED = "a map failed, and nobody got its branches"
MAP_IN_HOOK = "a hook called a map"
STOLEN = "an idle worker took a task near another one"
NEAR_AWAITED = "a task waited for the worker that has its branch"

ALL_SITUATIONS = frozenset(
    {
        DEAD_INCARNATION,
        SECOND_REPLY,
        INNER_ORPHANED,
        PREFETCHED_LOST,
        SUSPECT_ALONE,
        THIRD_ATTEMPT,
        CREDIT_EXHAUSTED,
        MEMORY_AWAITED,
        EARLIER_ERROR,
        ERROR_OF_DRAINING,
        CANCELLED_TOO_LATE,
        EARLY_ARRIVAL,
        STOPPED_FENCED,
        DEADLINE_FENCED,
        BYSTANDER_FENCED,
        FENCE_OVERTAKEN,
        NO_WORKER,
        MEMORY_RETURNED,
        BEREAVED,
        PEER_READ,
        PARTS_JOINED,
        CALLER_RAN,
        SUBMITTED_TOGETHER,
        CALLER_FAILED,
        BRANCH_FOUND,
        BRANCH_MADE_AGAIN,
        BRANCH_LOST,
        BRANCH_EVICTED,
        BRANCH_OF_ANOTHER_ENGINE,
        DIED_IN_FORWARD,
        DIED_IN_BACKWARD,
        MAP_FAILED,
        MAP_IN_HOOK,
        STOLEN,
        NEAR_AWAITED,
    }
)


class Situations:
    """Checks the coordinator's tables before and after each event."""

    def __init__(self, core: CoordinatorState) -> None:
        self._core = core
        self.seen: Counter[str] = Counter()
        self._first_errors: dict[int, Any] = {}
        #: Graphs (session, its number of it) that failed for lack of memory.
        self._out_of_memory: set[tuple[str, int]] = set()

    def before(self, event: Any) -> None:
        """``event`` is about to be handled."""
        core = self._core
        if isinstance(event, REPLIES):
            member = core.membership.get(event.peer)
            if member is None:
                self.seen[DEAD_INCARNATION] += 1
            elif FlightKey(event.graph, event.task, event.attempt) not in member.flights:
                self.seen[SECOND_REPLY] += 1
            elif member.hung is not None and member.hung.running == event[1:4]:
                self.seen[FENCE_OVERTAKEN] += 1
            elif isinstance(event, ev.NodeTaskFailed):
                graph = core.graphs[event.graph]
                self._note(ERROR_OF_DRAINING, graph.failure is not None)
                self._first_errors[event.graph] = graph.first_error
        elif isinstance(event, ev.SessionClosed):
            self._note(
                INNER_ORPHANED,
                any(
                    graph.owner == event.peer and graph.depth > 0 for graph in core.graphs.values()
                ),
            )
        elif isinstance(event, ev.WorkerDied):
            member = core.membership.get(event.peer)
            if member is not None:
                self._note(BEREAVED, any(ref.arena == member.arena for ref in core.leases.counts()))
                self._note(PREFETCHED_LOST, any(key != event.running for key in member.flights))
        elif isinstance(event, ev.WorkerHung):
            self._note(STOPPED_FENCED, event.running is None)
        elif isinstance(event, ev.GraphCancelled):
            self._note(CANCELLED_TOO_LATE, core.graph_of(event.peer, event.graph) is None)

    def after(self, event: Any, instructions: Sequence[Any], *, is_memory_short: bool) -> None:
        """``event`` was handled."""
        core = self._core
        if isinstance(event, ev.NodeTaskFailed) and event.graph in core.graphs:
            before = self._first_errors.get(event.graph)
            now = core.graphs[event.graph].first_error
            self._note(EARLIER_ERROR, before is not None and before != now)
        elif isinstance(event, ev.DeadlinePassed):
            self._note_fenced(event.graph, instructions)
        elif isinstance(event, ev.NodeTaskDone) and event.graph in core.graphs:
            self._note(EARLY_ARRIVAL, bool(core.graphs[event.graph].early))
        if is_memory_short:
            self._check_nothing_to_wait_for(instructions)
        for instruction in instructions:
            self._note(MEMORY_RETURNED, isinstance(instruction, do.ReleaseBlocks))
            if isinstance(instruction, do.DispatchNodeTask):
                self._note_peers(instruction)
                self._check_order(instruction, is_memory_short=is_memory_short)
            if isinstance(instruction, do.DispatchNodeTask) and instruction.attempt > 1:
                self._note(THIRD_ATTEMPT, instruction.attempt > 2)
                deaths = core.graphs[instruction.graph].deaths
                self._note(SUSPECT_ALONE, deaths.get(instruction.task, 0) > 0)
        self._check_work_goes_on(is_memory_short)

    def _note_fenced(self, graph: int, instructions: Sequence[Any]) -> None:
        """Check the tasks of the workers that a deadline ends."""
        for fence in instructions:
            flights = self._core.membership.members[fence.peer].flights
            self.seen[DEADLINE_FENCED] += 1
            self._note(BYSTANDER_FENCED, any(key.graph != graph for key in flights))

    def _note_peers(self, dispatch: do.DispatchNodeTask) -> None:
        """Check which GPU worker reads whose memory."""
        reader = self._core.membership.members[dispatch.peer]
        arenas = {
            ref.arena
            for slot in dispatch.inputs
            for ref in slot
            if isinstance(ref, Block) and ref.arena >= WORKER_DEVICE_ARENA
        }
        self._note(PEER_READ, reader.arena >= 0 and bool(arenas - {reader.arena}))

    def _note(self, situation: str, is_seen: bool) -> None:
        if is_seen:
            self.seen[situation] += 1

    def _check_nothing_to_wait_for(self, instructions: Sequence[Any]) -> None:
        """Lack of memory may fail a graph only if no task in flight could release some."""
        failed = {
            (graph.owner, graph.owner_number)
            for graph in self._core.graphs.values()
            if graph.failure is not None and graph.failure[0] == "memory"
        }
        failed.update(
            i[:2] for i in instructions if isinstance(i, do.FailGraph) and i.kind == "memory"
        )
        new, self._out_of_memory = failed - self._out_of_memory, self._out_of_memory | failed
        if new:
            just_begun = [i[1:4] for i in instructions if isinstance(i, do.DispatchNodeTask)]
            busy = [
                worker.peer
                for worker in self._core.membership.workers()
                if any(key not in just_begun for key in worker.flights)
            ]
            require(not busy, f"graphs {sorted(new)} fail although {busy} may give memory back")

    def _check_order(self, dispatch: do.DispatchNodeTask, *, is_memory_short: bool) -> None:
        """Check that no task waits which is more urgent and could have gone to the same worker."""
        core = self._core
        worker, graph = core.membership.members[dispatch.peer], core.graphs[dispatch.graph]
        spec = graph.specs[dispatch.task]
        self._note(STOLEN, worker.is_worker and 0 <= spec.near != worker.slot)
        if not worker.is_worker or worker.device != ON_CPU or is_memory_short:
            return
        urgency = (-graph.depth, -spec.priority, spec.position)
        for lane in (ON_CPU, lane_of(ON_CPU, worker.slot)):
            first = core.ready.peek(lane)
            if first is None or first[:3] >= urgency:
                continue
            waiting = core.graphs[first.graph]
            other = waiting.specs[first.task]
            # Near a worker none counts as short.
            short = [one.is_short and one.near < 0 for one in (other, spec)]
            is_like_it = short[0] >= short[1] and other.priority >= spec.priority
            is_suspect = {dispatch.task in graph.deaths, first.task in waiting.deaths} != {False}
            require(
                is_suspect or not is_like_it or worker.is_fenced,
                f"{worker.peer} gets {dispatch}, and {first} has to wait",
            )

    def _check_work_goes_on(self, is_memory_short: bool) -> None:
        """The most urgent task waits only if no worker may have it, or if memory is short."""
        for lane in self._core.ready.lanes():
            first = self._core.ready.peek(lane)
            if first is not None:
                self._check_lane_goes_on(lane, first, is_memory_short)

    def _check_lane_goes_on(self, lane: int, first: ReadyTask, is_memory_short: bool) -> None:
        core, slot = self._core, slot_of(lane)
        graph = core.graphs[first.graph]
        workers = [w for w in core.membership.workers() if w.device == max(lane, ON_CPU)]
        is_suspect, spec = first.task in graph.deaths, graph.specs[first.task]
        free = [
            worker.peer
            for worker in workers
            if worker.has_credit(
                for_suspect=is_suspect,
                for_short=spec.is_short and slot < 0,
                priority=spec.priority,
            )
        ]
        if slot >= 0:
            free = self._may_run_near(slot, core.ready.length(lane), workers, free)
            self._note(NEAR_AWAITED, bool(workers) and not free)
        if is_memory_short:
            # A running task may release memory; without one, nothing will ever come.
            is_busy = any(worker.flights for worker in core.membership.workers())
            require(is_busy or not free, f"task {first.task} of graph {first.graph} waits in vain")
            self.seen[MEMORY_AWAITED] += 1
        elif workers:
            require(not free, f"{free} could run task {first.task} of graph {first.graph}")
            self.seen[CREDIT_EXHAUSTED] += 1
        else:
            self.seen[NO_WORKER] += 1

    def _may_run_near(
        self, slot: int, waiting: int, workers: list[MemberRecord], free: list[str]
    ) -> list[str]:
        """Those of the ``free`` workers that may take one of the tasks near a slot."""
        there = [w.peer for w in workers if w.slot == slot and not w.is_fenced]
        idle = [w.peer for w in workers if w.is_idle]
        if not there or waiting > NEAR_WAITING_MAX:
            return [peer for peer in free if peer in there or peer in idle]
        return [peer for peer in free if peer in there]
