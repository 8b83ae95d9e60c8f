"""BackwardRun: one backward as a profile saw it: its graph, its plan, and which task ran when.

Tables only: no Node and no array is kept, so a profile holds no memory of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import Plan


class TaskRun(NamedTuple):
    """One NodeTask that ran; times in seconds of ``perf_counter``."""

    task: int
    #: The worker's slot, -1 for the calling process.
    worker: int
    attempt: int
    started: float
    ended: float


#: Stands for the task of Nodes that are in none.
NO_TASK = TaskRun(-1, -1, 1, 0.0, 0.0)


class Queued(NamedTuple):
    """A TaskRun, and since when nothing but a free process was missing."""

    run: TaskRun
    ready: float

    @property
    def waited(self) -> float:
        """Seconds in queues and messages."""
        return max(self.run.started - self.ready, 0.0)


@dataclass
class BackwardRun:
    """What one ``backward()`` or ``grad()`` did.

    Attributes:
        number: which one of the profile.
        spec: the graph; ``spec.nodes`` has the index that ranges name.
        started, ended: seconds of ``perf_counter``.
        mode: "local" or "process"; why: the reason for it.
        on_client: why Functions ran in the calling process although nobody had asked for that.
        loops: of ``Function.apply`` in forward, in words.
        plan: its NodeTasks; None where it ran in this process without one.
        workers: how many CPU workers the engine has.
        submitted: when the last task had been submitted; None in ``local``.
        tasks: those that ran, in the order in which that became known.
        core_wait: the seconds that its workers, all together, were ready to run while other
            processes had the cores; 0 where the kernel does not tell.
        handed_bytes, copied_bytes: of saved arrays that workers were given, and how much of those
            and of gradients had to be copied.
    """

    number: int
    spec: GraphSpec
    started: float
    ended: float = 0.0
    mode: str = "local"
    why: str = ""
    on_client: Mapping[int, str] = field(default_factory=dict)
    loops: tuple[str, ...] = ()
    plan: Plan | None = None
    workers: int = 1
    submitted: float | None = None
    tasks: list[TaskRun] = field(default_factory=list)
    core_wait: float = 0.0
    handed_bytes: int = 0
    copied_bytes: int = 0

    def queued(self) -> list[Queued]:
        """The tasks in the order of their starts, each with the time when it was ready.

        A task is ready when all that it waits for has ended, at the earliest when its graph was
        being submitted. What a task publishes on its way counts as there when it ends.
        """
        if self.plan is None:
            return []
        ended = {run.task: run.ended for run in self.tasks}
        ready = dict.fromkeys(ended, self.started)
        for task in range(len(self.plan.tasks)):
            if task in ended:
                for successor in _successors(self.plan, task):
                    if successor in ready:
                        ready[successor] = max(ready[successor], ended[task])
        return [
            Queued(run, min(ready[run.task], run.started))
            for run in sorted(self.tasks, key=lambda run: run.started)
        ]

    def is_of_worker(self, run: TaskRun) -> bool:
        """Whether a worker ran it, or the calling thread as one of the workers."""
        return run.worker >= 0 or (self.plan is not None and run.task == self.plan.local_share)

    def gradient_bytes(self) -> list[tuple[float, int]]:
        """Bytes of the blocks between tasks, each time they change: from the beginning of the task
        that writes one to the end of the one that reads it."""
        queued = self.queued()
        ended = {item.run.task: item.run.ended for item in queued}
        changes = []
        for item in queued:
            for output in self.plan.tasks[item.run.task].outputs if self.plan else ():
                changes.append((item.run.started, output.nbytes))
                changes.append((ended.get(output.task, self.ended), -output.nbytes))
        total, found = 0, []
        for when, change in sorted(change for change in changes if change[1]):
            total += change
            found.append((when, total))
        return found


def _successors(plan: Plan, task: int) -> Sequence[int]:
    """The tasks that wait for ``task``, each once."""
    spec = plan.tasks[task]
    found = dict.fromkeys(output.task for output in spec.outputs if output.task >= 0)
    found.update(dict.fromkeys(spec.unlocks))
    return list(found)
