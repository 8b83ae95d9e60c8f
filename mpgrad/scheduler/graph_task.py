"""GraphTask: the tables of one running backward, and what may happen to it and to its NodeTasks.

``GRAPH_TRANSITIONS`` is the life of a graph, ``TASK_TRANSITIONS`` that of a NodeTask. Nothing else
changes a phase or a state. To see both tables:

    python -c "from mpgrad.scheduler.graph_task import *; print(transitions_as_text())"

A draining graph dispatches nothing more; every task in flight is answered or lost, so that every
lease closes. After an error a graph goes on until every task before it in the serial order is
settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from mpgrad.base.handles import Block, GradientRef
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec


class GraphPhase(StrEnum):
    RUNNING = "running"
    DRAINING = "draining"
    COMPLETED = "completed"
    FAILED = "failed"


class GraphEvent(StrEnum):
    """What happens to a graph, whoever reports it."""

    EXTENDED = "its caller sends tables, gradients or a failure"
    CANCELLED = "its caller cancels it, or is gone"
    TASK_PUBLISHED = "a running task gives outputs"
    TASK_DONE = "a task is done"
    TASK_FAILED = "a task raises"
    TASK_LOST = "a task is lost with its process"
    TASK_DROPPED = "a worker returns a task unrun"
    HOPELESS = "a task, a device or memory is given up"
    ALL_DONE = "every task is done"
    ERROR_FINAL = "no error can come before the first one any more"
    ALL_LANDED = "none of its tasks is in flight"


class GraphTransition(NamedTuple):
    """The next phase of a graph, and the method of CoordinatorState that does the rest."""

    phase: GraphPhase
    action: str


_RUNNING, _DRAINING = GraphPhase.RUNNING, GraphPhase.DRAINING

#: (phase, event) -> transition. Any other pair violates an invariant.
GRAPH_TRANSITIONS = {
    (_RUNNING, GraphEvent.EXTENDED): GraphTransition(_RUNNING, "extend"),
    (_RUNNING, GraphEvent.TASK_PUBLISHED): GraphTransition(_RUNNING, "publish"),
    (_RUNNING, GraphEvent.TASK_DONE): GraphTransition(_RUNNING, "deliver_the_rest"),
    (_RUNNING, GraphEvent.TASK_FAILED): GraphTransition(_RUNNING, "skip_what_comes_later"),
    (_RUNNING, GraphEvent.TASK_LOST): GraphTransition(_RUNNING, "enqueue"),
    (_RUNNING, GraphEvent.TASK_DROPPED): GraphTransition(_RUNNING, "refuse"),
    (_RUNNING, GraphEvent.CANCELLED): GraphTransition(_DRAINING, "recall"),
    (_RUNNING, GraphEvent.HOPELESS): GraphTransition(_DRAINING, "recall"),
    (_RUNNING, GraphEvent.ERROR_FINAL): GraphTransition(_DRAINING, "recall"),
    (_RUNNING, GraphEvent.ALL_DONE): GraphTransition(GraphPhase.COMPLETED, "complete"),
    (_DRAINING, GraphEvent.EXTENDED): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.TASK_PUBLISHED): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.TASK_DONE): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.TASK_FAILED): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.TASK_LOST): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.TASK_DROPPED): GraphTransition(_DRAINING, "take_back"),
    (_DRAINING, GraphEvent.CANCELLED): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.HOPELESS): GraphTransition(_DRAINING, "ignore"),
    (_DRAINING, GraphEvent.ALL_LANDED): GraphTransition(GraphPhase.FAILED, "close"),
}


class TaskState(StrEnum):
    NOT_READY = "not_ready"
    READY = "ready"
    DISPATCHED = "dispatched"
    DONE = "done"


class TaskTransition(NamedTuple):
    """The next state of a NodeTask, and how the counts of its GraphTask change with it."""

    state: TaskState
    outstanding_tasks: int = 0
    remaining: int = 0


#: (state, event) -> transition. Any other pair violates an invariant.
TASK_TRANSITIONS = {
    (TaskState.NOT_READY, "inputs complete"): TaskTransition(TaskState.READY, outstanding_tasks=1),
    (TaskState.READY, "dispatched"): TaskTransition(TaskState.DISPATCHED),
    (TaskState.DISPATCHED, "lost"): TaskTransition(TaskState.READY),
    (TaskState.DISPATCHED, "done"): TaskTransition(
        TaskState.DONE, outstanding_tasks=-1, remaining=-1
    ),
}


class Place(IntEnum):
    """A place whose contribution has not arrived (None is an undefined gradient)."""

    MISSING = 0


MISSING = Place.MISSING


@dataclass(slots=True)
class InputBuffer:
    """The contributions to one NodeTask's inputs, each in its fixed place.

    The coordinator keeps references only; the worker that runs the task adds them from left to
    right. The places give the order, not the arrival, so the sum has the same bits every time.
    """

    #: One list of places per input slot.
    slots: list[list[GradientRef | Place]]

    @classmethod
    def empty(cls, places: tuple[int, ...]) -> InputBuffer:
        """A buffer whose slots have this many places, all empty."""
        return cls([[MISSING] * count for count in places])

    def fill(self, slot: int, place: int, ref: GradientRef) -> None:
        """Put a contribution in its place; each place is filled once."""
        if self.slots[slot][place] is not MISSING:
            raise InvariantViolated(f"place {place} of input {slot} is filled twice")
        self.slots[slot][place] = ref

    def inputs(self) -> tuple[tuple[GradientRef, ...], ...]:
        """All contributions in order without the undefined ones; every place must be filled."""
        for slot in self.slots:
            if MISSING in slot:
                raise InvariantViolated("an InputBuffer was read before it was complete")
        return tuple(
            [
                tuple([ref for ref in slot if ref is not None])  # type: ignore[misc]
                for slot in self.slots
            ]
        )

    def blocks(self) -> Iterator[Block]:
        """Every block that the buffer holds, once per place that it fills."""
        for slot in self.slots:
            for ref in slot:
                if isinstance(ref, Block):
                    yield ref


@dataclass
class GraphTask:
    """One backward. Only the coordinator's core changes it."""

    #: The coordinator's number for this graph; unique while the coordinator lives.
    number: int
    #: The session that submitted it, and the session's number of it.
    owner: str
    owner_number: int
    #: Reentrant depth: 0 for a backward that was not started by another backward.
    depth: int
    #: The results, None until captured (or for an undefined gradient).
    captures: list[GradientRef]
    #: The numbers of those that lie inside messages and have not been told, and their bytes.
    inline: list[int] = field(default_factory=list)
    inline_nbytes: int = 0
    phase: GraphPhase = GraphPhase.RUNNING
    #: True once the last message of tables has arrived; before that it cannot complete.
    is_whole: bool = False
    specs: list[NodeTaskSpec] = field(default_factory=list)
    #: The devices (and ON_CPU) whose workers it needs, each once.
    devices: list[int] = field(default_factory=list)
    states: list[TaskState] = field(default_factory=list)
    #: For each task the number of contributions and control edges that have not arrived.
    dependencies: list[int] = field(default_factory=list)
    #: The buffers of tasks that have got a contribution and are not done. A dispatched task keeps
    #: its buffer, so that it can run again.
    buffers: dict[int, InputBuffer] = field(default_factory=dict)
    #: Arrivals for tasks without tables yet (task, slot, place, reference; slot -1: control).
    early: list[tuple[int, int, int, GradientRef]] = field(default_factory=list)
    #: Per running task (absent: none) the outputs that it, or a lost attempt of it, has published
    #: before its end. They stay with their consumers and are not delivered again.
    published: dict[int, set[int]] = field(default_factory=dict)
    #: Per task (absent: none) the attempts begun, the deaths of workers that were running it, and
    #: how many of these deaths were by SIGKILL.
    attempts: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    kills: dict[int, int] = field(default_factory=dict)
    #: For each task that a worker has run: see ``CompleteGraph.ran``.
    ran: list[tuple[int, int, int, int, bytes | None]] = field(default_factory=list)
    #: |ready| + |dispatched|, and the tasks not done: the graph is complete when both are 0.
    outstanding_tasks: int = 0
    remaining: int = 0
    #: The reason for draining: kind, task, error, step (see FailGraph).
    failure: tuple[str, int, bytes, int] | None = None
    #: The first error so far in the serial order: position, task, error, step.
    first_error: tuple[int, int, bytes, int] | None = None
    #: The number of ready tasks that will not run, because they come after that error.
    skipped: int = 0

    def extend(self, tasks: tuple[NodeTaskSpec, ...], is_whole: bool, done: int = 0) -> list[int]:
        """Add tables, the first ``done`` of them of tasks that are done; return the ready tasks."""
        if not 0 <= done <= len(tasks):
            raise ProtocolError(
                f"{done} of {len(tasks)} tasks of graph {self.owner_number} are done"
            )
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
        """Accept a contribution; True if it makes the task ready."""
        if task == CAPTURE:
            self.captures[slot] = ref
            if type(ref) is bytes:
                self.inline.append(slot)
                self.inline_nbytes += len(ref)
            return False
        if task >= len(self.specs):
            return self._comes_early(task, slot, place, ref)
        buffer = self.buffers.get(task)
        if buffer is None:
            buffer = self.buffers[task] = InputBuffer.empty(self.specs[task].places)
        buffer.fill(slot, place, ref)
        return self._count_down(task)

    def take_inline(self) -> tuple[tuple[int, bytes], ...]:
        """The results that lie inside messages, by number; they are not kept any longer."""
        taken = []
        for slot in self.inline:
            capture, self.captures[slot] = self.captures[slot], None
            assert isinstance(capture, bytes)
            taken.append((slot, capture))
        self.inline.clear()
        self.inline_nbytes = 0
        return tuple(taken)

    def unlock(self, task: int) -> bool:
        """Remove one dependency; True if that makes the task ready."""
        if task >= len(self.specs):
            return self._comes_early(task, -1, -1, None)
        return self._count_down(task)

    def _count_down(self, task: int) -> bool:
        self.dependencies[task] = left = self.dependencies[task] - 1
        if left > 0:
            return False
        if left < 0:
            raise InvariantViolated(f"task {task} got more contributions than its dependencies")
        self._apply(task, "inputs complete")
        return True

    def _comes_early(self, task: int, slot: int, place: int, ref: GradientRef) -> bool:
        """Keep an arrival for later: its task's tables have not come yet. It makes none ready."""
        if self.is_whole:
            raise ProtocolError(f"graph {self.owner_number} has no task {task}")
        self.early.append((task, slot, place, ref))
        return False

    def dispatch(self, task: int) -> int:
        """Give the task to a worker; return the number of this attempt."""
        self._apply(task, "dispatched")
        self.attempts[task] = self.attempts.get(task, 0) + 1
        return self.attempts[task]

    def requeue(self, task: int) -> None:
        """Make the task ready again after the death of its worker."""
        self._apply(task, "lost")

    def finish(self, task: int) -> None:
        """The reply to the task was accepted."""
        self._apply(task, "done")

    def _apply(self, task: int, happening: str) -> None:
        transition = TASK_TRANSITIONS.get((self.states[task], happening))
        if transition is None:
            state = self.states[task].value
            raise InvariantViolated(f"task {task} is {state}, which does not allow: {happening}")
        self.states[task] = transition.state
        self.outstanding_tasks += transition.outstanding_tasks
        self.remaining += transition.remaining

    def note_error(self, task: int, step: int, error: bytes) -> None:
        """Node ``step`` of a task raised; the error counts if no earlier one is known."""
        position = self.specs[task].positions[step]
        if self.first_error is None or position < self.first_error[0]:
            self.first_error = (position, task, error, step)

    def is_wanted(self, task: int) -> bool:
        """Whether a serial engine would reach the task, or one that needs it, before its first
        error."""
        spec = self.specs[task]
        return (
            self.first_error is None or min(spec.position, spec.needed_from) < self.first_error[0]
        )

    @property
    def is_settled(self) -> bool:
        """True when it has failed and no earlier error can follow."""
        return (
            self.first_error is not None
            and self.is_whole
            and self.outstanding_tasks == self.skipped
        )

    @property
    def is_stuck(self) -> bool:
        """True when no event can make it go on, which a right table never reaches."""
        is_running = self.phase is GraphPhase.RUNNING
        return is_running and self.is_whole and self.outstanding_tasks == 0

    @property
    def is_complete(self) -> bool:
        """True when every task is done; reached exactly once."""
        return (
            self.is_whole
            and self.remaining == 0
            and self.outstanding_tasks == 0
            and self.first_error is None
        )


def transitions_as_text() -> str:
    """Both tables as text, a row for each transition."""
    rows = [
        f"{before:<9}  {event:<52}  {after:<10} {action}"
        for (before, event), (after, action) in GRAPH_TRANSITIONS.items()
    ]
    rows += ["", "The tasks of a graph:"]
    rows += [
        f"{before:<10} {event:<16} {transition.state}"
        for (before, event), transition in TASK_TRANSITIONS.items()
    ]
    return "\n".join(["A graph:", *rows])
