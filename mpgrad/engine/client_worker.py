"""ClientWorker: runs the NodeTasks of the client: hooks, Functions that cannot travel, and the part
of the calling thread. It uses the inputs and the form of reply of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.autograd.profiling.backward_run import TaskRun
from mpgrad.autograd.profiling.ranges import RUNNING, current_run
from mpgrad.autograd.running.hook_nodes import HooksBefore, Rule, rule_of
from mpgrad.autograd.running.node_loop import NodeStep, run_task
from mpgrad.base.handles import ENGINE_ARENA, Block, GradientRef
from mpgrad.calls.custom_functions.attributes import are_scalars, name_set
from mpgrad.calls.custom_functions.run_on import is_tried, keep_changing, keep_in_client, note_tried
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.client_changes import ReadsOfWorkers, StaleSaved
from mpgrad.engine.cost_learning import durations_us
from mpgrad.engine.graph_submission import GraphSubmission, RunOwn
from mpgrad.engine.local import claim
from mpgrad.engine.local_tasks import LocalTask
from mpgrad.engine.placement import Placed
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.errors import BytesCorrupted, add_note
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.tensors.storage import adopt, watched
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskFailed
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.scheduler.plan_tables import CAPTURE, Member
from mpgrad.shm.mapped_arena import ForeignArena

Array: TypeAlias = np.ndarray[Any, Any]
#: A gradient that flows into a task: task, slot, place, reference.
Given: TypeAlias = tuple[int, int, int, GradientRef]


class ClientWorker:
    """The client tasks of one graph.

    Args:
        placed, graph: the graph and its plan.
        submission: the arrays and programs of the graph.
        arena: the engine's arena.
        user_code: wraps each rule.
        blas_threads: the number that workers have.
    """

    def __init__(
        self,
        placed: Placed,
        graph: PreparedGraph,
        submission: GraphSubmission,
        arena: ForeignArena,
        user_code: Callable[[], AbstractContextManager[None]],
        blas_threads: int,
    ) -> None:
        self._user_code, self._blas_threads = user_code, blas_threads
        self._frozen, self._graph, self._planned = placed.frozen, graph, graph.plan
        self._placed = placed
        self._reads = ReadsOfWorkers(placed) if placed.code else None
        self._submission, self._arena = submission, arena
        #: The exceptions of failed tasks.
        self.errors: dict[int, BaseException] = {}
        #: Whether any of these tasks has begun: it is user code, which must not run twice.
        self.has_begun = False
        #: Whether the local share may have changed something in place.
        self.is_final = False
        #: The ctx of each Function of that task, with its attributes as they were.
        self._contexts: list[tuple[Any, dict[str, Any]]] = []
        #: The Nodes that have not released their saved tensors, in reverse serial order; made when
        #: the first task runs.
        self._unreleased: list[int] | None = None
        #: Functions that the calling thread runs only after they have succeeded on workers.
        self._untried: set[type[Function]] = set()
        #: Made when the first task runs, before any saved tensor is released.
        self._saved: StaleSaved | None = None
        #: The outputs of task 0, if that ran ahead.
        self._ahead: list[Any] | None = None
        #: By the numbers of results: what the local share has given, and whether nobody
        #: else holds it.
        self.results: dict[int, tuple[Any, bool]] = {}
        #: The Node of that task that raised.
        self.own_failed: int | None = None
        #: The Nodes of that task, and the microseconds that each took.
        self.own_times: list[tuple[int, float]] = []

    def release_before(self, node: int) -> None:
        """Release the saved tensors of the Nodes before ``node``, as the serial engine has by then.

        User code that runs now may look at them. No worker needs them: all programs are written
        before the first task of the client runs.
        """
        if self._frozen.keep_graph:
            return
        if self._unreleased is None:
            self._unreleased = list(reversed(self._frozen.spec.order))
        while self._unreleased and self._unreleased[-1] != node:
            done = self._unreleased.pop()
            if self._frozen.runs[done]:
                self._frozen.nodes[done].release_saved()

    def run(self, dispatch: DispatchNodeTask) -> NodeTaskDone | NodeTaskFailed:
        """Run one task; ``errors`` keeps an exception as it is."""
        self.has_begun = True
        name = (dispatch.graph, dispatch.task, dispatch.attempt)
        members = self._planned.groups[dispatch.task]
        refs: list[GradientRef] = [None] * len(dispatch.blocks)
        failed = [0]

        def note_failure(at: int, error: BaseException) -> None:
            failed.append(at)

        def emit(output: int, array: Array | None) -> None:
            refs[output] = self._submission.gradient(array)

        if self._saved is None:
            self._saved = StaleSaved(self._frozen)
        self.release_before(members[0].node)
        try:
            steps = [self._step(member) for member in members]
            for step, member in zip(steps[1:], members[1:], strict=True):
                if step.apply is not None:
                    step.apply = self._in_turn(member.node, step.apply)
            contributions = self._contributions(steps, dispatch)
            with watched() as changed:
                self._run_steps(dispatch.task, steps, contributions, emit, note_failure)
            if changed:
                self._saved.check(members[-1].node, changed)
            if self._reads is not None:
                self._reads.check(members[-1].node)
        except BaseException as error:
            self.errors[dispatch.task] = error
            return NodeTaskFailed(dispatch.peer, *name, b"", step=failed[-1])
        return NodeTaskDone(dispatch.peer, *name, tuple(refs))

    def _note_contexts(self, own: LocalTask) -> None:
        """Keep what user code of the task may set on its ctx, for a second run."""
        for at in own.nodes:
            node = self._frozen.nodes[at]
            if isinstance(node, FunctionNode):
                attributes = dict(vars(node.ctx))
                self._contexts.append((node.ctx, attributes))
                # What such a value holds may be changed in place; a promise has no need of it.
                is_safe = node.function.run_on is not None or are_scalars(attributes)
                self.is_final |= node.ctx._clears_on_access or not is_safe

    def may_run_again(self) -> bool:
        """Whether the whole graph may run again in this process."""
        return not self.has_begun and not self.is_final

    def restore(self) -> None:
        """Make everything in this process as it was before the graph ran."""
        for ctx, attributes in self._contexts:
            vars(ctx).clear()
            vars(ctx).update(attributes)

    def note_success(self) -> None:
        """The graph has completed: its Functions on workers have raised nothing there."""
        tried: set[type[Function]] = set()
        for one in self._placed.trying:
            if name := name_set(one.attributes, one.before):
                keep_changing(one.function, name)
            elif not one.has_changed():
                tried.add(one.function)
        if self._untried or tried:
            note_tried(self._untried | tried)

    def run_ahead(self) -> list[GradientRef] | None:
        """Run task 0 before the graph is submitted, if that is worth it (``Plan.opens_alone``).

        The saved tensors of its Nodes stay until then. If it fails, a worker runs it again, so that
        its error is reported in its turn.

        Returns:
            Its outputs; None if it must not run ahead, or fails.
        """
        ahead = self._graph.ahead(self._frozen)
        if ahead is None or anomaly.enabled:
            return None
        times: list[float] | None = None if RUNNING.recording is None else []
        started = perf_counter()
        try:
            with blas_limit(self._blas_threads):
                outputs = ahead.gradients(self._frozen, times)
        except Exception:
            return None
        self._note_times(0, ahead.nodes, times, started)
        self._ahead = outputs
        return [self._submission.gradient(array) for array in outputs]

    def local_share(self) -> RunOwn | None:
        """What runs the local share (``Plan.local_share``), after ``run_ahead``.

        Returns:
            None if there is no such task, or if it cannot run here.
        """
        if anomaly.enabled or (self._ahead is None and self._planned.opens_alone):
            return None
        own = self._graph.local_share(self._frozen)
        return None if own is None or self._has_untried(own) else partial(self._run_own, own)

    def _has_untried(self, own: LocalTask) -> bool:
        """Whether the task has a Function that has not succeeded on a worker yet.

        If that raises there, the backward runs again here. What the calling thread had run
        meanwhile would run twice, but a worker changes nothing in this process.
        """
        nodes = [self._frozen.nodes[at] for at in own.nodes]
        functions = {node.function for node in nodes if isinstance(node, FunctionNode)}
        self._untried = {f for f in functions if f.run_on is None and not is_tried(f)}
        return bool(self._untried)

    def _run_own(self, own: LocalTask) -> tuple[list[Given], int | None]:
        """Run it while the workers run theirs.

        It is code that workers could run, so it may run again after the coordinator's death. Saved
        tensors stay until the graph has ended.
        """
        times, started = list[float](), perf_counter()
        self._note_contexts(own)
        try:
            with blas_limit(self._blas_threads), self._user_code(), watched() as changed:
                outputs = claim(own.gradients(self._frozen, times, self._ahead or ()))
            if changed:
                StaleSaved(self._frozen).check(own.nodes[-1], changed)
            if self._reads is not None and (found := self._reads.changed_by(set(own.nodes))):
                self.is_final = True  # a second run would change it twice
                function, what = found
                reason = f"{function.__qualname__} changes {what} in some backwards"
                keep_in_client(function, reason)
                raise RuntimeError(
                    f"{reason}, which workers did not see in this one. From the next backward on "
                    f'it runs in this process; run_on = "client" says so from the start'
                )
        except BaseException as error:
            self.errors[own.task] = error
            self.own_failed = own.members[min(len(times) // 2, len(own.members) - 1)]
            return [], self.own_failed
        self._note_times(own.task, own.nodes, times, started)
        self.own_times = list(zip(own.nodes, durations_us(times), strict=True))
        given: list[Given] = []
        for output, result in zip(self._planned.tasks[own.task].outputs, outputs, strict=True):
            if output.task == CAPTURE:
                self.results[output.slot] = result
            else:
                ref = self._submission.gradient(result[0])
                given.append((output.task, output.slot, output.place, ref))
        return given, None

    def _run_steps(
        self,
        task: int,
        steps: Sequence[NodeStep],
        contributions: Iterable[tuple[int, int, Array | None]],
        emit: Callable[[int, Array | None], None],
        on_failure: Callable[[int, BaseException], None],
    ) -> None:
        """Run a task and report its times to an active profile."""
        times: list[float] | None = None if RUNNING.recording is None else []
        started = perf_counter()
        with blas_limit(self._blas_threads):
            run_task(steps, contributions, emit, cpu, times=times, on_failure=on_failure)
        pairs = zip(self._planned.groups[task], steps, strict=True)
        ran = [member.node for member, step in pairs if step.apply is not None]
        self._note_times(task, ran, times, started)

    def _note_times(
        self, task: int, ran: Sequence[int], times: list[float] | None, started: float
    ) -> None:
        """Report when the rules of a task ran to an active profile."""
        recording = RUNNING.recording
        if recording is not None and times is not None:
            here = TaskRun(task, -1, 1, started, perf_counter())
            recording.note_nodes(current_run(), self._frozen, ran, times, here)

    def _step(self, member: Member) -> NodeStep:
        node = self._frozen.nodes[member.node]
        rule = self._as_user_code(rule_of(node)) if self._frozen.runs[member.node] else None
        step = NodeStep.of_task(
            self._graph.wiring(self._frozen, member),
            rule,
            None if self._frozen.keep_graph else node.release_saved,
        )
        # A hook may return NaN before a Node runs; the Node must not return it itself.
        if anomaly.checks_nan and not isinstance(node, HooksBefore):
            step.blamed = node.subject.name()
        return step

    def _as_user_code(self, rule: Rule) -> Rule:
        def apply(xp: Any, grads: list[Any], needs: Sequence[bool]) -> Sequence[Any]:
            with self._user_code():
                return rule(xp, grads, needs)

        return apply

    def _in_turn(self, index: int, rule: Rule) -> Rule:
        """``rule`` of a Node, run after the Nodes before it have released their saved tensors."""

        def apply(xp: Any, grads: list[Any], needs: Sequence[bool]) -> Sequence[Any]:
            self.release_before(index)
            return rule(xp, grads, needs)

        return apply

    def _contributions(
        self, steps: Sequence[NodeStep], dispatch: DispatchNodeTask
    ) -> Iterator[tuple[int, int, Array | None]]:
        slots = self._planned.slots[dispatch.task]
        for (step, input_nr), refs in zip(slots, dispatch.inputs, strict=True):
            meta = steps[step].wiring.inputs[input_nr]
            for ref in refs:
                try:
                    yield step, input_nr, self._open(ref, meta)
                except BytesCorrupted as error:
                    add_note(
                        error, f"it is input {input_nr} of {steps[step].name}, in this process"
                    )
                    raise

    def _open(self, ref: GradientRef, meta: InputMetadata) -> Array | None:
        """A copy of a gradient for the user: a hook may keep it, or change it."""
        if isinstance(ref, Block) and ref.arena == ENGINE_ARENA:
            self._arena.check_bytes(ref)
            return adopt(self._arena.open(ref, meta.shape, meta.dtype, writeable=False))
        return self._submission.open(ref, meta)
