"""ProcessEngine: executes frozen graphs in worker processes.

The client's side of one backward: place, plan, hand over, submit, wait, open the results.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd import profiler
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.running.collector import collector_held
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.device_handover import DeviceHandover
from mpgrad.engine.failure import cause_of
from mpgrad.engine.handover import Handover, SavedTensorsUnreadable
from mpgrad.engine.learning import learn, that_ran
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.outcomes import check_outcome
from mpgrad.engine.placement import Placed, keep_unreadable
from mpgrad.engine.prepared import PreparedGraph, PreparedGraphs
from mpgrad.engine.processes import CoordinatorProcess
from mpgrad.engine.recovery import repeat_after_loss
from mpgrad.engine.session import Session
from mpgrad.engine.session_pool import SessionPool
from mpgrad.engine.submission import Submission
from mpgrad.errors import CoordinatorLost, EngineClosed, ProtocolError
from mpgrad.handles import ENGINE_ARENA, Block, is_counted
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskFailed
from mpgrad.scheduler.instructions import CompleteGraph, DispatchNodeTask, FailGraph
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_cache import PlanCache
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.wire.output import replay_warnings
from mpgrad.wire.schema import Processes

Array: TypeAlias = np.ndarray[Any, Any]

_graph_numbers = itertools.count(1)


@dataclass
class Counters:
    """What the engine has done so far; read through ``Engine.statistics()``."""

    backwards: int = 0
    failed: int = 0
    handed_bytes: int = 0
    copied_bytes: int = 0
    through_host_bytes: int = 0
    recoveries: int = 0

    def __post_init__(self) -> None:
        self.tasks: Counter[str] = Counter()


class ProcessEngine:
    """Thread-safe: each calling thread borrows a session of its own.

    Args:
        options: of the Engine.
        spawn: starts a coordinator.
    """

    def __init__(self, options: EngineOptions, spawn: Callable[[], CoordinatorProcess]) -> None:
        self._options = options
        self.sessions = SessionPool(spawn)
        self.counters = Counters()
        self._counters_lock = threading.Lock()
        make_plan = partial(plan, workers=options.cpu_workers, gpu_workers=Counter(options.gpus))
        self._prepared = PreparedGraphs(PlanCache(make_plan).plan)
        self._plans_lock = threading.Lock()

    def processes(self) -> Processes | None:
        """Who works for this engine; None while nothing runs."""
        if not self.sessions.is_running:
            return None
        try:
            with self.sessions.session() as session:
                return session.processes()
        except (CoordinatorLost, EngineClosed):
            return None

    # ------------------------------------------------------------------ one backward

    @collector_held()
    def prepare(self, frozen: FrozenGraph) -> PreparedGraph:
        """The plan of a placed graph and what else was made of its tables, now or in an earlier
        step."""
        with self._plans_lock:
            return self._prepared.of(frozen.spec, may_recur=frozen.may_recur)

    def execute(self, placed: Placed, prepared: PreparedGraph) -> list[tuple[Any, bool]]:
        """Run a placed graph; as ``run_local``.

        Raises:
            Exception: what a rule or hook raised, as it is.
            WorkerLost, CoordinatorLost, SharedMemoryExhausted, EngineClosed: see ``mpgrad.errors``.
        """
        running = innermost()
        # An inner backward is part of a client task of the outer one, which cannot be repeated.
        is_inner = running is not None and running.session is not None
        if self._options.recover == "all" and not is_inner:
            return repeat_after_loss(lambda: self._attempt(placed, prepared), self._note_recovery)
        return self._attempt(placed, prepared)

    def _attempt(self, placed: Placed, prepared: PreparedGraph) -> list[tuple[Any, bool]]:
        try:
            return self._execute(placed, prepared)
        except SavedTensorsUnreadable:
            # No user code has run yet: where there is some, `place` has looked for such Nodes.
            placed = keep_unreadable(placed)
            return self._execute(placed, self.prepare(placed.frozen))

    def _execute(self, placed: Placed, graph: PreparedGraph) -> list[tuple[Any, bool]]:
        frozen, planned = placed.frozen, graph.plan
        handover = Handover()
        profile = profiler.active()
        handover.is_timed = profile is not None
        is_complete = False
        try:
            with self.sessions.session() as session:
                handover.learns = graph.learns()
                outcome, client = self._submit(session, placed, graph, handover)
                try:
                    check_outcome(outcome, planned, len(frozen.spec.captures))
                    if isinstance(outcome, CompleteGraph):
                        results = self._open_results(session, frozen, outcome, handover)
                        is_complete = True
                except ProtocolError as error:
                    raise session.distrust(error) from error
                self._note(frozen, graph, handover, outcome)
                if profile is not None and isinstance(outcome, CompleteGraph):
                    _note_times(profile, frozen, planned, outcome)
        finally:
            handover.close(is_complete=is_complete)
        replay_warnings(client.warnings, lambda task: planned.tasks[task].position)
        if isinstance(outcome, FailGraph):
            if outcome.kind == "lost" and outcome.task < 0:
                self.sessions.forget(session.coordinator)  # it has no workers and can get none
            elif outcome.kind == "error":
                client.release_before(planned.groups[outcome.task][outcome.step].node)
            raise cause_of(outcome, frozen, planned, client.error)
        if not frozen.keep_graph:
            for node, runs in zip(frozen.nodes, frozen.runs, strict=True):
                if runs:
                    node.release_saved()
        return results

    def _submit(
        self,
        session: Session,
        placed: Placed,
        prepared: PreparedGraph,
        handover: Handover,
    ) -> tuple[CompleteGraph | FailGraph, ClientWorker]:
        coordinator = self.sessions.coordinator
        graph, running = next(_graph_numbers), innermost()
        handover.engine_arena = coordinator.arena
        if coordinator.devices is not None:
            handover.devices = DeviceHandover(coordinator.devices)
        client = ClientWorker(
            placed.frozen, prepared.plan, handover, coordinator.arena, session.interrupts.user_code
        )
        submission = Submission(placed.frozen, prepared, placed.code, handover)
        first = submission.begin(
            session.peer, graph, running.depth if running is not None else 0, client,
            workers=session.workers, blas_threads=self._options.blas_threads,
        )  # fmt: skip

        def run_task(dispatch: DispatchNodeTask) -> NodeTaskDone | NodeTaskFailed:
            with blas_limit(self._options.blas_threads):
                return client.run(dispatch)

        try:
            outcome = session.run(first, submission.rest(session.peer, graph), run_task)
        except CoordinatorLost as lost:
            lost.has_run_user_code = client.has_begun
            raise
        client.warnings = session.warnings_of(graph)
        return outcome, client

    @collector_held()
    def _open_results(
        self, session: Session, frozen: FrozenGraph, outcome: CompleteGraph, handover: Handover
    ) -> list[tuple[Any, bool]]:
        """The captures as arrays; blocks of the engine's arena become leases of ``session``."""
        opened: dict[Block, Array] = {}
        results: list[tuple[Any, bool]] = []
        for (node, input_nr), ref, exclusive in zip(
            frozen.spec.captures, outcome.captures, outcome.exclusive, strict=True
        ):
            meta = frozen.nodes[node].input_metadata[input_nr]
            if isinstance(ref, Block) and ref.arena == ENGINE_ARENA:
                if ref in opened:
                    # The session holds a block once per capture, but one lease serves them all.
                    session.to_release.append(ref)
                else:
                    opened[ref] = self.sessions.lease(session, ref, meta)
                results.append((opened[ref], exclusive))
            else:
                if is_counted(ref):  # a GPU worker's: copied, because it would die with it
                    session.to_release.append(ref)
                results.append((handover.open(ref, meta), True))
        return results

    # ------------------------------------------------------------------ what came of it

    def _note_recovery(self) -> None:
        with self._counters_lock:
            self.counters.recoveries += 1

    def _note(
        self,
        frozen: FrozenGraph,
        prepared: PreparedGraph,
        handover: Handover,
        outcome: CompleteGraph | FailGraph,
    ) -> None:
        """Count, and learn what the tasks took."""
        with self._counters_lock:
            counters = self.counters
            counters.handed_bytes += handover.handed_bytes
            counters.copied_bytes += handover.copied_bytes
            if handover.devices is not None:
                counters.through_host_bytes += handover.devices.take_host_bytes()
            if isinstance(outcome, FailGraph):
                counters.failed += 1
                return
            counters.backwards += 1
            for _, slot, _, copied, _ in outcome.ran:
                counters.tasks[f"worker {slot}"] += 1
                counters.copied_bytes += copied
            on_client = len(prepared.plan.tasks) - len(outcome.ran)
            if on_client:
                counters.tasks["client"] += on_client
            known, took_us = frozen.remembered, sum([ran[2] for ran in outcome.ran])
            is_surprise = known is not None and known.is_surprised_by(took_us)
            if is_surprise:
                prepared.grow_young()
            if is_surprise or handover.learns:
                learn(frozen, prepared.plan, outcome)


def _note_times(
    profile: profiler.profile, frozen: FrozenGraph, planned: Plan, outcome: CompleteGraph
) -> None:
    """Tell the profile when workers ran which Nodes."""
    for task, slot, _, _, times in outcome.ran:
        if times is not None:
            ran = [member.node for member in that_ran(frozen, planned.groups[task])]
            profile.note_nodes(frozen, ran, profiler.unpack_times(times), worker=slot)
