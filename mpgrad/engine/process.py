"""ProcessEngine: executes frozen graphs in worker processes.

The client's side of one backward: place, plan, hand over, submit, wait, open the results. Processes
are started when the first graph needs them, and again after the coordinator was lost.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpgrad import config
from mpgrad.autograd import profiler
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.nodes.node import InputMetadata
from mpgrad.autograd.running.collector import collector_held
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.autograd.shipping.decision import ShippedCode
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.descriptors import FOR_SESSION, require_descriptors
from mpgrad.engine.device_handover import DeviceHandover
from mpgrad.engine.failure import cause_of
from mpgrad.engine.handover import Handover, SavedTensorsUnreadable
from mpgrad.engine.idle_threads import let_idle_threads_sleep
from mpgrad.engine.learning import learn, that_ran
from mpgrad.engine.outcomes import check_outcome
from mpgrad.engine.placement import place
from mpgrad.engine.prepared import PreparedGraph, PreparedGraphs
from mpgrad.engine.processes import CoordinatorProcess
from mpgrad.engine.recovery import repeat_after_loss
from mpgrad.engine.session import Session
from mpgrad.engine.submission import Submission
from mpgrad.errors import CoordinatorLost, EngineClosed, ProtocolError
from mpgrad.handles import ENGINE_ARENA, Block, is_counted
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskFailed
from mpgrad.scheduler.instructions import CompleteGraph, DispatchNodeTask, FailGraph
from mpgrad.scheduler.plan import Plan
from mpgrad.scheduler.plan_cache import PlanCache
from mpgrad.wire.output import replay_warnings
from mpgrad.wire.schema import Processes

Array: TypeAlias = np.ndarray[Any, Any]

_graph_numbers = itertools.count(1)
_CLOSED = (
    "the engine was closed by another thread while this one was in backward(); no .grad was "
    "changed. Make a new Engine, or close it when all threads are done."
)


@dataclass
class Counters:
    """What the engine has done so far; read through ``Engine.statistics()``."""

    backwards: int = 0
    failed: int = 0
    handed_bytes: int = 0
    copied_bytes: int = 0
    through_host_bytes: int = 0
    recoveries: int = 0
    #: Frames of coordinators that were refused here.
    protocol_errors: int = 0

    def __post_init__(self) -> None:
        self.tasks: Counter[str] = Counter()


class ProcessEngine:
    """Thread-safe: each calling thread borrows a session of its own.

    Args:
        cpu_workers, blas_threads, recover: as of ``Engine``.
        spawn: starts a coordinator, given its kill points.
    """

    def __init__(
        self,
        cpu_workers: int,
        blas_threads: int,
        spawn: Callable[[str], CoordinatorProcess],
        *,
        recover: str,
    ) -> None:
        self._spawn, self._blas_threads, self._recover = spawn, blas_threads, recover
        self._has_started = False
        self._lock = threading.RLock()
        self._coordinator: CoordinatorProcess | None = None
        self._idle: list[Session] = []
        self._session_numbers = itertools.count(1)
        #: Engine blocks that this process looks at: (offset, generation) -> who holds which block.
        self._leased: dict[tuple[int, int], tuple[Session, Block]] = {}
        self.counters = Counters()
        self._plans = PlanCache(cpu_workers)
        self._prepared = PreparedGraphs(self._plans.plan)
        self._plans_lock = threading.Lock()

    # ------------------------------------------------------------------ life

    @property
    def is_running(self) -> bool:
        coordinator = self._coordinator
        return coordinator is not None and coordinator.is_alive()

    @property
    def coordinator_pid(self) -> int | None:
        return self._coordinator.pid if self._coordinator is not None else None

    def start(self, spawned: CoordinatorProcess | None = None) -> None:
        """Start the processes if they are not running; returns when the workers are ready.

        Args:
            spawned: a coordinator that was started ahead.

        Raises:
            EngineClosed: the workers cannot be started; the message says why.
        """
        with self._lock:
            if self.is_running:
                if spawned is not None:
                    spawned.discard()
                return
            self._end()
            if spawned is None:
                spawned = self._spawn("" if self._has_started else config.kill())
            self._coordinator, self._has_started = spawned, True
            let_idle_threads_sleep()
            try:
                self._idle.append(self._open_session())
            except BaseException:
                self._end(by_force=True)
                raise

    def _open_session(self) -> Session:
        if self._coordinator is None:
            raise EngineClosed(_CLOSED)
        require_descriptors(FOR_SESSION, "another thread that calls backward()")
        peer = f"c{os.getpid()}.{next(self._session_numbers)}"
        return Session(self._coordinator, peer)

    def close(self) -> None:
        """End all processes; views of their results stay readable.

        A backward that another thread is waiting for raises EngineClosed there.
        """
        with self._lock:
            if self._coordinator is not None:
                self._coordinator.is_closed = True
                self._end()

    def _end(self, *, by_force: bool = False) -> None:
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
            if coordinator is None:
                return
            if by_force or not self._idle:
                coordinator.kill()
            else:
                coordinator.finish_device_reads()
                self._idle[0].stop_engine()
            coordinator.wait()
            for session in self._idle:
                session.close()
            self._idle.clear()
            self._leased.clear()

    def abandon(self) -> None:
        """Forget everything without touching it: this is a forked child."""
        self._coordinator = None
        self._idle.clear()
        self._leased.clear()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Borrow a session; one that broke is not given back.

        An inner backward shares that of the outer one, whose thread waits for it anyway: thousands
        of nested ones need no more sockets than one.
        """
        running = innermost()
        outer = running.session if running is not None else None
        if outer is not None and outer[0] is self:
            yield outer[1]
            return
        with self._lock:
            self.start()
            coordinator = self._coordinator
            session = self._idle.pop() if self._idle else self._open_session()
            self._collect_released()
        # Before the graph is planned and packed: the coordinator books them meanwhile.
        session.send_releases()
        if running is not None:
            running.session = (self, session)
        try:
            yield session
        except (CoordinatorLost, EngineClosed):
            session.close()
            self._forget(coordinator)
            raise
        except BaseException:
            self._give_back(session, coordinator)
            raise
        finally:
            if running is not None:
                running.session = outer
        self._give_back(session, coordinator)

    def _give_back(self, session: Session, coordinator: CoordinatorProcess | None) -> None:
        with self._lock:
            self.counters.protocol_errors += session.refused_frames
            session.refused_frames = 0
            if coordinator is self._coordinator and self.is_running:
                self._idle.append(session)
            else:
                session.close()

    def _forget(self, coordinator: CoordinatorProcess | None) -> None:
        with self._lock:
            if coordinator is self._coordinator:
                self._end(by_force=True)

    def _collect_released(self) -> None:
        """Blocks whose last view has died go back to the sessions that hold them."""
        if self._coordinator is None:
            return
        released = self._coordinator.arena.released
        while released:
            session, block = self._leased.pop(released.popleft(), (None, None))
            if session is not None and block is not None:
                session.to_release.append(block)
        for idle in self._idle:
            idle.send_releases()

    def processes(self) -> Processes | None:
        """Who works for this engine; None while nothing runs."""
        if not self.is_running:
            return None
        try:
            with self._session() as session:
                return session.processes()
        except (CoordinatorLost, EngineClosed):
            return None

    # ------------------------------------------------------------------ one backward

    def plan(self, frozen: FrozenGraph) -> Plan:
        """The plan of a graph, from the cache if one like it ran before."""
        return self.prepare(frozen).plan

    @collector_held()
    def prepare(self, frozen: FrozenGraph) -> PreparedGraph:
        """What was made of a graph's tables, now or in an earlier step."""
        with self._plans_lock:
            return self._prepared.of(frozen.spec, may_recur=frozen.may_recur)

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run ``frozen``; as ``run_local``.

        Raises:
            Exception: what a rule or hook raised, as it is.
            WorkerLost, CoordinatorLost, SharedMemoryExhausted, EngineClosed: see ``mpgrad.errors``.
        """
        running = innermost()
        # An inner backward is part of a client task of the outer one, which cannot be repeated.
        is_inner = running is not None and running.session is not None
        if self._recover == "all" and not is_inner:
            return repeat_after_loss(lambda: self._attempt(frozen), self._note_recovery)
        return self._attempt(frozen)

    def _attempt(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        try:
            return self._execute(*place(frozen))
        except SavedTensorsUnreadable:
            # No user code has run yet: where there is some, `place` has looked for such Nodes.
            return self._execute(*place(frozen, check_saved=True))

    def _execute(self, frozen: FrozenGraph, code: dict[int, ShippedCode]) -> list[tuple[Any, bool]]:
        handover = Handover()
        profile = profiler.active()
        handover.is_timed = profile is not None
        is_complete = False
        try:
            with self._session() as session:
                graph = self.prepare(frozen)
                planned = graph.plan
                handover.learns = graph.learns()
                outcome, client = self._submit(session, frozen, graph, code, handover)
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
                self._forget(session.coordinator)  # it has no workers and can get none
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
        frozen: FrozenGraph,
        prepared: PreparedGraph,
        code: dict[int, Any],
        handover: Handover,
    ) -> tuple[CompleteGraph | FailGraph, ClientWorker]:
        if self._coordinator is None:
            raise EngineClosed(_CLOSED)
        graph, running = next(_graph_numbers), innermost()
        handover.engine_arena = self._coordinator.arena
        if self._coordinator.devices is not None:
            handover.devices = DeviceHandover(self._coordinator.devices)
        client = ClientWorker(frozen, prepared.plan, handover, self._coordinator.arena)
        submission = Submission(frozen, prepared, code, handover)
        first = submission.begin(
            session.peer, graph, running.depth if running is not None else 0, client,
            workers=session.workers, blas_threads=self._blas_threads,
        )  # fmt: skip

        def run_task(dispatch: DispatchNodeTask) -> NodeTaskDone | NodeTaskFailed:
            with blas_limit(self._blas_threads):
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
                    opened[ref] = self._lease(session, ref, meta)
                results.append((opened[ref], exclusive))
            else:
                if is_counted(ref):  # a GPU worker's: copied, because it would die with it
                    session.to_release.append(ref)
                results.append((handover.open(ref, meta), True))
        return results

    def _lease(self, session: Session, block: Block, meta: InputMetadata) -> Array:
        coordinator = self._coordinator
        if coordinator is None:
            raise EngineClosed(_CLOSED)
        self._leased[block.offset, block.generation] = (session, block)
        return coordinator.arena.open(
            block, meta.shape, meta.dtype, writeable=True, is_written=True, track=True
        )

    # ------------------------------------------------------------------ what came of it

    def _note_recovery(self) -> None:
        with self._lock:
            self.counters.recoveries += 1

    def _note(
        self,
        frozen: FrozenGraph,
        prepared: PreparedGraph,
        handover: Handover,
        outcome: CompleteGraph | FailGraph,
    ) -> None:
        """Count, and learn what the tasks took."""
        with self._lock:
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
            is_surprise = prepared.is_surprised_by(sum([ran[2] for ran in outcome.ran]))
            if is_surprise and frozen.remembered is not None:
                frozen.remembered.grow_young()
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
