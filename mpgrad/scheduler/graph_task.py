"""GraphTask: the tables of one running backward.

    running -> completed                    every task is done
    running -> draining -> failed           nothing new is dispatched; what is in flight lands
                                            or is declared lost, so that every lease closes
After an error it runs on until all is settled that comes before the error in the serial order.
What a NodeTask goes through stands in ``TRANSITIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mpgrad.base.handles import GradientRef
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler.input_buffer import InputBuffer
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec


class TaskState(Enum):
    NOT_READY = "not_ready"
    READY = "ready"
    DISPATCHED = "dispatched"
    DONE = "done"


class Transition(NamedTuple):
    """A NodeTask's next state, and what changes in the counts of its GraphTask with that."""

    state: TaskState
    outstanding_tasks: int = 0
    remaining: int = 0


#: (state, what happens) -> what follows. Anything else violates an invariant.
TRANSITIONS = {
    (TaskState.NOT_READY, "inputs complete"): Transition(TaskState.READY, outstanding_tasks=1),
    (TaskState.READY, "dispatched"): Transition(TaskState.DISPATCHED),
    (TaskState.DISPATCHED, "lost"): Transition(TaskState.READY),
    (TaskState.DISPATCHED, "done"): Transition(TaskState.DONE, outstanding_tasks=-1, remaining=-1),
}


class GraphPhase(Enum):
    RUNNING = "running"
    DRAINING = "draining"


@dataclass
class GraphTask:
    """One backward. Only the coordinator's core changes it."""

    #: The coordinator's number for this graph; unique while the coordinator lives.
    number: int
    #: The session that submitted it, and the number that the session knows it by.
    owner: str
    name: int
    #: Reentrant depth: 0 for a backward that no other backward started.
    depth: int
    #: The results, None until captured (or for an undefined gradient).
    captures: list[GradientRef]
    phase: GraphPhase = GraphPhase.RUNNING
    #: True once the last chunk of tables has arrived; before that it cannot complete.
    is_whole: bool = False
    specs: list[NodeTaskSpec] = field(default_factory=list)
    #: Devices (and ON_CPU) whose workers it needs, each once.
    devices: list[int] = field(default_factory=list)
    states: list[TaskState] = field(default_factory=list)
    #: Contributions and control edges that each task still waits for.
    dependencies: list[int] = field(default_factory=list)
    #: Buffers of the tasks that have got something and are not done. A dispatched task keeps its
    #: buffer, so that it can be run again.
    buffers: dict[int, InputBuffer] = field(default_factory=dict)
    #: Arrivals (task, slot, place, reference; slot -1: control) before the task's tables came.
    early: list[tuple[int, int, int, GradientRef]] = field(default_factory=list)
    #: Per running task (absent: none) the outputs that it, or an attempt of it that was lost, has
    #: published before its end. They stay with their consumers and are not delivered again.
    published: dict[int, set[int]] = field(default_factory=dict)
    #: Per task (absent: none) attempts begun, deaths of workers that were running it, and how many
    #: of these deaths were by SIGKILL.
    attempts: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    kills: dict[int, int] = field(default_factory=dict)
    #: For each task that a worker has run: see ``CompleteGraph.ran``.
    ran: list[tuple[int, int, int, int, bytes | None]] = field(default_factory=list)
    #: |ready| + |dispatched|, and tasks not done: the graph is complete when both are 0.
    outstanding_tasks: int = 0
    remaining: int = 0
    #: Why it drains: kind, task, error, step (see FailGraph).
    failure: tuple[str, int, bytes, int] | None = None
    #: Of the errors so far the first one in the serial order: position, task, error, step.
    first_error: tuple[int, int, bytes, int] | None = None
    #: Ready tasks that will not run, because they come after that error.
    skipped: int = 0

    def extend(self, tasks: tuple[NodeTaskSpec, ...], is_whole: bool, done: int = 0) -> list[int]:
        """Add a chunk of tables, the first of them ``done``; the tasks that are ready at once."""
        if not 0 <= done <= len(tasks):
            raise ProtocolError(f"{done} of {len(tasks)} tasks of graph {self.name} are done")
        first = len(self.specs)
        self.specs.extend(tasks)
        for spec in tasks[done:]:
            if not spec.on_client and spec.device not in self.devices:
                self.devices.append(spec.device)
        self.states.extend([TaskState.DONE] * done)
        self.states.extend([TaskState.NOT_READY] * (len(tasks) - done))
        self.dependencies.extend(spec.dependencies for spec in tasks)
        self.remaining += len(tasks) - done
        self.is_whole = is_whole
        ready = [
            first + at for at, spec in enumerate(tasks) if at >= done and spec.dependencies == 0
        ]
        for task in ready:
            self._apply(task, "inputs complete")
        early, self.early = self.early, []
        for task, slot, place, ref in early:
            is_ready = self.unlock(task) if slot < 0 else self.deliver(task, slot, place, ref)
            if is_ready:
                ready.append(task)
        return ready

    def deliver(self, task: int, slot: int, place: int, ref: GradientRef) -> bool:
        """A contribution arrives; True if the task became ready by it."""
        if task == CAPTURE:
            self.captures[slot] = ref
            return False
        if self._is_early(task, slot, place, ref):
            return False
        if task not in self.buffers:
            self.buffers[task] = InputBuffer.empty(self.specs[task].places)
        self.buffers[task].fill(slot, place, ref)
        return self.unlock(task)

    def unlock(self, task: int) -> bool:
        """One dependency less; True if the task became ready by it."""
        if self._is_early(task, -1, -1, None):
            return False
        self.dependencies[task] -= 1
        if self.dependencies[task] < 0:
            raise InvariantViolated(f"task {task} got more than its dependencies")
        if self.dependencies[task] == 0:
            self._apply(task, "inputs complete")
            return True
        return False

    def _is_early(self, task: int, slot: int, place: int, ref: GradientRef) -> bool:
        """Put an arrival aside if its task's tables have not come yet."""
        if task < len(self.specs):
            return False
        if self.is_whole:
            raise ProtocolError(f"graph {self.name} has no task {task}")
        self.early.append((task, slot, place, ref))
        return True

    def dispatch(self, task: int) -> int:
        """A worker gets the task; the number of this attempt."""
        self._apply(task, "dispatched")
        self.attempts[task] = self.attempts.get(task, 0) + 1
        return self.attempts[task]

    def requeue(self, task: int) -> None:
        """Its worker died."""
        self._apply(task, "lost")

    def finish(self, task: int) -> None:
        """Its reply was accepted."""
        self._apply(task, "done")

    def _apply(self, task: int, happening: str) -> None:
        transition = TRANSITIONS.get((self.states[task], happening))
        if transition is None:
            state = self.states[task].value
            raise InvariantViolated(f"task {task} is {state}, and cannot be: {happening}")
        self.states[task] = transition.state
        self.outstanding_tasks += transition.outstanding_tasks
        self.remaining += transition.remaining

    def note_error(self, task: int, step: int, error: bytes) -> None:
        """Node ``step`` of a task raised: it counts if no earlier one did."""
        spec = self.specs[task]
        position = (spec.position, *spec.inner_positions)[step]
        if self.first_error is None or position < self.first_error[0]:
            self.first_error = (position, task, error, step)

    def is_wanted(self, task: int) -> bool:
        """Whether a serial engine would have come to the task, or to what needs it, before it
        failed."""
        spec = self.specs[task]
        return (
            self.first_error is None or min(spec.position, spec.needed_from) < self.first_error[0]
        )

    @property
    def is_settled(self) -> bool:
        """True when it has failed and no earlier error can come any more."""
        return (
            self.first_error is not None
            and self.is_whole
            and self.outstanding_tasks == self.skipped
        )

    @property
    def is_complete(self) -> bool:
        """True when every task is done; reached exactly once."""
        return (
            self.is_whole
            and self.remaining == 0
            and self.outstanding_tasks == 0
            and self.first_error is None
        )
