"""Expectations: the right outcome of a World, computed independently of the core.

It records which faults were planted where: a graph may fail only because of one of them, and must
not complete in spite of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import DEATHS_MAX, KILLS_MAX
from mpgrad.scheduler.plan_tables import BEHIND_ALL, CAPTURE, Member, Plan
from simulation.path_counts import TracedGraph

#: The error of a client task whose inputs were lost with their GPU worker.
MEMORY_IS_LOST = b"the worker that held this gradient is dead"
#: The error of a task whose inputs have changed since they were published.
BYTES_CORRUPTED = b"the bytes of this gradient have changed"
#: The error of a client task whose user code was interrupted by Ctrl-C.
INTERRUPTED = b"interrupted"


class Wrong(Exception):
    """The simulation saw a fault of the engine."""


def require(truth: bool, message: str) -> None:
    if not truth:
        raise Wrong(message)


class Program(NamedTuple):
    """A submitted graph; its tasks find it by their payload."""

    peer: str
    name: int
    graph: TracedGraph
    plan: Plan

    def is_on_device(self, task: int, output: int) -> bool:
        """Whether an output of a task flows into an input that lies on a GPU."""
        spec = self.graph.spec
        _, consumer, slot, _ = self.plan.tasks[task].outputs[output]
        if consumer == CAPTURE:
            node, input_nr = spec.captures[slot]
        else:
            members, target = self.plan.groups[consumer], self.plan.slots[consumer][slot]
            node, input_nr = members[target.member].node, target.input_nr
            piece = members[target.member].piece_of
            input_nr = input_nr if piece is None else piece
        return spec.nodes[node].is_on_device(input_nr)


class Expectations:
    """The planted facts, by program number."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        #: Programs whose caller has cancelled them.
        self.cancelled: set[int] = set()
        #: Programs with a task whose user code was interrupted by Ctrl-C.
        self.interrupted: set[int] = set()
        #: Whether memory may run out, and whether workers cannot be started any more.
        self.is_memory_short = False
        self.has_given_up = False
        #: Programs with gradients in the memory of a GPU worker that died.
        self.bereaved: set[int] = set()
        #: Programs with a block whose bytes have changed.
        self.corrupted: set[int] = set()
        #: By program: the task that its caller runs while the workers run others.
        self.own: dict[int, int] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._ended: set[int] = set()
        self._runs: set[tuple[int, int, int]] = set()
        #: Per (program, task): the workers that crashed or were killed while they ran it; and the
        #: tasks whose graphs must fail because of that.
        self._crashes: Counter[tuple[int, int]] = Counter()
        self._kills: Counter[tuple[int, int]] = Counter()
        self._fatal: set[tuple[int, int]] = set()

    def add_program(self, peer: str, name: int, graph: TracedGraph, plan: Plan) -> int:
        """The number by which the tasks of a graph find their rules."""
        self.programs.append(Program(peer, name, graph, plan))
        self._numbers[peer, name] = number = len(self.programs) - 1
        return number

    def cancel(self, peer: str, name: int) -> None:
        self.cancelled.add(self._numbers[peer, name])

    def number_of(self, peer: str, name: int) -> int:
        return self._numbers[peer, name]

    def on_begin(self, peer: str, device: int, dispatch: do.DispatchNodeTask) -> None:
        """A worker begins a task: once per attempt, and never after its graph's end."""
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        require(key not in self._runs, f"{peer} runs {key}, which was run before")
        self._runs.add(key)
        spec = self.programs[dispatch.payload[0]].plan.tasks[dispatch.task]
        require(spec.device == device, f"{peer} of device {device} runs {key} of {spec.device}")
        require(dispatch.payload[0] not in self._ended, f"{peer} runs {key} of an ended graph")

    def on_death(self, event: ev.WorkerDied, running: do.DispatchNodeTask | None) -> None:
        """A worker that was ready has died, in the middle of ``running`` if that is given."""
        if running is None:
            return
        task = running.payload
        (self._kills if event.killed else self._crashes)[task] += 1
        if self._crashes[task] >= DEATHS_MAX or self._kills[task] >= KILLS_MAX:
            self._fatal.add(task)

    def _has_fatal(self, number: int) -> bool:
        return any(program == number for program, _ in self._fatal)

    def check_ending(self, end: do.CompleteGraph | do.FailGraph) -> None:
        """Check that a graph ends once, and that it fails only for a planted reason."""
        number = self._numbers[end.peer, end.graph]
        require(number not in self._ended, f"graph {end.graph} of {end.peer} ends twice")
        self._ended.add(number)
        if isinstance(end, do.FailGraph):
            require(self._is_planted(number, end), f"nobody planted this failure: {end}")
            return
        _, _, graph, plan = self.programs[number]
        # The caller knows of its own error, even if the graph is complete without that task.
        own = (
            {member.node for member in plan.groups[self.own[number]]} if number in self.own else ()
        )
        raising = sorted(set(graph.raising).difference(own))
        require(not raising, f"graph {end.graph} completes, but rules of it raise: {raising}")
        fatal = [task for program, task in sorted(self._fatal) if program == number]
        require(not fatal, f"graph {end.graph} completes in spite of its tasks {fatal}")

    def _is_apart(self, number: int) -> bool:
        """Whether its caller's task raises, and nobody waits for that: the caller compares."""
        if number not in self.own:
            return False
        _, _, graph, plan = self.programs[number]
        members, outputs = plan.groups[self.own[number]], plan.tasks[self.own[number]].outputs
        is_raising = _first_raising(graph, members) is not None
        return is_raising and all(output.task == CAPTURE for output in outputs)

    def _is_planted(self, number: int, end: do.FailGraph) -> bool:
        if end.kind == "error" and end.error == MEMORY_IS_LOST:
            return number in self.bereaved
        if end.kind == "error" and end.error == BYTES_CORRUPTED:
            return number in self.corrupted
        own = self.own.get(number, -1)
        was_own = end.task == own and end.error == b""
        if end.kind == "error" and (end.error == INTERRUPTED or was_own):
            if number in self.interrupted:
                return True
            if not was_own:
                return False
        if end.kind == "error":
            _, _, graph, plan = self.programs[number]
            errors = _errors(graph, plan, own=own)
            found = {at: (node, task, step) for at, node, task, step in errors}
            # The first one. But user code after an error does not run, even if a task with Nodes
            # before the error waits for it: then a later error may be the first.
            first = {min(found)} if found else set()
            first.update(
                at for at in found if at == min(_positions(graph, plan, at, own), default=-1)
            )
            # If it was ended early for another reason, the first error may not have occurred.
            ended_early = (
                self.is_memory_short
                or self.has_given_up
                or number in self.bereaved
                or number in self.corrupted
                or number in self.interrupted
                or self._has_fatal(number)
                or self._is_apart(number)
            )
            return any(
                (end.task, end.step) == (task, step)
                and end.error == (b"" if task == own else error_text(node, task))
                for at, (node, task, step) in found.items()
                if ended_early or at in first
            )
        if end.kind in ("lost", "hung"):
            if end.task == -1:
                return self.has_given_up or number in self.bereaved
            return (number, end.task) in self._fatal
        if end.kind == "memory":
            return self.is_memory_short
        return end.kind == "cancelled" and number in self.cancelled


def _positions(graph: TracedGraph, plan: Plan, last: int, own: int) -> list[int]:
    """Serial positions of the rules that raise if no user code behind position ``last`` runs."""
    return [at for at, *_ in _errors(graph, plan, last, own)]


def _errors(
    graph: TracedGraph, plan: Plan, last: int = BEHIND_ALL, own: int = -1
) -> Iterator[tuple[int, int, int, int]]:
    """The rules that raise if every task runs that can: serial position, Node, task, step.

    Tasks behind a failed one do not get the outputs that it has not published.

    Args:
        graph: the graph, with the rules that raise.
        plan: its tasks.
        last: client tasks with a later serial position do not run.
        own: the task that the caller runs by itself; it publishes nothing before its end.
    """
    #: Tasks that never begin; and for each that raises, the step and its earlier publications.
    stopped: set[int] = set()
    raised: dict[int, tuple[int, set[int]]] = {}
    feeds: dict[int, set[int]] = {}
    for task, spec in enumerate(plan.tasks):
        for consumer in (*(output.task for output in spec.outputs), *spec.unlocks):
            feeds.setdefault(consumer, set()).add(task)
    for task in topological(feeds, len(plan.tasks)):
        spec = plan.tasks[task]
        if (spec.on_client and spec.position > last) or any(
            producer in stopped or (producer in raised and not _gives(plan, producer, task, raised))
            for producer in feeds.get(task, ())
        ):
            stopped.add(task)
            continue
        if plan.groups[task][0].piece_of is not None:
            continue
        step = _first_raising(graph, plan.groups[task])
        if step is not None:
            gives = not plan.tasks[task].on_client and task != own
            raised[task] = step, _published(plan.groups[task], step) if gives else set()
            # Both halves of a Node may raise: the plan says which of them comes first.
            position = spec.positions[step]
            yield position, plan.groups[task][step].node, task, step


def _first_raising(graph: TracedGraph, members: Sequence[Member]) -> int | None:
    return next((at for at, member in enumerate(members) if member.node in graph.raising), None)


def _gives(plan: Plan, producer: int, task: int, raised: dict[int, tuple[int, set[int]]]) -> bool:
    """Whether a task that raises has first published everything that another one waits for."""
    spec, (_, published) = plan.tasks[producer], raised[producer]
    needed = {number for number, output in enumerate(spec.outputs) if output.task == task}
    return needed <= published and task not in spec.unlocks


def _published(members: Sequence[Member], step: int) -> set[int]:
    """Outputs that a worker has published when Node ``step`` of its task raises: all so far."""
    published: set[int] = set()
    for at, member in enumerate(members[: step + 1]):
        published.update(output for _, output in member.captures)
        if at < step:
            published.update(route for route in member.routes if type(route) is int)
    return published


def topological(feeds: dict[int, set[int]], count: int) -> Iterator[int]:
    """Tasks after those that feed them."""
    done: set[int] = set()
    while len(done) < count:
        for task in range(count):
            if task not in done and feeds.get(task, set()) <= done:
                done.add(task)
                yield task


def error_text(node: int, task: int) -> bytes:
    """The text of the planted exception, with the Node and the task that raised."""
    return f"the rule of node {node} raised in task {task}".encode()
