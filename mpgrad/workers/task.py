"""TaskRunner: runs one dispatched NodeTask: open the inputs, run the Steps, publish the outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpgrad.arrays.cpu.column_parts import join, shape_of
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.autograd.profiling.task_times import pack_times
from mpgrad.autograd.running.node_loop import NodeStep, run_task
from mpgrad.base.handles import MESSAGE_PART_BYTES, Block, GradientRef
from mpgrad.errors import BytesCorrupted, ProtocolError, add_note
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskFailed, OutputEmitted
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.scheduler.split import parts_of
from mpgrad.wire.captured_state import apply_state
from mpgrad.wire.output_record import Output, encode_output
from mpgrad.wire.programs import CallRule, DerivativeRule, TaskProgram, decode_program
from mpgrad.wire.remote_error import encode_error
from mpgrad.workers.publication import Publication, Report, aligned_empty, progress_of
from mpgrad.workers.rules import Rules
from mpgrad.workers.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from mpgrad.workers.calls import CallRunner

Array: TypeAlias = np.ndarray[Any, Any]


class TaskRunner:
    """Runs a DispatchNodeTask on a CPU worker.

    Args:
        memory: the arenas.
        where: this process, in words, for errors.
        report: sends the progress of a running task.
        slot: of this worker.
    """

    def __init__(self, memory: WorkerMemory, where: str, report: Report, slot: int) -> None:
        self._memory, self._report = memory, report
        self._slot = slot
        self._rules = Rules(memory, self._tell, lambda: self.calls)
        #: See ``CallRunner``.
        self.branch_limit: int | None = None
        self.note_branches: Callable[[int, int], None] = lambda count, nbytes: None
        #: Makes the Publication of a task.
        self.publication: Callable[..., Publication] = Publication
        self._where = where
        #: The initializers that have run here.
        self._initialized: set[str] = set()
        #: The last captured state of user code.
        self._captured_state = b""
        self._failed_step = 0
        #: Whether the last task has run user code.
        self.has_run_function = False
        self._dispatch: DispatchNodeTask | None = None

    @functools.cached_property
    def calls(self) -> CallRunner:
        """Runs calls forward, and differentiates their branches."""
        from mpgrad.workers.calls import CallRunner

        return CallRunner(
            self._memory, self._slot, self.branch_limit, lambda *told: self.note_branches(*told)
        )

    def run(self, dispatch: DispatchNodeTask) -> tuple[NodeTaskDone | NodeTaskFailed, Any]:
        """The reply, and the blocks that user code kept earlier and has now let go."""
        started = perf_counter()
        self._dispatch, self._failed_step = dispatch, 0
        self._times: list[float] | None = None
        outputs, copied, error = self._try(dispatch)
        self._memory.protect()
        kept, released = self._memory.settle()
        kept = tuple(block for block in kept if _belongs(block, dispatch))
        name = (dispatch.graph, dispatch.task, dispatch.attempt)
        if error is not None:
            failed = NodeTaskFailed(dispatch.peer, *name, error, kept, self._failed_step)
            return failed, released
        ended = perf_counter()
        times: bytes | None = None
        if self._times is not None:
            times = pack_times(self._times, attempt=dispatch.attempt, started=started, ended=ended)
        duration_us = int((ended - started) * 1e6)
        done = NodeTaskDone(dispatch.peer, *name, outputs, kept, duration_us, copied, times)
        return done, released

    def _try(self, dispatch: DispatchNodeTask) -> tuple[tuple[GradientRef, ...], int, bytes | None]:
        """Outputs and copied bytes, or the error; no reference to an array survives this frame."""
        steps: list[NodeStep] = []
        publication: Publication | None = None
        try:
            program = decode_program(dispatch.program or self._memory.read_bytes(*dispatch.payload))
            self.has_run_function = bool(program.captured_state)
            if self.has_run_function and dispatch.attempt > 1:
                # A write into the arenas may have killed the worker of the first attempt.
                self._memory.divert_writes()
            if isinstance(program.nodes[0].rule, CallRule | DerivativeRule):
                return *self._call(program, dispatch), None
            for self._failed_step, part in enumerate(program.nodes):
                steps.append(self._rules.step(part))
            self._failed_step = 0
            if program.checks_nan:
                for step in steps:
                    step.blamed = step.name
            self._times = [] if program.is_timed else None
            _require_fit(steps, program, dispatch)
            publication = self.publication(self._memory, dispatch, self._report)
            publication.note_captures(steps, program.slots)
            self._take_over(program)
            if program.numpy_errors:
                with np.errstate(**program.numpy_errors):  # type: ignore[arg-type]
                    self._run_steps(steps, program, dispatch, publication)
            else:
                self._run_steps(steps, program, dispatch, publication)
            return publication.outputs(), publication.copied_bytes, None
        except BaseException as error:  # sys.exit() belongs to the caller, too, as in `local`
            if publication is not None:
                # The outputs before it are valid: an error that is earlier in order may follow.
                publication.publish()
            failed = self._failed_step
            node = steps[failed].wiring.name if failed < len(steps) else "a task"
            return (), 0, encode_error(error, f"{node} on {self._where}")

    def _call(
        self, program: TaskProgram, dispatch: DispatchNodeTask
    ) -> tuple[tuple[GradientRef, ...], int]:
        """Run calls of the client forward; the outputs, and the bytes that were copied."""
        if len(dispatch.blocks) != 2 * len(program.nodes):
            raise ProtocolError(
                f"a task of {len(program.nodes)} calls got {len(dispatch.blocks)} blocks"
            )
        self._take_over(program)
        times: list[float] | None = [] if program.is_timed else None
        self._times = times
        outputs: list[GradientRef] = []
        copied = inline_nbytes = reported = 0
        with np.errstate(**program.numpy_errors):  # type: ignore[arg-type]
            for at, node in enumerate(program.nodes):
                if not isinstance(node.rule, CallRule | DerivativeRule):
                    raise ProtocolError("a task of calls has another rule")
                if 2 * at in dispatch.published:  # by an attempt that was lost later
                    outputs += (None, None)
                    continue
                self._failed_step = at
                started = perf_counter()
                found, nbytes = self.calls.run(node.rule, dispatch.blocks[2 * at : 2 * at + 2])
                if times is not None:
                    times += (started, perf_counter())
                outputs += found
                copied += nbytes
                inline_nbytes += sum([len(ref) for ref in found if isinstance(ref, bytes)])
                if inline_nbytes > MESSAGE_PART_BYTES:
                    told = tuple([*enumerate(outputs)][reported:])
                    self._report(progress_of(dispatch, told))
                    outputs[reported:] = [None] * len(told)
                    reported, inline_nbytes = len(outputs), 0
        return tuple(outputs), copied

    def _take_over(self, program: TaskProgram) -> None:
        if program.captured_state and program.captured_state != self._captured_state:
            apply_state(program.captured_state)
            self._captured_state = program.captured_state
        if program.initializer is not None and program.initializer[0] not in self._initialized:
            number, code = program.initializer
            from mpgrad.calls.initializing import run_packed

            run_packed(self._memory.open_packed(code))
            self._initialized.add(number)

    def _run_steps(
        self,
        steps: list[NodeStep],
        program: TaskProgram,
        dispatch: DispatchNodeTask,
        publication: Publication,
    ) -> None:
        run_task(
            steps,
            self._contributions(steps, program, dispatch),
            publication.emit,
            CpuBackend(publication.empty),
            destination=publication,
            times=self._times,
            on_failure=self._note_failure,
        )

    def _tell(self, kind: str, output: Output) -> None:
        to = self._dispatch
        assert to is not None
        self._report(OutputEmitted(to.peer, to.graph, kind, encode_output(output)))

    def _note_failure(self, step: int, error: BaseException) -> None:
        self._failed_step = step

    def _contributions(
        self, steps: list[NodeStep], program: TaskProgram, dispatch: DispatchNodeTask
    ) -> Iterator[tuple[int, int, Array | None]]:
        slots, joins = program.slots, dict(program.joins)
        step = input_nr = 0
        try:
            for number, (step, input_nr) in enumerate(slots):
                meta, refs = steps[step].wiring.inputs[input_nr], dispatch.inputs[number]
                if number in joins:
                    yield step, input_nr, self._joined(refs, joins[number], meta)
                    continue
                for ref in refs:
                    if ref is not None:
                        where = meta.shape, meta.dtype
                        yield step, input_nr, self._memory.open_gradient(ref, *where)
        except BytesCorrupted as error:
            self._failed_step, shape = step, list(meta.shape)
            add_note(error, f"it is input {input_nr} of {steps[step].name}, of shape {shape}")
            raise

    def _joined(self, refs: Sequence[GradientRef], count: int, meta: InputMetadata) -> Array | None:
        """The gradient of ``count`` parts that came in these pieces; None if it is undefined."""
        if not refs:
            return None
        parts = [parts_of(share, len(refs), count) for share in range(len(refs))]
        pieces = [
            self._memory.open_gradient(ref, shape_of(meta.shape, where, count), meta.dtype)
            for ref, where in zip(refs, parts, strict=True)
            if ref is not None
        ]
        return join(pieces, parts, count, aligned_empty(meta.shape, meta.dtype))


def _require_fit(
    steps: Sequence[NodeStep], program: TaskProgram, dispatch: DispatchNodeTask
) -> None:
    """Check that a dispatch has the inputs and the blocks that its program names.

    Raises:
        ProtocolError: it has not.
    """
    slots, blocks = program.slots, dispatch.blocks
    if len(dispatch.inputs) != len(slots):
        raise ProtocolError(f"a task of {len(slots)} slots got {len(dispatch.inputs)} inputs")
    for at, input_nr in slots:
        if not (0 <= at < len(steps) and 0 <= input_nr < len(steps[at].inputs)):
            raise ProtocolError(
                f"a task of {len(steps)} Nodes has no input {input_nr} of Node {at}"
            )
    for step in steps:
        named = step.wiring.task_outputs
        if named.start < 0 or named.stop > len(blocks):
            raise ProtocolError(
                f"{step.name} gives output {named[-1]} of a task that got {len(blocks)} blocks"
            )


def _belongs(block: Block, dispatch: DispatchNodeTask) -> bool:
    return block in dispatch.blocks or any(block in slot for slot in dispatch.inputs)
