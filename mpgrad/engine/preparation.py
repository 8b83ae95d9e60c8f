"""Preparation: makes of a frozen graph what runs: place, plan, choose, each once."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from functools import partial
from typing import NamedTuple

from mpgrad.autograd import engine_slot
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.running.collector import collector_held
from mpgrad.device_arrays import CUDA
from mpgrad.engine.choice import Choice, HandoverCost, choose, gpus_of, too_small
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.placement import Placed, keep_unreadable, place
from mpgrad.engine.prepared import PreparedGraph
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_cache import MakePlan, PlanCache


class Ready(NamedTuple):
    """A graph before it runs: where, and as far as that was asked, who runs its Nodes, and how."""

    choice: Choice
    placed: Placed | None = None
    graph: PreparedGraph | None = None


class Preparation:
    """Thread-safe. What it finds out about a graph that comes again it keeps.

    Args:
        options: of the Engine.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._make_plan: MakePlan = partial(
            plan, workers=options.cpu_workers, gpu_workers=Counter(options.gpus)
        )
        #: What a plan depends on beside the graph.
        self._plans_for = options.cpu_workers, options.gpus
        #: Plans of graphs that are not recognised before their tables are made.
        self._others = PlanCache(self._make_plan)
        self._lock = threading.Lock()

    def ready(self, frozen: FrozenGraph, cost: HandoverCost) -> Ready:
        """Place, plan and choose, only as far as it takes to know the mode.

        Args:
            frozen: the graph.
            cost: what messages take.
        """
        choice = self._choice_without_plan(frozen)
        if choice is not None and choice.mode == "local":
            return Ready(choice)
        placed = place(frozen)
        graph = self.plan_of(placed.frozen)
        if choice is None:
            choice = choose(graph.plan, self._options.cpu_workers, cost)
            if frozen.may_recur:
                choice = graph.experience.correct(choice, graph.plan.work_us)
        return Ready(choice, placed, graph)

    def _choice_without_plan(self, frozen: FrozenGraph) -> Choice | None:
        mode = self.mode()
        if CUDA.in_use and (gpus := gpus_of(frozen)):
            missing = [gpu for gpu in gpus if gpu not in self._options.gpus]
            if mode != "process" or missing:
                why = f"it has Nodes on GPU {gpus[0]}"
                return Choice("local", f"{why}, which has no worker" if missing else why)
        if mode != "auto":
            return Choice(mode, f'Engine(mode="{self._options.mode}")')
        return too_small(frozen, self._options.cpu_workers)

    def mode(self) -> str:
        """The mode that is in force on this thread now."""
        return "local" if engine_slot.is_local() or sys.platform != "linux" else self._options.mode

    @collector_held()
    def plan_of(self, frozen: FrozenGraph) -> PreparedGraph:
        """The plan of a placed graph, and what else was made of its tables now or in an earlier
        step."""
        known, spec = frozen.remembered, frozen.spec
        with self._lock:
            if known is None:
                return PreparedGraph(spec, self._others.plan(spec))
            graph: PreparedGraph | None = known.prepared.get(self._plans_for)
            if graph is None:
                graph = PreparedGraph.made(spec, self._make_plan)
            elif not graph.serves(spec):
                graph = graph.renewed(spec, self._make_plan)
            known.keep_prepared(self._plans_for, graph)
            return graph

    def without_unreadable(self, placed: Placed) -> tuple[Placed, PreparedGraph]:
        """The same graph, where Nodes whose saved tensors cannot be read stay in the client."""
        placed = keep_unreadable(placed)
        return placed, self.plan_of(placed.frozen)
