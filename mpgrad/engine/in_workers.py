"""run_in_workers(): one backward in workers: hand over, submit, wait, open the results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd import profiler
from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.running.collector import collector_held
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.handles import ENGINE_ARENA, Block, is_counted
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.engine_statistics import Counters
from mpgrad.engine.failure import cause_of
from mpgrad.engine.handover import Handover
from mpgrad.engine.learning import learn, that_ran
from mpgrad.engine.placement import Placed
from mpgrad.engine.prepared import PreparedGraph
from mpgrad.engine.session import Outcome, Session
from mpgrad.engine.session_pool import SessionPool
from mpgrad.engine.spot_checks import SpotChecks
from mpgrad.errors import CoordinatorLost, ProtocolError
from mpgrad.scheduler.instructions import CompleteGraph, FailGraph, ForwardOutput
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.shipping.loading import load_attributes
from mpgrad.wire.output_record import (
    CHANGED,
    RUN,
    WARNING,
    ContextChanged,
    decode_as,
    replay_warnings,
)

Array: TypeAlias = np.ndarray[Any, Any]

_graph_numbers = itertools.count(1)


def run_in_workers(
    placed: Placed,
    graph: PreparedGraph,
    sessions: SessionPool,
    counters: Counters,
    blas_threads: int,
    spot_checks: SpotChecks,
) -> list[tuple[Any, bool]]:
    """Run a graph; thread-safe, since each calling thread borrows a session of its own.

    Args:
        placed: the graph.
        graph: its plan.
        sessions: with the processes.
        counters: hear what came of it.
        blas_threads: of what runs in this process.
        spot_checks: which Functions run again here.

    Returns:
        As ``run_local``.

    Raises:
        Exception: what a rule or hook raised, as it is.
        ResultsDiffer: a Function that ran again gave another gradient.
        SavedTensorsUnreadable: some Node's saved tensors cannot be handed over.
        WorkerLost, CoordinatorLost, SharedMemoryExhausted, EngineClosed: see ``mpgrad.errors``.
    """
    frozen, planned = placed.frozen, graph.plan
    handover = Handover(frozen, graph, placed.code)
    number, running, profile = next(_graph_numbers), innermost(), profiler.active()
    is_complete = False
    try:
        with sessions.session() as session:
            coordinator = sessions.coordinator
            handover.connect(coordinator)
            handover.spot_checks = spot_checks
            handover.is_timed, handover.learns = profile is not None, graph.learns()
            client = ClientWorker(
                placed, graph, handover, coordinator.arena, session.interrupts.user_code,
                blas_threads,
            )  # fmt: skip
            # A task that all others wait for is run right here if it is next to nothing.
            ahead = client.run_ahead() if planned.opens_alone else None
            depth = running.depth if running is not None else 0
            messages = handover.messages(session.peer, number, depth, session.workers, ahead)
            with session.interrupts.deferred():  # until somebody holds the results
                outcome = _run(session, messages, client)
                kept = session.kept_of(number)
                if isinstance(outcome, CompleteGraph):
                    results = _open_results(sessions, session, frozen, outcome, handover)
                    is_complete = True
            if isinstance(outcome, CompleteGraph):
                _learn(frozen, graph, handover, outcome)
                if profile is not None:
                    _note_times(profile, frozen, planned, outcome)
            counters.note(handover, outcome, len(planned.tasks))
    finally:
        handover.close(is_complete=is_complete)
    replay_warnings(_of_kind(kept, WARNING), lambda task: planned.tasks[task].position)
    if isinstance(outcome, FailGraph):
        if outcome.kind == "lost" and outcome.task < 0:
            sessions.forget(session.coordinator)  # it has no workers and can get none
        elif outcome.kind == "error":
            client.release_before(planned.groups[outcome.task][outcome.step].node)
        raise cause_of(outcome, frozen, planned, client.error)
    spot_checks.compare(_of_kind(kept, RUN), frozen, placed.code, blas_threads)
    _change_contexts(_of_kind(kept, CHANGED), placed)
    _release_saved(frozen)
    return results


def _run(session: Session, messages: Iterator[Any], client: ClientWorker) -> Outcome:
    try:
        return session.run(messages, client.run)
    except CoordinatorLost as lost:
        lost.has_run_user_code = client.has_begun
        raise


def _of_kind(kept: list[ForwardOutput], kind: str) -> list[bytes]:
    return [output.data for output in kept if output.kind == kind]


def _change_contexts(told: list[bytes], placed: Placed) -> None:
    """What backward has changed in place on its ctx a later backward finds there."""
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


@collector_held()
def _open_results(
    sessions: SessionPool,
    session: Session,
    frozen: FrozenGraph,
    outcome: CompleteGraph,
    handover: Handover,
) -> list[tuple[Any, bool]]:
    """The captures as arrays; blocks of the engine's arena become leases of ``session``."""
    opened: dict[Block, Array] = {}
    results: list[tuple[Any, bool]] = []
    try:
        for (node, input_nr), ref, exclusive in zip(
            frozen.spec.captures, outcome.captures, outcome.exclusive, strict=True
        ):
            meta = frozen.nodes[node].input_metadata[input_nr]
            if isinstance(ref, Block) and ref.arena == ENGINE_ARENA:
                if ref in opened:
                    # The session holds a block once per capture, but one lease serves them all.
                    session.to_release.append(ref)
                else:
                    opened[ref] = sessions.lease(session, ref, meta)
                results.append((opened[ref], exclusive))
            else:
                if is_counted(ref):  # a GPU worker's: copied, because it would die with it
                    session.to_release.append(ref)
                results.append((handover.open(ref, meta), True))
    except ProtocolError as error:
        raise session.distrust(error) from error
    return results


def _learn(
    frozen: FrozenGraph, graph: PreparedGraph, handover: Handover, outcome: CompleteGraph
) -> None:
    """Learn what the tasks took, where that teaches something."""
    known, took_us = frozen.remembered, sum([ran[2] for ran in outcome.ran])
    is_surprise = known is not None and known.is_surprised_by(took_us)
    if is_surprise:
        graph.grow_young()
    if is_surprise or handover.learns:
        learn(frozen, graph.plan, outcome)


def _note_times(
    profile: profiler.profile, frozen: FrozenGraph, planned: Plan, outcome: CompleteGraph
) -> None:
    """Tell the profile when workers ran which Nodes."""
    for task, slot, _, _, times in outcome.ran:
        if times is not None:
            ran = [member.node for member in that_ran(frozen, planned.groups[task])]
            profile.note_nodes(frozen, ran, profiler.unpack_times(times), worker=slot)
