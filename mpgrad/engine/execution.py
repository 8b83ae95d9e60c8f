"""Execution: runs frozen graphs for one Engine, in this process or in workers."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.higher_order.recording import has_only_operators, record, with_inputs_captured
from mpgrad.autograd.profiling.backward_run import BackwardRun
from mpgrad.autograd.profiling.ranges import RUNNING, span
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.standard_streams import say
from mpgrad.calls.fork_function import map_times
from mpgrad.calls.initializing import Initializer
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.engine import compiled
from mpgrad.engine.blas import blas_limit, let_idle_threads_sleep
from mpgrad.engine.calls_in_workers import Answered, Chunks, run_calls
from mpgrad.engine.choice import Experiences, Mode
from mpgrad.engine.engine_statistics import ArenaStatistics, Counters, EngineStatistics
from mpgrad.engine.explanation import Explanation, explain
from mpgrad.engine.graph_submission import SavedTensorsUnreadable
from mpgrad.engine.in_workers import run_in_workers
from mpgrad.engine.local import run_local, run_local_until
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.placement import (
    Placed,
    place,
    slow_loops_of,
    warn_of_serial_functions,
    warn_of_slow_loop,
)
from mpgrad.engine.preparation import Preparation, PreparedGraph, Ready
from mpgrad.engine.raised_on_worker import RaisedOnWorker, succeeded_here, without_repeats
from mpgrad.engine.session_pool import SessionPool
from mpgrad.engine.spot_checks import SpotChecks
from mpgrad.engine.submitter import OF_PARENT, Submitter
from mpgrad.errors import CoordinatorLost, EngineClosed
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge
from mpgrad.shm.arena import client_arena
from mpgrad.wire.captured_state import CapturedState
from mpgrad.wire.schema import Processes

if TYPE_CHECKING:
    from mpgrad.engine.cluster.host_calls import HostCalls
    from mpgrad.engine.coordinator_start import CoordinatorProcess

P = ParamSpec("P")
T = TypeVar("T")

#: The maps whose times are kept, the last used ones.
MAPS_MAX = 1024


class Execution:
    """Runs the backwards of an Engine. Thread-safe.

    Args:
        options: of the Engine.
        spawn: starts a coordinator.
        hosts: run calls in place of its workers.
    """

    def __init__(
        self,
        options: EngineOptions,
        spawn: Callable[[], CoordinatorProcess],
        hosts: HostCalls | None = None,
    ) -> None:
        self._options, self.hosts = options, hosts
        function = options.initializer
        self._initializer = None if function is None else Initializer(function, options.initargs)
        self.preparation = Preparation(options)
        self.sessions = SessionPool(spawn, self.preparation.expect_message_us, self._initializer)
        #: What maps have taken in each mode, by their function and number of items.
        self.maps = Experiences(MAPS_MAX)
        self._counters = Counters()
        self._spot_checks = SpotChecks(options.check)
        self._local_count = self._local_failed = 0
        #: Runs calls for which nobody waits yet.
        self.submitter: Submitter | HostCalls = hosts or self._new_submitter()
        if hosts is not None:
            weakref.finalize(self, hosts.let_go)

    def _new_submitter(self) -> Submitter:
        return Submitter(self.sessions, partial(may_call_again, self._options.recover))

    def start_anew_in_child(
        self, options: EngineOptions, spawn: Callable[[], CoordinatorProcess]
    ) -> None:
        """After a fork: the processes belong to the parent, and so does its share of the cores."""
        self._options = options
        self.sessions.abandon()
        self.preparation = Preparation(options)
        self.sessions = SessionPool(spawn, self.preparation.expect_message_us, self._initializer)
        self.maps = Experiences(MAPS_MAX)
        self._counters = Counters()
        lost = EngineClosed(OF_PARENT)
        for submission in self.submitter.abandon():
            submission.fail(lost)
        self.submitter, self.hosts = self._new_submitter(), None

    # ------------------------------------------------------------------ one backward

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Prepare a frozen graph and run it; see ``autograd.running.engine_slot``."""
        recording = RUNNING.recording
        if recording is None or engine_slot.is_inside_rule():
            return self._execute(frozen, None)
        with recording.backward(frozen.spec) as run:
            return self._execute(frozen, run)

    def _execute(self, frozen: FrozenGraph, profiled: BackwardRun | None) -> list[tuple[Any, bool]]:
        if self.hosts is not None:
            from mpgrad.engine.cluster.branches_ahead import has_branches_on_hosts, run_with_hosts

            if has_branches_on_hosts(frozen):
                return self._here(run_with_hosts, frozen, self.hosts)
        started = perf_counter()
        timed = map_times(frozen.nodes) if self._options.mode == "auto" else ()
        with span("plan"):
            ready = self._ready(frozen)
        if self._options.debug:
            self._report(frozen, ready)
        placed, graph = ready.placed, ready.graph
        if profiled is not None:
            profiled.why = ready.choice.reason
            profiled.loops = tuple(map(str, slow_loops_of(frozen)))
        if placed is not None:
            warn_of_serial_functions(placed)
            if self.workers > 1:
                warn_of_slow_loop(placed)
            if profiled is not None:
                profiled.spec, profiled.on_client = placed.frozen.spec, placed.unasked
        mode: Mode = "local"
        if ready.choice.mode != "process":
            results = self._here(run_local, frozen, teaches=self._options.mode != "local")
        elif placed is None or graph is None or not self._has_workers():
            start_after_us = self.preparation.start_after_us(ready)
            if start_after_us == math.inf:
                results = self._here(run_local, frozen)
                ready = ready._replace(choice=ready.choice._replace(mode="local"))
            else:
                start_at = started + start_after_us / 1e6
                results = self._here(self._until_workers_are_ready, frozen, start_at)
        else:
            results, mode = self._in_workers(frozen, placed, graph)
        if mode == "local":
            self.sessions.note_idle()
        # `auto` learns what a backward took.
        took_us = (perf_counter() - started) * 1e6
        self.preparation.note(ready, mode, took_us)
        for map_time in timed:
            map_time.add(took_us)
        return results

    def _in_workers(
        self, frozen: FrozenGraph, placed: Placed, graph: PreparedGraph
    ) -> tuple[list[tuple[Any, bool]], Mode]:
        """Run a graph in workers, or in the end here. The result says where."""
        recoveries = 0
        while True:
            try:
                results = run_in_workers(
                    placed,
                    graph,
                    self.sessions,
                    self._counters,
                    self._options,
                    self._spot_checks,
                )
                return results, "process"
            except RaisedOnWorker as found:
                raised = found
                break  # outside of this block, so that an error has no context that says nothing
            except SavedTensorsUnreadable:
                # No user code has run: a graph with user code was searched for such Nodes before.
                placed, graph = self.preparation.without_unreadable(placed)
            except CoordinatorLost as lost:
                if self._options.recover != "all" or not may_run_again(lost, recoveries):
                    raise
                recoveries += 1
                self._counters.note_recovery()
        with without_repeats(raised.shown):
            results = self._here(run_local, frozen)
        succeeded_here(raised)
        return results, "local"

    def _ready(self, frozen: FrozenGraph) -> Ready:
        preparation = self.preparation
        ready = preparation.here(frozen)
        if ready is None:
            ready = preparation.ready(frozen, has_workers=self._has_workers())
        return ready

    def _has_workers(self) -> bool:
        """Whether a graph need not run here until workers are ready."""
        return self._options.mode == "process" or self.sessions.is_ready

    def _until_workers_are_ready(
        self, frozen: FrozenGraph, start_at: float
    ) -> list[tuple[Any, bool]]:
        """Run here; start the workers at that time, and run there what is left then if that is
        faster."""
        is_started = False

        def are_ready() -> bool:
            nonlocal is_started
            if not is_started and perf_counter() >= start_at:
                self._start_in_background()
                is_started = True
            # A profile is of one graph.
            return RUNNING.recording is None and self.sessions.is_ready

        results, rest = run_local_until(frozen, are_ready)
        if rest is not None:
            choice, placed, graph, _ = self._ready(rest.graph)
            if placed is None or graph is None or choice.mode != "process":
                others = run_local(rest.graph)
            else:
                others, _ = self._in_workers(rest.graph, placed, graph)
            for number, result in zip(rest.results, others, strict=True):
                results[number] = result
        return results

    # ------------------------------------------------------------------ calls forward

    def run_calls(
        self, chunks: Chunks, captured: CapturedState, keep: PackedArrays
    ) -> list[Answered]:
        """Run calls in workers; see ``calls_in_workers.run_calls``. They change nothing in this
        process, so they run again if the coordinator dies."""
        if self.hosts is not None:
            return self.hosts.run_calls(chunks, captured, keep)
        recoveries = 0
        while True:
            try:
                return run_calls(chunks, self.sessions, self._options.progress, captured, keep)
            except CoordinatorLost as lost:
                if not may_call_again(self._options.recover, lost, recoveries):
                    raise
                recoveries += 1
                self._counters.note_recovery()

    @property
    def workers(self) -> int:
        """The number of CPU workers that the engine has or would have."""
        return self._options.cpu_workers if self.hosts is None else max(self.hosts.workers, 1)

    @property
    def are_workers_ready(self) -> bool:
        """Whether calls could begin at once."""
        return self.hosts is not None or self.sessions.is_ready

    @property
    def ended_branches(self) -> deque[tuple[int, int]]:
        """The branches of workers that nobody will differentiate; any thread appends."""
        return self.sessions.ended_branches if self.hosts is None else self.hosts.ended

    @property
    def shm_limit(self) -> int:
        """The bytes that the arena of the workers may hold."""
        return self._options.shm_limit

    def blas_limit(self) -> AbstractContextManager[None]:
        """BLAS with the number of threads that workers have."""
        return blas_limit(self._options.blas_threads)

    def initialize_here(self) -> None:
        """Run the engine's initializer in this process, if it has one that has not run."""
        if self._initializer is not None:
            self._initializer.run_here()

    def start_for_calls(self) -> bool:
        """Start the processes in the background; whether they are ready."""
        if self.are_workers_ready:
            return True
        self._start_in_background()
        return False

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run a frozen graph under ``create_graph``; see ``autograd.higher_order.recording``.

        Operators run wherever the engine chooses. A graph with hooks or custom Functions runs in
        this process, because they get recorded tensors.
        """
        if has_only_operators(frozen):
            watched = with_inputs_captured(frozen)
            arrays = [array for array, _ in self.execute(watched)]
            captured = dict(zip(watched.spec.captures, arrays, strict=True))
            return record(frozen, seeds, captured)
        return self._here(record, frozen, seeds)

    def _here(self, run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a backward in this process, with the number of BLAS threads that workers have."""
        self._local_count += 1
        try:
            with blas_limit(self._options.blas_threads):
                return run(*args, **kwargs)
        except BaseException:
            self._local_failed += 1
            raise

    def _start_in_background(self) -> None:
        """Start the processes while this backward and later ones run locally, unless that has
        failed, perhaps since this backward has begun."""
        if self.preparation.unavailable is not None:
            return
        let_idle_threads_sleep()
        name = f"mpgrad-starter-{id(self)}"
        if not any(thread.name == name for thread in threading.enumerate()):
            threading.Thread(target=self._start_quietly, name=name, daemon=True).start()

    def _start_quietly(self) -> None:
        """Start the processes; if they cannot be started, say so once, and stay here."""
        preparation, sessions = self.preparation, self.sessions
        try:
            sessions.start(in_background=True)
        except Exception as error:
            if not sessions.is_closed and preparation.unavailable is None:
                reason = str(error).replace("\n", " ")
                preparation.unavailable = f"no workers can be started: {reason}"
                say(f"backwards run in this process, because {preparation.unavailable}")

    # ------------------------------------------------------------------ questions

    def explain(self, tensor: Tensor, source: bool) -> Explanation:
        """See ``Engine.explain``."""
        if not tensor.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn"
            )
        edges = [gradient_edge(tensor)]
        frozen = freeze(edges, [None], keep_graph=True, cost=costs.estimate)
        ready = self._ready(frozen)
        found = self._explain(frozen, ready)
        return replace(found, source=compiled.source_of(frozen)) if source else found

    def _explain(self, frozen: FrozenGraph, ready: Ready) -> Explanation:
        placed = ready.placed or place(frozen)
        planned = (ready.graph or self.preparation.plan_of(placed.frozen)).plan
        return explain(placed, planned, ready.choice.mode, ready.choice.reason)

    def _report(self, frozen: FrozenGraph, ready: Ready) -> None:
        """Print each backward with MPGRAD_DEBUG=1, and each of its nodes with 2."""
        text = f"{ready.choice.mode} ({ready.choice.reason})"
        if self._options.debug >= 2:
            text = self._explain(frozen, ready).table()
        say(f"backward: {text}")

    def statistics(self) -> EngineStatistics:
        """See ``Engine.statistics``."""
        counters, processes = self._counters, self.processes()
        return EngineStatistics(
            mode=self._options.mode,
            backwards_local=self._local_count,
            backwards_process=counters.backwards,
            failed=counters.failed + self._local_failed,
            tasks=dict(sorted(counters.tasks.items())),
            handed_bytes=counters.handed_bytes,
            copied_bytes=counters.copied_bytes,
            through_host_bytes=counters.through_host_bytes,
            recoveries=counters.recoveries,
            spot_checks=self._spot_checks.count,
            restarts=processes.restarts if processes is not None else 0,
            protocol_errors=self.sessions.refused_frames
            + (processes.protocol_errors if processes is not None else 0),
            compiled_graphs=compiled.kept.count()[0],
            compiled_nodes=compiled.kept.count()[1],
            branches=len(BRANCHES) + (processes.branches if processes is not None else 0),
            branch_bytes=BRANCHES.nbytes + (processes.branch_bytes if processes is not None else 0),
            client_arena=_figures_of_client_arena(),
            engine_arena=ArenaStatistics(*processes.arena) if processes is not None else None,
            hosts=() if self.hosts is None else self.hosts.figures(),
        )

    def processes(self) -> Processes | None:
        """The processes of this engine; None while they are not running."""
        if not self.sessions.is_running:
            return None
        try:
            with self.sessions.session() as session:
                return session.processes()
        except (CoordinatorLost, EngineClosed):
            return None


def _figures_of_client_arena() -> ArenaStatistics:
    try:
        arena = client_arena().statistics()
    except OSError:
        return ArenaStatistics(0, 0, 0, 0, 0)  # no shared memory here: tensors lie on the heap
    return ArenaStatistics(
        arena.used_bytes,
        arena.idle_bytes,
        arena.live_blocks,
        arena.peak_bytes,
        arena.limit_bytes,
    )


# ---------------------------------------------------------------------- when the coordinator dies

#: The number of lost coordinators after which a backward fails: it may be their cause.
RECOVERIES_MAX = 3


def may_call_again(recover: str, lost: CoordinatorLost, recoveries: int) -> bool:
    """Whether calls whose coordinator died may run again, after as many ``recoveries``."""
    return recover == "all" and recoveries < RECOVERIES_MAX


def may_run_again(lost: CoordinatorLost, recoveries: int) -> bool:
    """Whether a backward whose coordinator died may run again, after as many ``recoveries``.

    All its data still exist: saved tensors are released after it has completed, ``.grad`` is
    changed after that, and its own arrays lie in this process's arena. Only user code that has run
    in this process may not run twice.
    """
    running = innermost()
    # An inner backward is part of a client task of the outer one, which cannot be repeated.
    is_inner = running is not None and running.session is not None
    if is_inner or recoveries >= RECOVERIES_MAX:
        return False
    if lost.has_run_user_code:
        lost.add_note(
            "The backward was not run again, because hooks or Functions of it had already run in "
            "this process."
        )
    return not lost.has_run_user_code
