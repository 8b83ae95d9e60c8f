"""run_in_workers(): one backward in workers: serialize, submit, wait, open the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.profiling.backward_run import BackwardRun, TaskRun
from mpgrad.autograd.profiling.ranges import (
    ENGINE,
    RUNNING,
    WAITING,
    NodeNotes,
    Range,
    Recording,
    current_run,
)
from mpgrad.autograd.profiling.task_times import unpack_times
from mpgrad.autograd.running.collector import collector_held_for
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.handles import ENGINE_ARENA, Block, is_counted
from mpgrad.base.processor_use import processor_use
from mpgrad.calls.custom_functions.loading import load_attributes
from mpgrad.engine.calls_in_workers import note_processes
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.cost_learning import learn, teach, that_ran
from mpgrad.engine.engine_statistics import Counters
from mpgrad.engine.failure import cause_of
from mpgrad.engine.graph_submission import GraphSubmission, RunOwn
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.placement import Placed
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.engine.progress_display import progress_shown
from mpgrad.engine.raised_on_worker import RaisedOnWorker, is_guess, without_second_run
from mpgrad.engine.session import Outcome, Session, next_graph_number
from mpgrad.engine.session_pool import SessionPool
from mpgrad.engine.spot_checks import SpotChecks
from mpgrad.errors import CoordinatorLost, ProtocolError
from mpgrad.scheduler.instructions import CompleteGraph, FailGraph, ForwardOutput
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.wire.output_record import (
    CHANGED,
    WARNING,
    ContextChanged,
    decode_as,
    replay_warnings,
)
from mpgrad.wire.remote_error import decode_error

Array: TypeAlias = np.ndarray[Any, Any]
T = TypeVar("T")


def run_in_workers(
    placed: Placed,
    graph: PreparedGraph,
    sessions: SessionPool,
    counters: Counters,
    options: EngineOptions,
    spot_checks: SpotChecks,
) -> list[tuple[Any, bool]]:
    """Run a graph. Thread-safe: each calling thread borrows a session of its own.

    Args:
        placed: the graph.
        graph: its plan.
        sessions: the sessions with the processes.
        counters: count the result.
        options: of the engine.
        spot_checks: which Functions run again in this process.

    Returns:
        As ``run_local``.

    Raises:
        Exception: the exception of a rule or hook, unchanged.
        ResultsDiffer: a Function that ran again gave another gradient.
        RaisedOnWorker: a Function did; nothing has changed here, so that the graph can run again.
        SavedTensorsUnreadable: some Node's saved tensors cannot be serialized.
        WorkerLost, CoordinatorLost, SharedMemoryExhausted, EngineClosed: see ``mpgrad.errors``.
    """
    frozen, planned = placed.frozen, graph.plan
    submission = GraphSubmission(frozen, graph, placed.code, placed.captured, sessions.initializer)
    recording = RUNNING.recording
    number, is_complete = next_graph_number(), False
    try:
        with sessions.session() as session:
            coordinator, submission.spot_checks = sessions.coordinator, spot_checks
            submission.connect(coordinator)
            submission.is_timed, submission.learns = recording is not None, graph.count_use()
            client = ClientWorker(
                placed, graph, submission, coordinator.arena, session.interrupts.user_code,
                options.blas_threads,
            )  # fmt: skip
            profiled = None if recording is None else _Profiled(recording, session, planned)
            messages = _submission(number, session, client, submission, profiled)
            with session.interrupts.deferred():  # until the results have a holder
                outcome, kept = _run(number, session, messages, client, planned, options)
                if isinstance(outcome, CompleteGraph):
                    results = _open_results(sessions, session, frozen, outcome, submission, client)
                    is_complete = True
            outcome = _with_own_failure(outcome, planned, client.own_failed)
            raised = _raised(outcome, frozen, planned, kept)
            _run_again_if_possible(raised, client)
            if isinstance(outcome, CompleteGraph):
                client.note_success()
                _learn(frozen, graph, submission, outcome, client)
                if profiled is not None:
                    profiled.note(frozen, submission, outcome)
            counters.note(submission, outcome, len(planned.tasks))
    finally:
        submission.close(is_complete=is_complete)
    if kept:
        replay_warnings(_of_kind(kept, WARNING), lambda task: planned.tasks[task].position)
    if isinstance(outcome, FailGraph):
        if outcome.kind == "lost" and outcome.task < 0:
            sessions.forget(coordinator)  # it has no workers and cannot start any
        raise _failure(outcome, placed, planned, client, raised)
    if kept:
        spot_checks.compare(kept, frozen, placed.code, options.blas_threads)
        _change_contexts(_of_kind(kept, CHANGED), placed)
    _release_saved(frozen)
    return results


def _submission(
    number: int,
    session: Session,
    client: ClientWorker,
    submission: GraphSubmission,
    profiled: _Profiled | None,
) -> Iterator[Any]:
    """The messages that submit a graph, after the client has run what it runs ahead of them."""
    ahead, running = client.run_ahead(), innermost()
    depth = running.depth if running is not None else 0
    submit = partial(submission.messages, session.peer, number, depth, session.workers, ahead)
    run_own = client.local_share()
    if profiled is None:
        return submit(run_own)
    return profiled.watched(submit(None if run_own is None else profiled.watching(run_own)))


def _run(
    number: int,
    session: Session,
    messages: Iterator[Any],
    client: ClientWorker,
    planned: Plan,
    options: EngineOptions,
) -> tuple[Outcome, list[ForwardOutput]]:
    """How the graph has ended, and the output of its workers."""
    pid, tasks = session.coordinator.pid, len(planned.tasks)
    try:
        with progress_shown(pid, tasks) if options.progress else nullcontext():
            outcome = session.run(messages, client.run)
    except CoordinatorLost as lost:
        lost.has_run_user_code = client.has_begun
        raise
    except RaisedOnWorker as unsent:
        _run_again_if_possible(unsent, client)
        raise without_second_run(unsent, unsent.error) from unsent.__cause__
    finally:
        kept = session.kept_of(number)
    return outcome, kept


def _run_again_if_possible(raised: RaisedOnWorker | None, client: ClientWorker) -> None:
    """Raise ``raised`` if any, unless user code has run here that must not run twice."""
    if raised is not None and client.may_run_again():
        client.restore()
        raise raised


def _with_own_failure(outcome: Outcome, planned: Plan, failed: int | None) -> Outcome:
    """What the serial engine would have met first: ``outcome``, or the failure of the calling
    thread's task, of which Node ``failed`` has raised."""
    if failed is None:
        return outcome
    own = FailGraph(outcome.peer, outcome.graph, "error", planned.local_share, b"", failed)
    if not isinstance(outcome, FailGraph) or outcome.kind != "error":
        return own
    return min(own, outcome, key=lambda end: planned.tasks[end.task].positions[end.step])


def _raised(
    outcome: Outcome, frozen: FrozenGraph, planned: Plan, shown: list[ForwardOutput]
) -> RaisedOnWorker | None:
    """What ended a graph, if that was a Function on a worker which may be right in this process."""
    if not isinstance(outcome, FailGraph) or outcome.kind != "error" or not outcome.error:
        return None
    node: Any = frozen.nodes[planned.groups[outcome.task][outcome.step].node]
    error = decode_error(outcome.error)
    return RaisedOnWorker(node.function, error, shown) if is_guess(node, error) else None


def _failure(
    outcome: FailGraph,
    placed: Placed,
    planned: Plan,
    client: ClientWorker,
    raised: RaisedOnWorker | None,
) -> BaseException:
    """The exception of a graph that failed, with the graph as the serial engine leaves it."""
    error = cause_of(outcome, placed.frozen, planned, client.errors.get(outcome.task))
    if outcome.kind == "error":
        client.release_before(planned.groups[outcome.task][outcome.step].node)
    return error if raised is None else without_second_run(raised, error)


def _of_kind(kept: list[ForwardOutput], kind: str) -> list[bytes]:
    return [output.data for output in kept if output.kind == kind]


def _change_contexts(told: list[bytes], placed: Placed) -> None:
    """Apply to each ctx the changes that its backward made in place on a worker."""
    for data in told:
        changed = decode_as(data, ContextChanged)
        node: Any = placed.frozen.nodes[changed.node]
        held = placed.code[changed.node].held
        buffers = [bytearray(buffer) for buffer in changed.buffers]
        vars(node.ctx).update(load_attributes(changed.attributes, buffers, held))


def _release_saved(frozen: FrozenGraph) -> None:
    if not frozen.keep_graph:
        for node, runs in zip(frozen.nodes, frozen.runs, strict=True):
            if runs:
                node.release_saved()


def _open_results(
    sessions: SessionPool,
    session: Session,
    frozen: FrozenGraph,
    outcome: CompleteGraph,
    submission: GraphSubmission,
    client: ClientWorker,
) -> list[tuple[Any, bool]]:
    """The captures as arrays; blocks of the engine's arena become leases of ``session``."""
    opened: dict[Block, Array] = {}
    results: list[tuple[Any, bool]] = []
    try:
        sessions.require_intact(session, outcome.captures, lambda at: _captured(frozen, at))
        with collector_held_for(len(frozen.sinks)):
            for (node, input_nr), ref, exclusive in zip(
                frozen.spec.captures, outcome.captures, outcome.exclusive, strict=True
            ):
                meta = frozen.nodes[node].input_metadata[input_nr]
                if not isinstance(ref, Block):
                    results.append((submission.open(ref, meta), True))
                elif ref.arena == ENGINE_ARENA:
                    if ref in opened:
                        # The session holds a block once per capture; one lease serves all of these.
                        session.to_release.append(ref)
                        # A Node may pass its gradient on in another shape or dtype.
                        array = opened[ref].view(meta.dtype).reshape(meta.shape)
                    else:
                        array = opened[ref] = sessions.lease(session, ref, meta)
                    results.append((array, exclusive))
                else:
                    if is_counted(ref):  # a GPU worker's: copied, since it dies with it
                        session.to_release.append(ref)
                    results.append((submission.open(ref, meta), True))
            for number, result in client.results.items():
                results[number] = result
    except ProtocolError as error:
        raise session.distrust(error) from error
    return results


def _captured(frozen: FrozenGraph, number: int) -> str:
    """A capture, in words."""
    node, input_nr = frozen.spec.captures[number]
    shape = list(frozen.nodes[node].input_metadata[input_nr].shape)
    return f"the gradient of shape {shape} for {frozen.spec.nodes[node].name}"


def _learn(
    frozen: FrozenGraph,
    graph: PreparedGraph,
    submission: GraphSubmission,
    outcome: CompleteGraph,
    client: ClientWorker,
) -> None:
    """Learn the costs of Nodes from the times of tasks, where that matters."""
    own_us = sum([took_us for _, took_us in client.own_times])
    known, took_us = frozen.remembered, sum([ran[2] for ran in outcome.ran], own_us)
    is_surprise = known is not None and known.is_surprised_by(took_us)
    if is_surprise:
        graph.grow_young()
    if is_surprise or submission.learns:
        learn(frozen, graph.plan, outcome)
        teach(frozen, client.own_times)


class _Profiled:
    """What a profile hears of one backward in workers.

    Args:
        recording: of the profile.
        session: to the processes.
        planned: the graph's plan.
    """

    def __init__(self, recording: Recording, session: Session, planned: Plan) -> None:
        self._recording, self._planned, self._began = recording, planned, perf_counter()
        self._run = current_run()
        #: The end of the submission, then that of the local share.
        self._waits_from: float | None = None
        note_processes(recording, session)
        if self._run is not None:
            self._run.plan, self._run.mode = planned, "process"
            self._run.workers = session.workers
        self._waited_before = self._waited()

    def _waited(self) -> float:
        """The seconds that the workers have been ready to run while others had the cores."""
        pids = self._recording.worker_pids.values()
        return sum([processor_use(pid).waited_ns for pid in pids]) / 1e9

    def watched(self, messages: Iterator[T]) -> Iterator[T]:
        """``messages``; notes when the last one was made."""
        yield from messages
        self._note_submission()

    def watching(self, run_own: RunOwn) -> RunOwn:
        """``run_own``; it is no part of the submission, nor of the waiting behind it."""

        def run() -> Any:
            self._note_submission()
            try:
                return run_own()
            finally:
                self._waits_from = perf_counter()

        return run

    def _note_submission(self) -> None:
        if self._waits_from is None:
            self._waits_from = submitted = perf_counter()
            self._recording.note("hand over", ENGINE, self._began, submitted)
            if self._run is not None:
                self._run.submitted = submitted

    def note(
        self, frozen: FrozenGraph, submission: GraphSubmission, outcome: CompleteGraph
    ) -> None:
        """When workers ran which Nodes; the waiting is over."""
        run, recording = self._run, self._recording
        recording.later(
            partial(
                _worker_ranges,
                run,
                recording.notes_of(run, frozen, range(len(frozen.nodes))),
                frozen.runs,
                self._planned,
                outcome.ran,
            )
        )
        if run is not None and self._waits_from is not None:
            recording.note("wait for workers", WAITING, self._waits_from, perf_counter())
            run.core_wait = max(self._waited() - self._waited_before, 0.0)
            run.handed_bytes = submission.handed_bytes
            run.copied_bytes += submission.copied_bytes


def _worker_ranges(
    run: BackwardRun | None,
    notes: NodeNotes,
    runs: Sequence[bool],
    planned: Plan,
    ran: Sequence[tuple[int, int, int, int, bytes | None]],
) -> Iterator[Range]:
    """The ranges of Nodes that workers ran, as ``ran`` reports them; ``run`` gets its tasks."""
    for task, slot, _, copied, times in ran:
        if times is None:
            continue
        found = unpack_times(times)
        where = TaskRun(task, slot, found.attempt, found.started, found.ended)
        members = that_ran(runs, planned.groups[task])
        yield from notes.ranges([member.node for member in members], found.nodes, where)
        if run is not None:
            run.tasks.append(where)
            run.copied_bytes += copied
