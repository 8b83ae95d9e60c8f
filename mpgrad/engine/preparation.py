"""Preparation: places, plans and chooses for a frozen graph, each once, and keeps the results."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from functools import partial
from typing import NamedTuple

from mpgrad.arrays.cpu.column_parts import shape_of
from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.arrays.cuda.gpu_nodes import gpus_of
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, expected_of
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.collector import collector_held
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base import machine
from mpgrad.calls.fork_function import has_branches_in_workers, recorded_together
from mpgrad.engine.choice import (
    Choice,
    Experience,
    Experiences,
    Mode,
    predict,
    structure_of,
    too_serial,
    too_small,
)
from mpgrad.engine.local_tasks import LocalTask, ahead_of
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.placement import Placed, keep_unreadable, place
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import MakePlan, PlanCache, are_near, costs_of, plan, structure
from mpgrad.scheduler.plan_tables import InnerTarget, Member, Plan
from mpgrad.wire.programs import (
    CaptureRule,
    NodeProgram,
    OperatorRule,
    Wiring,
    encode_plain,
    encode_wiring,
)


class Ready(NamedTuple):
    """A graph before it runs: the mode, and if known the place and plan of its Nodes."""

    choice: Choice
    placed: Placed | None = None
    graph: PreparedGraph | None = None
    #: Where the time of the backward is recorded; None if no times were compared.
    experience: Experience | None = None


class Preparation:
    """Prepares graphs, and remembers the results for cached graphs. Thread-safe.

    Args:
        options: of the Engine.

    Attributes:
        message_us: the cost of a message in microseconds.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        #: Why no workers can be started; then ``auto`` is ``local``.
        self.unavailable: str | None = None
        # A handler of a signal may run a backward of its own while a graph is planned.
        self._lock = threading.RLock()
        self._experiences = Experiences()
        self._plan_with(tuning.MESSAGE_US)

    def expect_message_us(self, message_us: float) -> None:
        """Set the cost of a message; if it differs much from before, graphs are planned again."""
        with self._lock:
            if abs(message_us - self.message_us) > tuning.DRIFT_MAX * self.message_us:
                self._plan_with(message_us)

    def _plan_with(self, message_us: float) -> None:
        workers, gpus = self._options.cpu_workers, self._options.gpus
        # Not where the user asked for worker processes, which protect the program.
        takes_part = self._options.mode == "auto"
        #: What a Node counts as at least, where costs are compared. In a worker it takes so long
        #: around its rule. ``auto`` compares the work with that in this process.
        self._least_us = 0.0 if takes_part else tuning.CALL_US
        self.message_us = message_us
        self._make_plan: MakePlan = collector_held()(
            partial(
                plan,
                workers=workers,
                gpu_workers=Counter(gpus),
                client_takes_part=takes_part,
                message_us=message_us,
            )
        )
        #: All that a plan depends on beside the graph.
        self._plans_for = workers, gpus, takes_part, message_us
        #: Plans of graphs that cannot be recognised before their tables are made.
        self._others = PlanCache(self._make_plan, self._least_us)

    def here(self, frozen: FrozenGraph) -> Ready | None:
        """What :meth:`ready` gave for these tables, if that was ``local``."""
        known = frozen.remembered
        if known is None or known.here is None or CUDA.in_use:
            return None
        spec, plans_for, mode, ready = known.here
        if spec is not frozen.spec or plans_for is not self._plans_for or mode != self.mode():
            return None
        if mode == "auto" and has_branches_in_workers(frozen.nodes):
            return None
        return ready  # type: ignore[no-any-return]

    def ready(self, frozen: FrozenGraph, *, has_workers: bool) -> Ready:
        """Place, plan and choose, only as far as is necessary to know the mode.

        Args:
            frozen: the graph.
            has_workers: whether workers are running.
        """
        known, mode = frozen.remembered, self.mode()
        ready = self._ready(frozen, mode, has_workers=has_workers)
        is_kept = ready.placed is None and ready.experience is None and not _is_inner()
        if known is not None and is_kept:
            known.here = (frozen.spec, self._plans_for, mode, ready)
        return ready

    def _ready(self, frozen: FrozenGraph, mode: str, *, has_workers: bool) -> Ready:
        choice = self._choice_without_plan(frozen, mode)
        if choice is not None and choice.mode == "local":
            return Ready(choice)
        known = self._known_plan(frozen) if choice is None else None
        chosen: Choice | None = None
        if known is not None:
            is_valid, experience = known.serves(frozen.spec), self._experience(known)
            if is_valid:
                chosen = self._choose(known, has_workers=has_workers)
            else:
                chosen = _choose_alike(experience, frozen.spec, has_workers=has_workers)
            if chosen is not None and (chosen.mode == "local" or not has_workers):
                return Ready(chosen, None, known if is_valid else None, experience)
            if not is_valid:
                known = None
        placed = place(frozen)
        if choice is None and not self._is_planned(placed.frozen):
            ready = self._ready_without_plan(placed, has_workers=has_workers)
            if ready is not None:
                return ready
        graph = self.plan_of(placed.frozen)
        if choice is not None:
            return Ready(choice, placed, graph)
        if chosen is None or graph is not known:
            chosen = self._choose(graph, has_workers=has_workers)
        return Ready(chosen, placed, graph, graph.experience)

    def _known_plan(self, frozen: FrozenGraph) -> PreparedGraph | None:
        """The plan for these tables if there is one, be it for other costs: a graph that runs here
        needs no places."""
        known = frozen.remembered
        graph: PreparedGraph | None = None
        if known is not None and not CUDA.in_use:
            graph = known.prepared.get(self._plans_for)
        return graph

    def _choose(self, graph: PreparedGraph, *, has_workers: bool) -> Choice:
        predicted = predict(graph.plan, self._options.cpu_workers, self.message_us)
        return self._experience(graph).choose(
            predicted, has_workers=has_workers, shapes=graph.shapes
        )

    def _ready_without_plan(self, placed: Placed, *, has_workers: bool) -> Ready | None:
        """``local`` if that is known to be faster for such graphs; else None."""
        spec = placed.frozen.spec
        with self._lock:
            experience = self._experiences.of(structure_of(spec))
        choice = _choose_alike(experience, spec, has_workers=has_workers)
        if choice is None or choice.mode != "local":
            return None
        return Ready(choice, placed, None, experience)

    def _choice_without_plan(self, frozen: FrozenGraph, mode: str) -> Choice | None:
        if CUDA.in_use and (gpus := gpus_of(frozen.nodes)):
            missing = [gpu for gpu in gpus if gpu not in self._options.gpus]
            if mode != "process" or missing:
                why = f"it has Nodes on GPU {gpus[0]}"
                return Choice("local", f"{why}, which has no worker" if missing else why)
        if mode != "auto":
            asked = self._options.mode
            reason = self.unavailable if asked == "auto" else None
            if mode == "process" and _is_inner() and not has_branches_in_workers(frozen.nodes):
                small = too_small(frozen, self._options.cpu_workers, self.message_us)
                if small is not None:  # a Function that calls grad() hundreds of times
                    return small._replace(reason=f"an inner backward of {small.reason}")
            return Choice(mode, reason or f'Engine(mode="{asked}")')
        if has_branches_in_workers(frozen.nodes):
            return Choice("process", "workers have recorded its branches")
        shared = self._options.shared
        if (
            shared is not None
            and too_small(frozen, machine.available_cpus(), self.message_us) is None
        ):
            shared.say_once()
        choice = too_small(frozen, self._options.cpu_workers, self.message_us)
        if choice is None and not self._is_planned(frozen):
            choice = too_serial(frozen, self.message_us)
        return choice

    def _is_planned(self, frozen: FrozenGraph) -> bool:
        known = frozen.remembered
        return known is not None and self._plans_for in known.prepared

    def note(self, ready: Ready, mode: Mode, took_us: float) -> None:
        """Record a time for ``auto``. It does not count if the graph ran here only because the
        workers were starting, which took time from it."""
        if ready.experience is None:
            return
        if ready.choice.mode == mode:
            ready.experience.note(mode, took_us, ready.choice)
        else:
            ready.experience.begin(mode, took_us)

    def start_after_us(self, ready: Ready) -> float:
        """The time after which workers are worth their start; infinite if this backward is
        shorter."""
        if ready.experience is None:
            return 0.0
        ends_before = ready.experience.ends_before_start()
        return math.inf if ends_before else ready.experience.start_after_us

    def _experience(self, graph: PreparedGraph) -> Experience:
        if graph.experience is None:
            with self._lock:
                graph.experience = self._experiences.of(structure_of(graph.spec))
        return graph.experience

    def mode(self) -> str:
        """The mode in force on this thread now."""
        mode = self._options.mode
        if mode == "auto" and self.unavailable is not None:
            return "local"
        return "local" if engine_slot.is_local() or sys.platform != "linux" else mode

    def plan_of(self, frozen: FrozenGraph) -> PreparedGraph:
        """The plan of a placed graph, and the other results for its tables, cached or new."""
        known, spec = frozen.remembered, frozen.spec
        together = recorded_together(frozen.nodes)
        with self._lock:
            if known is None:
                return PreparedGraph(spec, self._others.plan(spec, together), together)
            graph: PreparedGraph | None = known.prepared.get(self._plans_for)
            if graph is None or graph.together != together or not graph.serves(spec):
                plan = self._make_plan(spec, together=together)
                graph = PreparedGraph(spec, plan, together, self._least_us)
                known.keep_prepared(self._plans_for, graph)
            return graph

    def without_unreadable(self, placed: Placed) -> tuple[Placed, PreparedGraph]:
        """The same graph, with Nodes whose saved tensors cannot be read in the client."""
        placed = keep_unreadable(placed)
        return placed, self.plan_of(placed.frozen)


def _choose_alike(experience: Experience, spec: GraphSpec, *, has_workers: bool) -> Choice | None:
    """The choice for a graph without a plan; None if too little is known."""
    predicted = experience.predict_alike(sum([node.cost_us for node in spec.nodes]))
    if predicted is None:
        return None
    return experience.choose(predicted, has_workers=has_workers, shapes=shapes_of(spec))


def _is_inner() -> bool:
    """Whether the current backward runs inside of another one."""
    running = innermost()
    return running is not None and running.depth > 0


# ---------------------------------------------------------------------- kept beside the tables


def shapes_of(spec: GraphSpec) -> int:
    """A number that is equal for graphs of one structure whose gradients have the same sizes."""
    return hash(tuple([node.input_nbytes for node in spec.nodes]))


class PreparedGraph:
    """What an engine makes of a graph's tables once and uses in each step of a loop.

    A graph like an earlier one has the very same tables (``frozen_graphs.cached_graphs``). So its
    plan, the wiring of its Nodes and everything else that is the same in each step are kept beside
    the tables and found without a comparison.

    Args:
        spec: the tables.
        plan: the plan of these tables.
        together: see ``recorded_together``.
        least_us: what a Node counts as at least, where costs are compared.
    """

    def __init__(
        self, spec: GraphSpec, plan: Plan, together: tuple[int, ...] = (), least_us: float = 0.0
    ) -> None:
        self.spec, self.plan, self.together, self._least_us = spec, plan, together, least_us
        self.shapes = shapes_of(spec)
        #: Shared by all graphs of this structure; set on first use.
        self.experience: Experience | None = None
        self._wirings: dict[Member, Wiring] = {}
        self._programs: list[list[NodeProgram | bytes] | None] = [None] * len(plan.tasks)
        self._ahead: LocalTask | None = None
        self._local_share: LocalTask | None = None
        self._uses = 0
        self._planned_for = costs_of(spec, least_us)

    def serves(self, spec: GraphSpec) -> bool:
        """Whether the plan is still good for ``spec``, the same graph with perhaps other costs.

        If so, its costs become those of ``spec``. A plan that is no longer the best is slower,
        never wrong.
        """
        if spec is not self.spec:
            costs = costs_of(spec, self._least_us)
            if structure(spec) != structure(self.spec) or not are_near(costs, self._planned_for):
                return False
            self.spec = spec
        return True

    def grow_young(self) -> None:
        """Learn the costs again: they have turned out to be wrong."""
        self._uses = 0

    def count_use(self) -> bool:
        """Count one more use; whether the cost model should learn from this one."""
        self._uses += 1
        return self._uses <= tuning.SAMPLES or self._uses % tuning.SAMPLES == 0

    def ahead(self, frozen: FrozenGraph) -> LocalTask | None:
        """The first task of graphs with these tables; None if it must not run ahead."""
        if self._ahead is None and self.plan.opens_alone:
            self._ahead = ahead_of(frozen, self.plan)
        return self._ahead

    def local_share(self, frozen: FrozenGraph) -> LocalTask | None:
        """The task of the calling thread, for graphs with these tables; None if it has none."""
        if self._local_share is None and self.plan.local_share >= 0:
            self._local_share = LocalTask(frozen, self.plan, self.plan.local_share)
        return self._local_share

    def wiring(self, frozen: FrozenGraph, member: Member) -> Wiring:
        """The wiring around the rule of a task's Node, for graphs with these tables."""
        found = self._wirings.get(member)
        if found is None:
            found = self._wirings[member] = wiring_of(frozen, member)
        return found

    def programs(self, frozen: FrozenGraph, task: int) -> list[NodeProgram | bytes]:
        """One entry per member of a task, for graphs with these tables.

        It is the whole program if that is the same in every step, otherwise only the encoded
        wiring.
        """
        found = self._programs[task]
        if found is None:
            found = [_program_of(frozen, member) for member in self.plan.groups[task]]
            self._programs[task] = found
        return found


def _program_of(frozen: FrozenGraph, member: Member) -> NodeProgram | bytes:
    wiring, node = encode_wiring(wiring_of(frozen, member)), frozen.nodes[member.node]
    if member.piece_of is not None or not frozen.runs[member.node]:
        return NodeProgram(CaptureRule(), wiring)
    if isinstance(node, OperatorNode):
        needs = [info is not None for info in node.input_info]
        if node.operator.asks_for_shapes_alone(needs):
            rule = OperatorRule(node.operator.name, {}, {}, encode_plain(node.plain))
            return NodeProgram(rule, wiring)
    return wiring


def wiring_of(frozen: FrozenGraph, member: Member) -> Wiring:
    """The sources and targets of the gradients of ``member``."""
    node, spec = frozen.nodes[member.node], frozen.spec.nodes[member.node]
    if member.piece_of is not None:
        metadata = (node.input_metadata[member.piece_of],)
        return Wiring(f"Sum({node.label})", metadata, (), (), member.captures)
    return Wiring(
        spec.name,
        node.input_metadata,
        _outputs(frozen, member),
        tuple(
            [
                (route.member, route.input_nr) if isinstance(route, InnerTarget) else route
                for route in member.routes
            ]
        ),
        member.captures,
        node.takes_undefined,
        node.passes_on,
        member.publishes,
        member.parts,
    )


def _outputs(frozen: FrozenGraph, member: Member) -> tuple[InputMetadata | None, ...]:
    """What the consumers of its outputs expect; of a Node that was cut, the shape of its parts."""
    outputs = expected_of(frozen, member.node)
    if member.parts is not None and outputs[0] is not None:
        count = len(frozen.spec.nodes[member.node].part_nbytes)
        shape = shape_of(outputs[0].shape, member.parts, count)
        outputs[0] = outputs[0]._replace(shape=shape)
    return tuple(outputs)
