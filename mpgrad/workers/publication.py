"""Publication: the outputs of a running task, in their blocks or inside messages."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running.node_loop import Destination, NodeStep, first_slots
from mpgrad.base.handles import MESSAGE_PART_BYTES, Block, GradientRef
from mpgrad.errors import ProtocolError
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.scheduler.events import NodeTaskProgress, OutputEmitted
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.workers.worker_memory import WorkerMemory

Array: TypeAlias = np.ndarray[Any, Any]
#: The input of each slot of a task: (step, input number).
Slots: TypeAlias = tuple[tuple[int, int], ...]
#: Sends the progress of a running task.
Report: TypeAlias = Callable[[NodeTaskProgress | OutputEmitted], None]

CACHE_LINE_BYTES = 64


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
        #: The bytes of those among them that lie inside messages.
        self._inline_nbytes = 0
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
        return aligned_empty(*wanted)

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
            self._inline_nbytes += array.nbytes
            if self._inline_nbytes > MESSAGE_PART_BYTES:
                self.publish()
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
        outputs = tuple([(output, self._refs[output]) for output in self._unreported])
        self._report(progress_of(self._dispatch, outputs))
        for output in self._unreported:
            self._refs[output] = None
        self._unreported.clear()
        self._inline_nbytes = 0

    def outputs(self) -> tuple[GradientRef, ...]:
        """The outputs that have left since the last report."""
        return tuple(self._refs)


def progress_of(
    dispatch: DispatchNodeTask, outputs: tuple[tuple[int, GradientRef], ...]
) -> NodeTaskProgress:
    """The message that a running task has these outputs, by number."""
    return NodeTaskProgress(dispatch.peer, dispatch.graph, dispatch.task, dispatch.attempt, outputs)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that starts at a cache line, as blocks do.

    NumPy's own arrays start 16 bytes after one, so that every vector load crosses two lines.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + CACHE_LINE_BYTES, np.uint8)
    # This takes a quarter of the time of __array_interface__.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % CACHE_LINE_BYTES
    return np.ndarray(shape, dtype, memory, start)
