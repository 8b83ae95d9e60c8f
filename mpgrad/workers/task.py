"""TaskRunner: runs one dispatched NodeTask: open the inputs, run the Steps, publish the outputs."""

from __future__ import annotations

import ctypes
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpgrad.autograd.profiling.task_times import pack_times
from mpgrad.autograd.running.node_loop import Destination, NodeStep, first_slots, run_task
from mpgrad.backends.column_parts import join, shape_of
from mpgrad.backends.cpu import CpuBackend
from mpgrad.base.handles import Block, GradientRef
from mpgrad.errors import ProtocolError
from mpgrad.graph.node import InputMetadata
from mpgrad.scheduler.events import NodeTaskDone, NodeTaskFailed, NodeTaskProgress, OutputEmitted
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.scheduler.split import parts_of
from mpgrad.wire.output_record import Output, encode_output
from mpgrad.wire.programs import CallRule, DerivativeRule, TaskProgram, decode_program
from mpgrad.wire.remote_error import encode_error
from mpgrad.wire.surroundings import take_over_surroundings
from mpgrad.workers.rules import Rules
from mpgrad.workers.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from mpgrad.workers.calls import CallRunner

Array: TypeAlias = np.ndarray[Any, Any]
#: The input of each slot of a task: (step, input number).
Slots: TypeAlias = tuple[tuple[int, int], ...]
#: Sends the progress of a running task.
Report: TypeAlias = Callable[[NodeTaskProgress | OutputEmitted], None]

CACHE_LINE_BYTES = 64


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
        #: The last surroundings of user code.
        self._surroundings = b""
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
            self.has_run_function = bool(program.surroundings)
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
        self._take_over(program)
        times: list[float] | None = [] if program.is_timed else None
        self._times = times
        outputs: list[GradientRef] = []
        copied = 0
        with np.errstate(**program.numpy_errors):  # type: ignore[arg-type]
            for at, node in enumerate(program.nodes):
                if not isinstance(node.rule, CallRule | DerivativeRule):
                    raise ProtocolError("a task of calls has another rule")
                self._failed_step = at
                started = perf_counter()
                found, nbytes = self.calls.run(node.rule, dispatch.blocks[2 * at : 2 * at + 2])
                if times is not None:
                    times += (started, perf_counter())
                outputs += found
                copied += nbytes
        return tuple(outputs), copied

    def _take_over(self, program: TaskProgram) -> None:
        if program.surroundings and program.surroundings != self._surroundings:
            take_over_surroundings(program.surroundings)
            self._surroundings = program.surroundings
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
        if len(dispatch.inputs) != len(slots):
            raise ProtocolError(f"a task of {len(slots)} slots got {len(dispatch.inputs)} inputs")
        for number, (step, input_nr) in enumerate(slots):
            meta, refs = steps[step].wiring.inputs[input_nr], dispatch.inputs[number]
            if number in joins:
                yield step, input_nr, self._joined(refs, joins[number], meta)
                continue
            for ref in refs:
                if ref is not None:
                    yield step, input_nr, self._memory.open_gradient(ref, meta.shape, meta.dtype)

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
        return join(pieces, parts, count, _aligned_empty(meta.shape, meta.dtype))


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that starts at a cache line, as blocks do.

    NumPy's own arrays start 16 bytes after one, so that every vector load crosses two lines.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + CACHE_LINE_BYTES, np.uint8)
    # This takes a quarter of the time of __array_interface__.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % CACHE_LINE_BYTES
    return np.ndarray(shape, dtype, memory, start)


def _belongs(block: Block, dispatch: DispatchNodeTask) -> bool:
    return block in dispatch.blocks or any(block in slot for slot in dispatch.inputs)


class Publication(Destination):
    """Writes the outputs of a task into the blocks that came with the dispatch.

    While an operator's rule runs, ``empty`` gives its large results memory in those blocks, so that
    publishing copies nothing. Other results are copied once.

    Args:
        memory: the arenas.
        dispatch: the task.
        report: sends its progress.
    """

    def __init__(self, memory: WorkerMemory, dispatch: DispatchNodeTask, report: Report) -> None:
        self._memory, self._dispatch, self._report = memory, dispatch, report
        self._blocks = dispatch.blocks
        #: Small outputs have no block: they travel inside the reply.
        self._has_blocks = any(block is not None for block in dispatch.blocks)
        self._refs: list[GradientRef] = [None] * len(dispatch.blocks)
        #: The start address of each block with final content, so that it can be passed on again.
        self._final: dict[int, Block] = {
            memory.address_of_input(ref): ref
            for slot in dispatch.inputs
            for ref in slot
            if isinstance(ref, Block)
        }
        #: Outputs of the running step that a result may be written to: output number -> metadata.
        self._free: dict[int, tuple[tuple[int, ...], Any]] = {}
        #: Blocks given to the running step: output number -> array.
        self._lent: dict[int, Array] = {}
        #: Outputs that have left since the last report.
        self._unreported: list[int] = []
        #: Inputs inside the task with one contribution that are also an output.
        self._captured: dict[tuple[int, int], int] = {}
        #: By slot, the same with several contributions: output number and metadata of their sum.
        self._summed: dict[int, tuple[int, InputMetadata]] = {}
        #: Steps that only pass on an array that becomes an output and lies in its block already.
        self._passed: dict[NodeStep, int] = {}
        #: Arrays that were copied into a block, and the memory of those that were born in one.
        self._kept: list[Any] = []
        self.copied_bytes = 0

    def note_captures(self, steps: Sequence[NodeStep], slots: Slots) -> None:
        """Give gradients that flow inside the task and also leave it the block of the output.

        This excludes inputs of a user's backward, which may keep them.
        """
        captures: dict[tuple[int, int], tuple[int, InputMetadata]] = {}
        for at, step in enumerate(steps):
            for input_nr, number in step.wiring.captures:
                if self._blocks[number] is not None and not step.wiring.takes_undefined:
                    # If several outputs are the same, the first one.
                    captures.setdefault((at, input_nr), (number, step.wiring.inputs[input_nr]))
            if step.wiring.passes_on:
                # What it gets leaves the task as it is: to be born where it leaves.
                for number in self._passed_by(step):
                    captures.setdefault((at, 0), (number, step.wiring.inputs[0]))
                    self._passed.setdefault(step, number)
        if not captures:
            return
        flows, first = Counter(slots), first_slots(steps)
        for step in steps:
            flows.update(route for route in step.wiring.routes if isinstance(route, tuple))
        for target, (number, meta) in captures.items():
            if flows[target] == 1:
                self._captured[target] = number
            else:
                self._summed[first[target[0]] + target[1]] = number, meta
        self._trace_back(steps, flows)

    def _passed_by(self, step: NodeStep) -> Iterator[int]:
        """The outputs with a block of their own that become what ``step`` gets."""
        wiring = step.wiring
        for route, meta in zip(wiring.routes, wiring.outputs, strict=True):
            if type(route) is int and meta == wiring.inputs[0] and self._blocks[route] is not None:
                yield route

    def _trace_back(self, steps: Sequence[NodeStep], flows: Counter[tuple[int, int]]) -> None:
        """If a step only passes an array on, its producer writes into the block of the output."""
        makers = {
            route: at
            for at, step in enumerate(steps)
            for route in step.wiring.routes
            if isinstance(route, tuple)
        }
        for target, number in [*self._captured.items()]:
            at, meta = makers.get(target), steps[target[0]].wiring.inputs[target[1]]
            while at is not None and steps[at].wiring.passes_on and flows[at, 0] == 1:
                if steps[at].wiring.inputs[0] != meta or (at, 0) in self._captured:
                    break
                self._captured[at, 0] = self._passed[steps[at]] = number
                at = makers.get((at, 0))

    # ------------------------------------------------------------------ memory for results

    def begin(self, step: NodeStep) -> None:
        if not self._has_blocks:
            return
        self._lent.clear()
        self._free.clear()
        if step.wiring.takes_undefined:
            return  # a user's backward may keep its results
        for route, meta in zip(step.wiring.routes, step.wiring.outputs, strict=True):
            output = self._output_of(route)
            if output is None or meta is None or output == self._passed.get(step):
                continue
            if self._blocks[output] is not None:
                self._free[output] = (meta.shape, meta.dtype)

    def _output_of(self, route: Any) -> int | None:
        """The task output that the gradient along ``route`` becomes unchanged, if any."""
        return route if type(route) is int else self._captured.get(route)

    def place_of_sum(self, slot: int) -> Array | None:
        number, meta = self._summed.get(slot, (None, None))
        block = None if number is None else self._blocks[number]
        if block is None or meta is None:
            return None
        return self._memory.open_output(block, meta.shape, meta.dtype)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """A fresh array, in the block of an output of that form if there is one."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        wanted = (shape, np.dtype(dtype))
        for output, meta in self._free.items():
            block = self._blocks[output]
            if meta == wanted and block is not None:
                del self._free[output]
                array = self._memory.open_output(block, *wanted)
                self._lent[output] = array
                return array
        return _aligned_empty(*wanted)

    def settle(self, step: NodeStep, grads: list[Any]) -> None:
        """Publish a result that lies in another output's block before that block is written."""
        if not self._lent:
            return
        for index, grad in enumerate(grads):
            if not isinstance(grad, np.ndarray):
                continue
            for output, array in self._lent.items():
                own = self._output_of(step.wiring.routes[index])
                if own != output and np.may_share_memory(grad, array):
                    grads[index] = grad.copy()
                    break

    # ------------------------------------------------------------------ outputs

    def emit(self, output: int, array: Array | None) -> None:
        """Publish ``array`` as task output ``output``."""
        if output in self._dispatch.published:
            return
        if not 0 <= output < len(self._blocks):
            raise ProtocolError(f"output {output} of a task with {len(self._blocks)} outputs")
        self._unreported.append(output)
        if array is None:
            return
        block = self._blocks[output]
        if block is None:
            self._refs[output] = array.tobytes()
            return
        if array is not self._lent.get(output):
            start = array.__array_interface__["data"][0]
            passed_on = self._final.get(start)
            if passed_on is not None and passed_on.nbytes == block.nbytes == array.nbytes:
                self._refs[output] = passed_on
                return
            if start != self._memory.address_of_output(block):
                target = self._memory.open_output(block, array.shape, array.dtype)
                np.copyto(target, array)
                self.copied_bytes += array.nbytes
                # An operator may return one array for several outputs. It is kept, so that no
                # result of a later Node can get its address.
                self._kept.append(array)
                self._final[start] = block
        # What flows on inside the task is not the task's to change any more (``is_exclusive``).
        self._kept.append(array.base)
        self._memory.seal(block)
        self._final[self._memory.address_of_output(block)] = block
        self._refs[output] = block

    def publish(self) -> None:
        if not self._unreported:
            return
        to = self._dispatch
        outputs = tuple([(output, self._refs[output]) for output in self._unreported])
        self._report(NodeTaskProgress(to.peer, to.graph, to.task, to.attempt, outputs))
        for output in self._unreported:
            self._refs[output] = None
        self._unreported.clear()

    def outputs(self) -> tuple[GradientRef, ...]:
        """The outputs that have left since the last report."""
        return tuple(self._refs)
