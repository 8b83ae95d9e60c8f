"""GraphSubmission: the messages that submit one graph, and the data its workers read.

That data are programs, saved arrays and user code.

It goes in several messages, so that the workers begin while the rest is still being packed.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from mpgrad.arrays.cuda.device_arrays import is_array
from mpgrad.arrays.cuda.device_submission import DeviceSubmission
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import (
    ContextDescription,
    FunctionNode,
    PortableContext,
)
from mpgrad.autograd.running.collector import collector_held_for
from mpgrad.base.handles import GradientRef
from mpgrad.calls.custom_functions.attributes import pack_attributes
from mpgrad.calls.custom_functions.run_on import SerializedCode
from mpgrad.calls.fork_function import Fork, arrays_to_send, holder_of
from mpgrad.calls.initializing import Initializer
from mpgrad.calls.packing import rule_of
from mpgrad.engine.cost_learning import wants_times
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.engine.raised_on_worker import RaisedOnWorker, is_guess
from mpgrad.engine.spot_checks import SpotChecks
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.scheduler.chunks import SMALL_GRAPH, chunk_ends, in_chunks
from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec
from mpgrad.shm.arena import client_arena
from mpgrad.wire.captured_state import CapturedState, changed_numpy_errors
from mpgrad.wire.programs import (
    BranchRule,
    FunctionRule,
    NodeProgram,
    OperatorRule,
    PackedArray,
    Rule,
    TaskProgram,
    encode_plain,
    encode_program,
)

if TYPE_CHECKING:
    from mpgrad.engine.coordinator_start import CoordinatorProcess

Array: TypeAlias = np.ndarray[Any, Any]

T = TypeVar("T")
#: Runs the local share. Returns what flows into other tasks (task, slot, place,
#: reference), and the Node of the task that raised, if one did.
RunOwn: TypeAlias = Callable[[], tuple[list[tuple[int, int, int, GradientRef]], int | None]]

#: The bytes of all programs of a graph that travel inside its message.
PROGRAMS_INLINE_BYTES = 16 << 10

_is_on_client = attrgetter("on_client")

#: The number of encoded descriptions of Functions' contexts that are kept.
DESCRIPTIONS_MAX = 1024


class GraphSubmission(PackedArrays):
    """The submission of one GraphTask.

    Args:
        frozen: the graph.
        graph: its plan.
        code: by node index, the code of each Function that a worker runs.
        captured: the state of its Functions; None if it has none.
        initializer: of the engine.
    """

    def __init__(
        self,
        frozen: FrozenGraph,
        graph: PreparedGraph,
        code: dict[int, SerializedCode],
        captured: CapturedState | None = None,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__()
        self._initializer = initializer
        self._frozen, self._graph, self._code = frozen, graph, code
        #: Whether workers report when each Node ran: in all tasks, or where it helps to learn.
        self.is_timed = self.learns = False
        #: Decides for which Functions the workers report arguments and results.
        self.spot_checks: SpotChecks | None = None
        self.captured = captured
        self._numpy_errors = (
            changed_numpy_errors(np.geterr()) if captured is None else captured.numpy_errors
        )
        #: Where the code of Functions lies, by its id.
        self._serialized: dict[str, PackedArray] = {}
        #: The Functions that were written.
        self._met: set[type[Function]] = set()
        #: What user code in the client changes later would count as a difference.
        self._is_alone = bool(code) and not any(map(_is_on_client, frozen.spec.nodes))
        #: By task, the slot of the worker that has recorded a branch which it differentiates.
        self._holders = _holders(frozen, graph, code) if code else {}

    def connect(self, coordinator: CoordinatorProcess) -> None:
        """Hand the graph over to the workers of ``coordinator``."""
        self.engine_arena = coordinator.arena
        if coordinator.devices is not None:
            self.devices = DeviceSubmission(coordinator.devices)

    # ------------------------------------------------------------------ messages

    def messages(
        self,
        peer: str,
        graph: int,
        depth: int,
        workers: int,
        ahead: Sequence[GradientRef] | None,
        run_own: RunOwn | None = None,
    ) -> Iterator[GraphSubmitted | GraphExtended]:
        """The messages that submit the graph: first enough tasks for each worker, then more.

        The last one has what the local share gives; it runs before that is asked for.

        Args:
            peer: the session that submits it.
            graph: its number.
            depth: the number of backwards that it runs inside of.
            workers: the number of workers that wait for it.
            ahead: the outputs of task 0, if that has already run.
            run_own: runs the local share; None if it has none.
        """
        planned = self._graph.plan
        done = int(ahead is not None) + int(run_own is not None)
        gradients = [
            (output.task, output.slot, output.place, ref)
            for output, ref in zip(
                planned.tasks[0].outputs if ahead is not None else (), ahead or (), strict=True
            )
            if output.task >= done or output.task == CAPTURE
        ]
        gradients += [
            (*where, self.gradient(seed))
            for where, seed in zip(planned.seeds, self._frozen.seeds, strict=True)
            if where[0] >= done
        ]
        ends = chunk_ends(planned, workers, done)
        captures = len(self._frozen.sinks)
        submitted = GraphSubmitted(peer, graph, depth, (), tuple(gradients), captures, done=done)
        own = None if run_own is None else planned.tasks[planned.local_share].outputs
        is_awaited = own is not None and any(output.task != CAPTURE for output in own)
        yield from in_chunks(submitted, ends, self._tables, goes_on=is_awaited)
        if run_own is not None:
            given, failed = run_own()
            if is_awaited or failed is not None:
                blamed = None if failed is None else (planned.local_share, failed)
                yield GraphExtended(peer, graph, (), True, tuple(given), blamed)

    def _tables(self, start: int, stop: int, done: int) -> tuple[NodeTaskSpec, ...]:
        """The tables of tasks ``start`` to ``stop``; who runs the first ``done`` needs nothing."""
        tasks, first = self._graph.plan.tasks, max(start, done)
        with collector_held_for(len(self._frozen.nodes)):
            programs = self.programs(range(first, stop))
            written = [
                task.with_program(*program)
                for task, program in zip(tasks[first:stop], programs, strict=True)
            ]
            if self._holders:
                for at, task in enumerate(written, first):
                    if at in self._holders:
                        written[at - first] = task._replace(near=self._holders[at])
        return (*tasks[start:first], *written)

    # ------------------------------------------------------------------ programs

    def programs(self, tasks: range) -> list[tuple[tuple[int, int], bytes]]:
        """Encode the programs of some tasks; return for each its place in the arena, and itself.

        If they are short, they travel inside the message, which costs less than a block does; not
        those of many tasks, which the coordinator would keep. Tasks of the client need no program.
        """
        encoded = [
            b"" if self._graph.plan.tasks[task].on_client else encode_program(self._program(task))
            for task in tasks
        ]
        is_small = len(self._graph.plan.tasks) <= SMALL_GRAPH
        if is_small and sum(map(len, encoded)) <= PROGRAMS_INLINE_BYTES:
            return [((0, 0), data) for data in encoded]
        start = self._located(self._store(b"".join(encoded)))[0]
        placed = []
        for data in encoded:
            placed.append(((start, len(data)), b""))
            start += len(data)
        return placed

    def _program(self, task: int) -> TaskProgram:
        plan, code = self._graph.plan, self._code
        members = plan.groups[task]
        nodes = [
            NodeProgram(self._rule(member.node), program) if isinstance(program, bytes) else program
            for member, program in zip(
                members, self._graph.programs(self._frozen, task), strict=True
            )
        ]
        has_function = bool(code) and any(member.node in code for member in members)
        is_timed = self.is_timed or (self.learns and wants_times(members))
        return TaskProgram(
            tuple(nodes),
            plan.slots[task],
            anomaly.checks_nan,
            is_timed,
            self._numpy_errors,
            self.captured.data if has_function and self.captured is not None else b"",
            plan.joins[task],
            self._initializer.packed(self.array)
            if has_function and self._initializer is not None
            else None,
        )

    def _rule(self, index: int) -> Rule:
        node = self._frozen.nodes[index]
        if isinstance(node, OperatorNode):
            try:  # as in _read, which would be one more call for each Node
                arrays = node.saved_arrays()
            except RuntimeError as error:
                raise SavedTensorsUnreadable from error
            return self._operator(node, arrays)
        if isinstance(node, FunctionNode):
            if node.function is Fork:
                return self._branch(node)
            return self._function(node, _read(node.portable_context), index)
        raise TypeError(
            f"{node.name()} has a class of its own and cannot be sent to a worker: let the class "
            "have runs_on_client = True, or use a custom Function"
        )

    def _operator(self, node: OperatorNode, arrays: dict[str, Any]) -> OperatorRule:
        saved: dict[str, PackedArray] = {}
        several: dict[str, tuple[PackedArray | None, ...]] = {}
        plain = node.plain
        for name, value in arrays.items():
            if isinstance(value, tuple):
                are_arrays = [is_array(v) for v in value]
                several[name] = tuple(
                    self.array(v) if here else None
                    for v, here in zip(value, are_arrays, strict=True)
                )
                if not all(are_arrays):
                    scalars = tuple(
                        None if here else v for v, here in zip(value, are_arrays, strict=True)
                    )
                    plain = {**plain, name: scalars}
            else:
                saved[name] = self.array(value)
        return OperatorRule(
            node.operator.name, saved, several, encode_plain(plain) if plain else b""
        )

    def _branch(self, node: FunctionNode) -> BranchRule:
        ctx = node.ctx
        call = rule_of(ctx.call, _read(functools.partial(arrays_to_send, node)), self.array)
        return BranchRule(call, ctx.wanted, ctx.output_count, ctx.digest)

    def _function(self, node: FunctionNode, context: PortableContext, index: int) -> FunctionRule:
        code, cost_us = self._code[index], self._frozen.spec.nodes[index].cost_us
        is_first = self._is_alone and node.function not in self._met
        self._met.add(node.function)
        buffers: list[Any] = []
        try:
            attributes = pack_attributes(context.attributes, code.held, buffers.append)
        except Exception as cause:
            error = TypeError(
                f"{node.name()} cannot be sent to a worker: what its ctx holds cannot be pickled "
                f"({cause}). Set run_on = 'client' on the Function, or keep it off ctx"
            )
            if is_guess(node, error):
                raise RaisedOnWorker(node.function, error) from cause
            raise error from cause
        serialized = self._serialized.get(code.code_id)
        if serialized is None:
            serialized = self._serialized[code.code_id] = self.array(_bytes_of(code))
        return FunctionRule(
            code.code_id,
            serialized,
            tuple([None if array is None else self.array(array) for array in context.saved]),
            _described(context.description),
            attributes,
            tuple([self.array(np.frombuffer(buffer.raw(), np.uint8)) for buffer in buffers]),
            index,
            self.spot_checks is not None
            and self.spot_checks.chooses(node, cost_us, is_first=is_first),
        )


def _holders(
    frozen: FrozenGraph, graph: PreparedGraph, code: dict[int, SerializedCode]
) -> dict[int, int]:
    found = {}
    for at in code:
        slot = holder_of(frozen.nodes[at])
        if slot >= 0:
            found[graph.plan.task_of[at]] = slot
    return found


@functools.lru_cache(DESCRIPTIONS_MAX)
def _described(description: ContextDescription) -> bytes:
    return pickle.dumps(description, protocol=5)


class SavedTensorsUnreadable(Exception):
    """A Node's saved tensors were freed or changed in place; the cause names which."""


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except RuntimeError as error:
        raise SavedTensorsUnreadable from error


#: The bytes of serialized code as arrays in the arena, by content: each is written once.
_code_arrays: dict[str, Array] = {}
#: The bytes of serialized code that stay there for later graphs.
CODE_BYTES_MAX = 16 << 20


def _bytes_of(code: SerializedCode) -> Array:
    array = _code_arrays.get(code.code_id)
    if array is None:
        array = client_arena().empty((len(code.blob),), np.uint8)
        array[:] = np.frombuffer(code.blob, np.uint8)
        _code_arrays[code.code_id] = array
        # A class that reads an array is packed again whenever that array has changed.
        while sum([kept.nbytes for kept in [*_code_arrays.values()]]) > CODE_BYTES_MAX:
            _code_arrays.pop(next(iter(_code_arrays)), None)
    return array
