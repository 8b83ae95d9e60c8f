"""run_calls(): calls of the client forward in workers: submit them, wait, open what they gave."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from mpgrad.autograd.profiling.ranges import FUNCTION, RUNNING, Range, Recording
from mpgrad.autograd.profiling.task_times import unpack_times
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.device import CPU
from mpgrad.base.handles import ENGINE_ARENA, INLINE_LIMIT_BYTES, Block, GradientRef
from mpgrad.calls.call import BranchCall, Derivative, items_in_order
from mpgrad.calls.initializing import Initializer
from mpgrad.calls.packing import derivative_rule_of, rule_of
from mpgrad.engine.failure import error_of_calls
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.progress_display import progress_shown
from mpgrad.engine.session import Session, next_graph_number
from mpgrad.engine.session_pool import SessionPool
from mpgrad.errors import InvariantViolated, MpgradError, ProtocolError
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.scheduler.events import (
    ANY_SLOT,
    GraphExtended,
    GraphSubmitted,
    NodeTaskDone,
    NodeTaskFailed,
)
from mpgrad.scheduler.instructions import CompleteGraph, DispatchNodeTask, ForwardOutput
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec, OutputSpec
from mpgrad.wire.captured_state import CapturedState
from mpgrad.wire.output_record import WARNING, replay_warnings
from mpgrad.wire.programs import (
    CallAnswer,
    CallRule,
    DerivativeRule,
    NodeProgram,
    TaskProgram,
    Wiring,
    encode_program,
    encode_wiring,
)

Array: TypeAlias = np.ndarray[Any, Any]

#: The bytes of a program that travel inside its message.
PROGRAM_INLINE_BYTES = 16 << 10
#: The number of chunks in the first message for each worker, and in the longest message: each is
#: twice as long as the one before.
CHUNKS_AHEAD, CHUNKS_PER_MESSAGE = 2, 64

_GROWS = (
    "{name} gave a larger result when it ran again, because there had been no room for the first: "
    "its size depends on something else than its arguments. Return results of one size, or pass "
    "what it depends on as an argument"
)

_WIRING = encode_wiring(Wiring("a call", (), (), ()))
_answers = msgspec.msgpack.Decoder(CallAnswer)


class Request(NamedTuple):
    """A call, the arrays of its inputs (None: it has changed since the branch was recorded), the
    bytes that its results take, as far as known, and the slot of the worker that has its branch, if
    one has."""

    call: BranchCall | Derivative
    inputs: Sequence[Array | None]
    result_nbytes: int
    near: int = -1
    #: Whether it has run before, and its result had too little room.
    is_again: bool = False

    @property
    def recorded(self) -> list[int]:
        """The number of the branch that a worker records for it."""
        return [] if isinstance(self.call, Derivative) else [self.call.number]

    def left_behind(self, slot: int) -> list[tuple[int, int]]:
        """The branches that a worker keeps for a call which ran again in another ``slot``."""
        is_elsewhere = self.is_again and self.near != slot
        return [(self.near, number) for number in self.recorded] if is_elsewhere else []

    def with_room(self, nbytes: int, slot: int) -> Request:
        """The same call, which gets a block for a result of so many bytes. The worker in ``slot``
        has that result, unless it has let it go.

        Raises:
            MpgradError: it has got one, and gave a larger result than before.
        """
        if self.is_again:
            raise MpgradError(_GROWS.format(name=self.call.name))
        return self._replace(result_nbytes=nbytes, near=slot, is_again=True)


class Chunks(Sequence[Sequence[Request]]):
    """The calls of each task, which are made when they are first asked for.

    Args:
        sizes: the number of calls of each chunk.
        make: gives the calls of a chunk, by its number. The chunks are asked for in order.
    """

    def __init__(self, sizes: Sequence[int], make: Callable[[int], Sequence[Request]]) -> None:
        self._sizes, self._make = sizes, make
        self.made: list[Sequence[Request]] = []

    @property
    def calls(self) -> int:
        """The number of all calls."""
        return sum(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: Any) -> Any:
        while len(self.made) <= number < len(self):
            self.made.append(self._make(len(self.made)))
        return self.made[number]


class Answered(NamedTuple):
    """What a call has given: its answer, the bytes of the tensors in it, and the microseconds that
    its worker has taken."""

    answer: CallAnswer
    data: Array | None
    took_us: float

    @property
    def lacks_room(self) -> bool:
        """Whether the bytes were too many, so that the call has to be made again."""
        return self.data is None and self.answer.nbytes > 0


def run_calls(
    chunks: Chunks,
    sessions: SessionPool,
    shows_progress: bool,
    captured: CapturedState,
    keep: PackedArrays,
) -> list[Answered]:
    """Run calls in workers, one task for each chunk.

    Args:
        chunks: the calls; those of later ones are made while workers run earlier ones.
        sessions: of the engine.
        shows_progress: see ``Engine(progress=...)``.
        captured: the state of the calling thread.
        keep: holds the arrays that workers read; it must live as long as the branches.

    Returns:
        For each call, in order, what it has given.

    Raises:
        BaseException: what the first call that raised has raised.
        WorkerLost, CoordinatorLost, SharedMemoryExhausted, EngineClosed: see ``mpgrad.errors``.
    """
    try:
        return _run_calls(chunks, sessions, shows_progress, captured, keep)
    except BaseException:
        # Some of them may have ended well, and nobody will ask for their branches.
        sessions.ended_branches.extend(
            [(ANY_SLOT, at) for some in chunks.made for one in some for at in one.recorded]
        )
        raise


def _run_calls(
    chunks: Chunks,
    sessions: SessionPool,
    shows_progress: bool,
    captured: CapturedState,
    keep: PackedArrays,
) -> list[Answered]:
    number = next_graph_number()
    with sessions.session() as session:
        keep.engine_arena = sessions.coordinator.arena
        tasks = tasks_of(chunks, captured, keep, sessions.initializer)
        messages = messages_of(
            tasks,
            len(chunks),
            chunks.calls,
            session.peer,
            number,
            session.workers,
            depth_of_calls(),
        )
        pid = session.coordinator.pid
        with session.interrupts.deferred():
            try:
                with progress_shown(pid, len(chunks)) if shows_progress else nullcontext():
                    outcome = session.run(messages, no_client_task)
            finally:
                kept = session.kept_of(number)
            if isinstance(outcome, CompleteGraph):
                took_us = times_of(outcome, chunks, session)
                found = opened(outcome.captures, took_us, sessions, session, chunks)
    warn(kept, lambda task: chunks[task][0].call.items[0].number)
    if not isinstance(outcome, CompleteGraph):
        raise error_of_calls(outcome, lambda task: _name(chunks[task]))
    return found


def depth_of_calls() -> int:
    """The number of backwards that a call of this thread runs inside of."""
    running = innermost()
    return 0 if running is None else running.depth + 1


def warn(kept: Sequence[ForwardOutput], position: Callable[[int], int]) -> None:
    """Show the warnings of calls, in the order of the items."""
    warned = [output.data for output in kept if output.kind == WARNING]
    if warned:
        replay_warnings(warned, position)


def _name(chunk: Sequence[Request]) -> str:
    items = items_in_order([item for request in chunk for item in request.call.items])
    return f"{chunk[0].call.name} of {items}"


def no_client_task(dispatch: DispatchNodeTask) -> NodeTaskDone | NodeTaskFailed:
    raise InvariantViolated(f"a call was sent back to its client: {dispatch}")


def tasks_of(
    chunks: Sequence[Sequence[Request]],
    captured: CapturedState,
    keep: PackedArrays,
    initializer: Initializer | None,
) -> Iterator[NodeTaskSpec]:
    """The task of each chunk, made when it is asked for."""
    position = 0
    for number, chunk in enumerate(chunks):
        yield _task(chunk, position, len(chunks) - number, captured, keep, initializer)
        position += len(chunk)


def messages_of(
    tasks: Iterator[NodeTaskSpec],
    chunks: int,
    calls: int,
    peer: str,
    number: int,
    workers: int,
    depth: int,
) -> Iterator[GraphSubmitted | GraphExtended]:
    """The messages that submit calls; the tasks in each are made when the one before has gone.

    Args:
        tasks: one for each chunk.
        chunks, calls: the number of both.
        peer, number: the session, and its number of the graph.
        workers: the number of workers that wait.
        depth: see ``depth_of_calls``.
    """
    size, done = max(CHUNKS_AHEAD * workers, 1), 0
    while done < chunks:
        some, is_first = tuple(itertools.islice(tasks, size)), done == 0
        done += len(some)
        if is_first:
            yield GraphSubmitted(peer, number, depth, some, (), 2 * calls, done == chunks)
        else:
            yield GraphExtended(peer, number, some, done == chunks)
        size = min(2 * size, CHUNKS_PER_MESSAGE)


def _task(
    chunk: Sequence[Request],
    position: int,
    behind: int,
    captured: CapturedState,
    keep: PackedArrays,
    initializer: Initializer | None,
) -> NodeTaskSpec:
    program = encode_program(
        TaskProgram(
            tuple([NodeProgram(_rule(one, keep), _WIRING) for one in chunk]),
            (),
            is_timed=RUNNING.recording is not None,
            numpy_errors=captured.numpy_errors,
            captured_state=captured.data,
            initializer=None if initializer is None else initializer.packed(keep.array),
        )
    )
    outputs = []
    for at, request in enumerate(chunk, position):
        nbytes = request.result_nbytes
        outputs.append(OutputSpec(0, CAPTURE, 2 * at, 0))
        outputs.append(
            OutputSpec(nbytes if nbytes > INLINE_LIMIT_BYTES else 0, CAPTURE, 2 * at + 1, 0)
        )
    inner = tuple(range(position + 1, position + len(chunk)))
    spec = NodeTaskSpec(False, float(behind), position, 0, (), tuple(outputs), (), False, inner)
    spec = spec._replace(near=chunk[0].near)
    if len(program) <= PROGRAM_INLINE_BYTES:
        return spec.with_program((0, 0), program)
    start = keep.stored(program)
    return spec.with_program((start, len(program)), b"")


def _rule(request: Request, keep: PackedArrays) -> CallRule | DerivativeRule:
    call = request.call
    if isinstance(call, Derivative):
        return derivative_rule_of(call, request.inputs, keep.array)
    return rule_of(call, request.inputs, keep.array, runs_now=True)


def times_of(
    outcome: CompleteGraph, chunks: Sequence[Sequence[Request]], session: Session
) -> list[float]:
    """The microseconds that each call has taken in its worker; a profile notes when it ran."""
    took_us = [[0.0] * len(chunk) for chunk in chunks]
    recording = RUNNING.recording
    if recording is not None:
        note_processes(recording, session)
    for task, slot, duration_us, _, times in outcome.ran:
        chunk = chunks[task]
        took_us[task] = [duration_us / len(chunk)] * len(chunk)
        if recording is not None and times is not None:
            ran, thread = unpack_times(times).nodes, threading.get_native_id()
            for request, started, ended in zip(chunk, ran[::2], ran[1::2], strict=True):
                name = request.call.name
                recording.note_range(Range(FUNCTION, name, started, ended, thread, slot))
    return [one for chunk in took_us for one in chunk]


def note_processes(recording: Recording, session: Session) -> None:
    """Let a profile know the processes of an engine."""
    recording.coordinator_pid = session.coordinator.pid
    if len(recording.worker_pids) < session.workers:
        recording.worker_pids = dict(enumerate(session.processes().worker_pids))


def opened(
    captures: Sequence[GradientRef],
    took_us: Sequence[float],
    sessions: SessionPool,
    session: Session,
    chunks: Sequence[Sequence[Request]],
) -> list[Answered]:
    """What the calls of some chunks have given.

    Raises:
        ProtocolError, BytesCorrupted: see ``mpgrad.errors``.
    """

    def name(at: int) -> str:
        requests = [request for chunk in chunks for request in chunk]
        return f"the result of {_name([requests[at // 2]])}"

    found = []
    try:
        sessions.require_intact(session, captures, name)
        for told, ref, took in zip(captures[::2], captures[1::2], took_us, strict=True):
            if not isinstance(told, bytes):
                raise ProtocolError("a call has no answer")
            data: Array | None = None
            if isinstance(ref, Block):
                if ref.arena != ENGINE_ARENA:
                    raise ProtocolError(f"the results of a call lie in arena {ref.arena}")
                meta = InputMetadata((ref.nbytes,), np.dtype(np.uint8), CPU)
                data = sessions.lease(session, ref, meta)
            elif ref is not None:
                data = np.frombuffer(bytearray(ref), np.uint8)
            try:
                answer = _answers.decode(told)
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"malformed answer of a call: {error}") from None
            found.append(Answered(answer, data, took))
    except ProtocolError as error:
        raise session.distrust(error) from error
    return found
