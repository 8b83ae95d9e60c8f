"""HostActor: what runs on one host of a cluster: the client of an engine of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

import mpgrad
from mpgrad.base.machine import processor_name
from mpgrad.calls.call import BranchCall, Derivative
from mpgrad.calls.packing import call_of, derivative_of
from mpgrad.calls.preloading import LIBRARIES
from mpgrad.calls.travel import Receiver
from mpgrad.engine.calls_in_workers import Answered, Request
from mpgrad.engine.cluster.host_contract import Greeting, Reply
from mpgrad.engine.cluster.host_tasks import HostTask, SentCall, in_arena
from mpgrad.engine.coordinator_start import CoordinatorProcess
from mpgrad.engine.execution import Execution
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import UNWANTED, Submission
from mpgrad.errors import EngineClosed
from mpgrad.wire.captured_state import CapturedState, StateFields
from mpgrad.wire.programs import CallRule, InlineArray, PackedArray
from mpgrad.wire.remote_error import encode_error

Array: TypeAlias = np.ndarray[Any, Any]


class HostOptions(NamedTuple):
    """How a host's engine is made.

    Attributes:
        workers: None: as many as the host has CPUs for it.
        engine: further arguments of the engine.
        initializer: packed as ``calls.initializing`` does; empty: there is none.
        preloaded: modules that workers load from the beginning.
        variables: of the client's environment, which its engine would read.
    """

    workers: int | None
    engine: dict[str, Any]
    initializer: bytes
    preloaded: tuple[str, ...]
    variables: dict[str, str]


class KeptCall(NamedTuple):
    """A call that has recorded a branch."""

    call: BranchCall
    inputs: Sequence[Array | None]
    slot: int
    keep: PackedArrays


def versions() -> dict[str, str]:
    """What must be equal on all hosts: it decides about code and bits."""
    return {
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "mpgrad": mpgrad.__version__,
    }


def arithmetic() -> dict[str, str]:
    """What decides how results are rounded, beside that."""
    return {
        "processor": processor_name(),
        "BLAS": ", ".join(
            f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip()
            for pool in threadpool_info()
            if pool["user_api"] == "blas" and "numpy" in pool["filepath"]
        ),
    }


class HostActor:
    """The engine of one host. Each method may wait: they have threads of their own."""

    def __init__(self, options: HostOptions, cpus: int) -> None:
        self._options, self._cpus = options, cpus
        self._lock = threading.Lock()
        #: By digest: the number of the last task that it came with.
        self._arrays: dict[bytes, tuple[int, Array]] = {}
        #: The calls of branches by number, and what runs by the number of the attempt.
        self._kept: dict[int, KeptCall] = {}
        self._running: dict[int, Submission] = {}
        self._engine: Execution | None = None

    @property
    def _execution(self) -> Execution:
        assert self._engine is not None
        return self._engine

    def __repr__(self) -> str:
        """Stands before each line that its workers print."""
        return f"host {platform.node()}"

    def greet(self) -> Greeting:
        """Start the engine."""
        options = self._options
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # its processes inherit it
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's
        os.environ.update(options.variables)
        LIBRARIES[:] = options.preloaded
        arguments = options.engine
        if options.initializer:
            function, args = Receiver(()).load_shared(options.initializer, ())
            arguments = {**arguments, "initializer": function, "initargs": args}
        workers = options.workers or self._cpus
        checked = EngineOptions.checked("process", workers, gpus="none", recover="all", **arguments)
        self._engine = Execution(checked, partial(CoordinatorProcess, checked))
        self._engine.sessions.start()
        return Greeting(workers, versions(), arithmetic())

    def run(self, task: bytes, data: Sequence[Array], *stored: Array) -> list[Reply]:
        """Run a HostTask. What each of its calls has given, in order."""
        return [self.reply(one) for one in self.begin(task, data, *stored)]

    def begin(self, task: bytes, data: Sequence[Array], *stored: Array) -> list[Future[Answered]]:
        """Let its calls run."""
        told = _tasks.decode(task)
        with self._lock:
            arrays = self._opened(told, [*data, *stored])
        return [self._begin(one, arrays) for one in told.calls]

    def reply(self, future: Future[Answered]) -> Reply:
        """What a call has given, when it has ended."""
        try:
            answer, data, took_us = future.result()
        except BaseException as error:
            return encode_error(error, f"a worker of {platform.node()}")
        return msgspec.msgpack.encode(answer), data, took_us

    def ask(self) -> None:
        """Show that it lives."""

    def stop(self, number: int, grace_ms: int | None) -> None:
        """Nobody wants that call any more."""
        submission = self._running.get(number)
        if submission is not None and self._execution.submitter.stop(submission, grace_ms):
            submission.fail(EngineClosed(UNWANTED))

    # ------------------------------------------------------------------ one call

    def _opened(self, task: HostTask, data: Sequence[Array]) -> list[Array]:
        """The arrays that a task uses; what it says of the others is done."""
        found = []
        for used in task.arrays:
            if used.place >= 0:
                number, known = self._arrays.get(used.digest, (0, None))
                array = in_arena(used.layout, data[used.place]) if known is None else known
                self._arrays[used.digest] = max(number, task.number), array
            found.append(self._arrays[used.digest][1])
        for digest in task.forgotten:
            if self._arrays.get(digest, (task.number,))[0] < task.number:
                del self._arrays[digest]
        for number in task.released:
            kept = self._kept.pop(number, None)
            if kept is not None:
                self._execution.sessions.ended_branches.append((kept.slot, number))
        return found

    def _begin(self, sent: SentCall, arrays: Sequence[Array]) -> Future[Answered]:
        """Let a call run."""

        def unpack(packed: PackedArray) -> Array:
            if isinstance(packed, InlineArray):
                where = packed.offset, packed.strides
                return np.ndarray(packed.shape, packed.dtype, packed.data, *where)
            return arrays[packed.handle.block_offset]

        keep = PackedArrays()
        call, inputs = self._call(sent, unpack)
        future: Future[Answered] = Future()

        def end(answers: Sequence[Answered] | BaseException) -> None:
            del self._running[sent.number]
            if isinstance(answers, BaseException):
                future.set_exception(answers)
                return
            (found,) = answers
            is_recorded = any(told.requires_grad for told in found.answer.outputs)
            if isinstance(call, BranchCall) and is_recorded:
                self._kept[call.number] = KeptCall(call, inputs, found.answer.slot, keep)
            future.set_result(found)

        submission = Submission(
            [Request(call, inputs, sent.room, sent.near)],
            CapturedState(_in_this_host(sent.captured_state), "", sent.numpy_errors),
            keep,
            sent.depth,
            future.set_running_or_notify_cancel,
            end,
        )
        self._running[sent.number] = submission
        self._execution.submitter.submit(submission)
        return future

    def _call(
        self, sent: SentCall, unpack: Callable[[PackedArray], Array]
    ) -> tuple[BranchCall | Derivative, list[Array | None]]:
        """A call, and the arrays of its inputs."""
        rule = sent.rule
        packed = rule.inputs if isinstance(rule, CallRule) else rule.call.inputs
        inputs = [None if one is None else unpack(one) for one in packed]
        if isinstance(rule, CallRule):
            return call_of(rule, unpack), inputs
        task, known = derivative_of(rule, unpack), self._kept.get(sent.of)
        if known is not None:
            task, inputs = task._replace(call=known.call), [*known.inputs]
        return task, [*inputs, *map(unpack, rule.grads)]


_tasks = msgspec.msgpack.Decoder(HostTask)
_state_fields = msgspec.msgpack.Decoder(StateFields)


def _in_this_host(data: bytes) -> bytes:
    """The state of a client, without a directory that this host does not have."""
    found = _state_fields.decode(data)
    if found.directory is None or os.path.isdir(found.directory):
        return data
    with contextlib.suppress(OSError):
        return msgspec.msgpack.encode(msgspec.structs.replace(found, directory=None))
    return data
