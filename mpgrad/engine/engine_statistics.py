"""What an engine says about itself: ``Engine.statistics()`` and ``Engine.explain()``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpgrad.engine.handover import Handover
from mpgrad.engine.placement import Placed, reason
from mpgrad.scheduler.instructions import CompleteGraph, FailGraph
from mpgrad.scheduler.plan_tables import Plan


class Counters:
    """What an engine's workers have done so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.backwards = self.failed = self.recoveries = 0
        self.handed_bytes = self.copied_bytes = self.through_host_bytes = 0
        #: NodeTasks by who ran them.
        self.tasks: Counter[str] = Counter()

    def note(self, handover: Handover, outcome: CompleteGraph | FailGraph, tasks: int) -> None:
        """One more backward, of so many ``tasks``, has ended."""
        with self._lock:
            self.handed_bytes += handover.handed_bytes
            self.copied_bytes += handover.copied_bytes
            if handover.devices is not None:
                self.through_host_bytes += handover.devices.take_host_bytes()
            if isinstance(outcome, FailGraph):
                self.failed += 1
                return
            self.backwards += 1
            for _, slot, _, copied, _ in outcome.ran:
                self.tasks[f"worker {slot}"] += 1
                self.copied_bytes += copied
            if on_client := tasks - len(outcome.ran):
                self.tasks["client"] += on_client

    def note_recovery(self) -> None:
        """A backward runs again."""
        with self._lock:
            self.recoveries += 1


@dataclass(frozen=True)
class ArenaStatistics:
    """Bytes and blocks of one shared arena."""

    used_bytes: int
    idle_bytes: int
    live_blocks: int
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class EngineStatistics:
    """What an engine has done so far.

    Attributes:
        mode: "auto", "local" or "process".
        backwards_local, backwards_process: GraphTasks that were executed here and on workers.
        failed: those that ended with an error.
        tasks: NodeTasks by who ran them: "worker 0", ..., "client".
        handed_bytes: of saved arrays that workers were given, as handles or as copies.
        copied_bytes: of those and of gradients, what had to be copied.
        through_host_bytes: of the latter, what went between GPUs through host memory, because CUDA
            IPC does not work here.
        restarts: workers that were replaced after they died.
        recoveries: backwards that were run again because the coordinator had died.
        spot_checks: Functions that ran again in this process (``Engine(check=...)``).
        protocol_errors: messages that were refused: malformed, or from a process that has not
            proved to belong to this engine, or with what their sender may not say.
        compiled_graphs, compiled_nodes: graphs that this process keeps as source, which ``local``
            runs, and the Nodes of all of them.
        client_arena, engine_arena: the arenas of this process's tensors and of workers' results
            (None while no process runs).
    """

    mode: str
    backwards_local: int = 0
    backwards_process: int = 0
    failed: int = 0
    tasks: Mapping[str, int] = field(default_factory=dict)
    handed_bytes: int = 0
    copied_bytes: int = 0
    through_host_bytes: int = 0
    restarts: int = 0
    recoveries: int = 0
    spot_checks: int = 0
    protocol_errors: int = 0
    compiled_graphs: int = 0
    compiled_nodes: int = 0
    client_arena: ArenaStatistics | None = None
    engine_arena: ArenaStatistics | None = None


@dataclass(frozen=True)
class ExplainedNode:
    """Where one Node would run. ``task`` numbers the NodeTask that it belongs to."""

    name: str
    task: int
    where: str
    cost_us: float
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What a backward would do; print it.

    Attributes:
        mode: "local" or "process", as the engine would choose now.
        reason: for that choice.
        work_us: of all Nodes, one after another, in microseconds.
        critical_path_us: of the longest chain of NodeTasks; no number of workers beats it.
        nodes: in the order of the serial engine.
        source: what ``local`` runs from the third backward of such a graph on, or why it runs a
            loop over the Nodes; None unless it was asked for.
    """

    mode: str
    reason: str
    work_us: float
    critical_path_us: float
    nodes: tuple[ExplainedNode, ...]
    source: str | None = None

    def __str__(self) -> str:
        head = (
            f"{len(self.nodes)} nodes in {len({node.task for node in self.nodes})} tasks, "
            f"{self.work_us / 1000:.2f} ms of work, critical path "
            f"{self.critical_path_us / 1000:.2f} ms\nmode: {self.mode} ({self.reason})"
        )
        width = max((len(node.name) for node in self.nodes), default=4)
        rows = [
            f"{node.name:<{width}}  task {node.task:>4}  {node.where:<6}  "
            f"{node.cost_us:>10.1f} us  {node.reason}"
            for node in self.nodes
        ]
        return "\n".join([head, *rows, *([] if self.source is None else ["", self.source])])


def explain(placed: Placed, planned: Plan, mode: str, why: str) -> Explanation:
    """The Explanation of a placed and planned graph."""
    nodes = []
    for index in placed.frozen.spec.order:
        spec = placed.frozen.spec.nodes[index]
        place = "client" if spec.on_client or mode == "local" else "worker"
        nodes.append(
            ExplainedNode(
                spec.name, planned.task_of[index], place, spec.cost_us, reason(placed, index)
            )
        )
    return Explanation(mode, why, planned.work_us, planned.critical_path_us, tuple(nodes))
