"""The results of ``Engine.statistics()``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpgrad.base.html_text import html_table
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.scheduler.instructions import CompleteGraph, FailGraph

if TYPE_CHECKING:
    from mpgrad.shm.hosts_board import HostFigures


class Counters:
    """Counts what an engine's workers have done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.backwards = self.failed = self.recoveries = 0
        self.handed_bytes = self.copied_bytes = self.through_host_bytes = 0
        #: NodeTasks by the process that ran them.
        self.tasks: Counter[str] = Counter()

    def note(
        self, submission: GraphSubmission, outcome: CompleteGraph | FailGraph, tasks: int
    ) -> None:
        """Count a backward of ``tasks`` NodeTasks that has ended."""
        with self._lock:
            self.handed_bytes += submission.handed_bytes
            self.copied_bytes += submission.copied_bytes
            if submission.devices is not None:
                self.through_host_bytes += submission.devices.take_host_bytes()
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
        """Count a backward that runs again."""
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


@dataclass(frozen=True, repr=False)
class EngineStatistics:
    """What an engine has done so far.

    Attributes:
        mode: "auto", "local" or "process".
        backwards_local, backwards_process: GraphTasks executed in this process and in workers.
        failed: GraphTasks that ended with an error.
        tasks: NodeTasks by the process that ran them: "worker 0", ..., "client".
        handed_bytes: bytes of saved arrays that workers were given, as handles or as copies.
        copied_bytes: bytes of those arrays and of gradients that had to be copied.
        through_host_bytes: bytes of copies between GPUs through host memory, because CUDA IPC does
            not work here.
        restarts: workers that were replaced after they died.
        recoveries: backwards that were run again because the coordinator had died.
        spot_checks: Functions that ran again in this process (``Engine(check=...)``).
        protocol_errors: messages that were refused: malformed, from a process that has not proved
            that it belongs to this engine, or with content that its sender may not send.
        compiled_graphs, compiled_nodes: graphs that this process keeps as source for ``local``,
            and their Nodes.
        branches, branch_bytes: the recorded calls of ``parallel_map`` and ``fork`` that may be
            differentiated, in this process and in workers; and what they hold.
        client_arena, engine_arena: the arenas of this process's tensors and of workers' results
            (None while no process runs).
        hosts: of ``Engine(cluster=...)``, and what each has done.
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
    branches: int = 0
    branch_bytes: int = 0
    client_arena: ArenaStatistics | None = None
    engine_arena: ArenaStatistics | None = None
    hosts: Sequence[HostFigures] = ()

    def __str__(self) -> str:
        """A line for each figure that is not 0."""
        shown = [(name, value) for name, value in self._figures() if value]
        width = max([len(name) for name, _ in shown])
        return "\n".join(
            f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value}"
            for name, value in shown
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(("", "so far"), self._figures())

    def _figures(self) -> list[tuple[str, object]]:
        rows: list[tuple[str, object]] = []
        for name, value in vars(self).items():
            if isinstance(value, ArenaStatistics):
                rows += [(f"{name}: {part}", figure) for part, figure in vars(value).items()]
            elif name == "hosts":
                rows += [(f"host {host.name}", host.in_words()) for host in self.hosts]
            elif name == "tasks":
                rows += [(f"tasks of {who}", count) for who, count in value.items()]
            else:
                rows.append((name, value))
        return rows
