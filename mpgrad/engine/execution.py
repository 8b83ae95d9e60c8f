"""Execution: runs frozen graphs for one Engine, here or in its processes, and says where."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from mpgrad import config
from mpgrad.autograd import costs, engine_slot
from mpgrad.autograd.freeze import freeze
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.higher_order.recording import has_only_operators, record, with_inputs_captured
from mpgrad.autograd.running.collector import collector_held
from mpgrad.device_arrays import CUDA
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.choice import WORTH_A_LOOK_US, Choice, choose, gpus_of, too_small
from mpgrad.engine.idle_threads import let_idle_threads_sleep
from mpgrad.engine.local import run_local
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.placement import Placed, place, warn_of_serial_functions
from mpgrad.engine.prepared import PreparedGraph
from mpgrad.engine.process_engine import ProcessEngine
from mpgrad.engine.statistics import ArenaStatistics, EngineStatistics, Explanation, explain
from mpgrad.shm.arena import client_arena
from mpgrad.standard_streams import say
from mpgrad.tensor import Tensor, gradient_edge

if TYPE_CHECKING:
    from mpgrad.engine.processes import CoordinatorProcess

#: From this size on a local backward of operators holds the garbage collector off.
HELD_ABOVE_NODES = 1000


class _Ready(NamedTuple):
    """A graph before it runs: where, and as far as that was asked, who runs its Nodes, and how."""

    choice: Choice
    placed: Placed | None = None
    graph: PreparedGraph | None = None


class Execution:
    """What an Engine does its backwards with.

    Args:
        options: of the Engine.
        spawn: starts a coordinator.
    """

    def __init__(self, options: EngineOptions, spawn: Callable[[], CoordinatorProcess]) -> None:
        self._options = options
        self._new_process = partial(ProcessEngine, options, spawn)
        self.process = self._new_process()
        self._local_count = self._local_failed = 0

    def start_anew_in_child(self) -> None:
        """After a fork: the processes belong to the parent."""
        self.process.sessions.abandon()
        self.process = self._new_process()

    # ------------------------------------------------------------------ one backward

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run a frozen graph; see ``autograd.engine_slot``."""
        ready = self._get_ready(frozen)
        if config.debug():
            self._report(frozen, ready)
        if ready.placed is not None:
            warn_of_serial_functions(ready.placed)
        if ready.choice.mode == "process" and ready.placed is not None and ready.graph is not None:
            if self._effective_mode() == "process" or self.process.sessions.is_running:
                with self._timed("process", ready):
                    return self.process.execute(ready.placed, ready.graph)
            self._start_in_background()  # `auto` does not wait for it
        with self._counted_locally(), self._timed("local", ready):
            if len(frozen.nodes) >= HELD_ABOVE_NODES and has_only_operators(frozen):
                with collector_held():
                    return run_local(frozen)
            return run_local(frozen)

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run a frozen graph under ``create_graph``; see ``higher_order.recording``.

        Operators run wherever the engine would run them. A graph with hooks or custom Functions
        runs here: they get recorded tensors.
        """
        if has_only_operators(frozen):
            watched = with_inputs_captured(frozen)
            arrays = [array for array, _ in self.execute(watched)]
            captured = dict(zip(watched.spec.captures, arrays, strict=True))
            return record(frozen, seeds, captured)
        with self._counted_locally():
            return record(frozen, seeds)

    @contextmanager
    def _counted_locally(self) -> Iterator[None]:
        """A backward of this process: with as many BLAS threads as a worker has."""
        self._local_count += 1
        try:
            with blas_limit(self._options.blas_threads):
                yield
        except BaseException:
            self._local_failed += 1
            raise

    def _effective_mode(self) -> str:
        return "local" if engine_slot.is_local() or sys.platform != "linux" else self._options.mode

    def _get_ready(self, frozen: FrozenGraph) -> _Ready:
        """Place, plan and choose, each once, and only as far as it takes to know the mode."""
        mode = self._effective_mode()
        if CUDA.in_use and (gpus := gpus_of(frozen)):
            missing = [gpu for gpu in gpus if gpu not in self._options.gpus]
            if mode != "process" or missing:
                why = f"it has Nodes on GPU {gpus[0]}"
                return _Ready(Choice("local", f"{why}, which has no worker" if missing else why))
        choice = Choice(mode, f'Engine(mode="{self._options.mode}")') if mode != "auto" else None
        if choice is None:
            choice = too_small(frozen, self._options.cpu_workers)
        if choice is not None and choice.mode == "local":
            return _Ready(choice)
        placed = place(frozen)
        graph = self.process.prepare(placed.frozen)
        if choice is None:
            workers, cost = self._options.cpu_workers, self.process.sessions.handover_cost
            choice = choose(graph.plan, workers, cost)
            if frozen.may_recur:
                choice = graph.experience.correct(choice, graph.plan.work_us)
        return _Ready(choice, placed, graph)

    @contextmanager
    def _timed(self, mode: str, ready: _Ready) -> Iterator[None]:
        """``auto`` remembers what a backward took, where one like it may come again."""
        started = perf_counter()
        yield
        if self._options.mode == "auto" and ready.graph is not None:
            took_us = (perf_counter() - started) * 1e6
            if took_us >= WORTH_A_LOOK_US:
                ready.graph.experience.note(mode, took_us)

    def _start_in_background(self) -> None:
        """Start the processes beside this and the next local backward."""
        let_idle_threads_sleep()
        name = f"mpgrad-starter-{id(self)}"
        if not any(thread.name == name for thread in threading.enumerate()):
            threading.Thread(
                target=_start_quietly, args=(self.process,), name=name, daemon=True
            ).start()

    # ------------------------------------------------------------------ questions

    def explain(self, tensor: Tensor) -> Explanation:
        """See ``Engine.explain``."""
        if not tensor.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn"
            )
        edges = [gradient_edge(tensor)]
        frozen = freeze(edges, [None], keep_graph=True, cost=costs.estimate)
        return self._explain(frozen, self._get_ready(frozen))

    def _explain(self, frozen: FrozenGraph, ready: _Ready) -> Explanation:
        placed = ready.placed or place(frozen)
        planned = (ready.graph or self.process.prepare(placed.frozen)).plan
        return explain(placed, planned, *ready.choice)

    def _report(self, frozen: FrozenGraph, ready: _Ready) -> None:
        """MPGRAD_DEBUG=1 tells of each backward, 2 of each of its nodes."""
        text = f"{ready.choice.mode} ({ready.choice.reason})"
        if config.debug() >= 2:
            text = str(self._explain(frozen, ready))
        say(f"backward: {text}")

    def statistics(self) -> EngineStatistics:
        """See ``Engine.statistics``."""
        counters = self.process.counters
        processes = self.process.processes()
        arena = client_arena().statistics()
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
            restarts=processes.restarts if processes is not None else 0,
            protocol_errors=self.process.sessions.refused_frames
            + (processes.protocol_errors if processes is not None else 0),
            client_arena=ArenaStatistics(
                arena.used_bytes,
                arena.idle_bytes,
                arena.live_blocks,
                arena.peak_bytes,
                arena.limit_bytes,
            ),
            engine_arena=ArenaStatistics(*processes.arena) if processes is not None else None,
        )


def _start_quietly(process: ProcessEngine) -> None:
    # Whoever needs the processes starts them again and gets the error.
    with contextlib.suppress(Exception):
        process.sessions.start()
