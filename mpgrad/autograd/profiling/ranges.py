"""What is noted while a profile runs: ranges of time, each of one process or thread.

The profile that runs stands in ``RUNNING``; everything that can be noted asks there. Without one a
backward costs some comparisons more, and an operator nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from mpgrad.autograd.profiling.backward_run import NO_TASK, BackwardRun, TaskRun
from mpgrad.base.thread_state import PerThread
from mpgrad.dispatch.operator_mode import MODES, OperatorMode
from mpgrad.graph.node import upcoming_sequence_nr
from mpgrad.graph.registry import Operator
from mpgrad.scheduler.graph_spec import GraphSpec

if TYPE_CHECKING:
    from mpgrad.autograd.freezing.frozen_graph import FrozenGraph

#: Kinds of ranges.
OPERATOR, FUNCTION, NODE = "operator", "function", "node"
#: ``record_function``; what mpgrad does around the rules; and where it waits for other processes.
ANNOTATION, ENGINE, WAITING = "annotation", "engine", "waiting"


class Range(NamedTuple):
    """Something that ran; times in seconds of ``perf_counter``."""

    kind: str
    name: str
    started: float
    ended: float
    thread: int
    #: The worker's slot, -1 for the calling process.
    worker: int = -1
    #: Of a Node its own; of an operator that of the Node that it may have recorded; else -1.
    sequence_nr: int = -1
    shapes: tuple[Any, ...] = ()
    #: Bytes of the results.
    nbytes: int = 0
    #: Which backward of the profile, which Node and task of that, and how often that had begun.
    backward: int = -1
    node: int = -1
    task: int = -1
    attempt: int = 1


class _CurrentRun(PerThread):
    #: The backward that runs on this thread.
    run: BackwardRun | None = None


_current = _CurrentRun()


class Recording:
    """What one profile has noted. Thread-safe.

    Args:
        with_shapes: whether shapes are kept.
        with_memory: whether the bytes of results are kept.
    """

    def __init__(self, *, with_shapes: bool, with_memory: bool) -> None:
        self.with_shapes, self.with_memory = with_shapes, with_memory
        self.ranges: list[Range] = []
        self.backwards: list[BackwardRun] = []
        self.origin = perf_counter()
        self.ended: float | None = None
        #: Process ids of the workers by slot, and of the coordinator, where they were asked.
        self.worker_pids: dict[int, int] = {}
        self.coordinator_pid: int | None = None
        self._lock = threading.Lock()
        self._operators = _Operators(self)

    def begin(self) -> None:
        """Note what happens from now on, on all threads."""
        MODES.push_everywhere(self._operators)
        RUNNING.recording = self

    def end(self) -> None:
        """Note nothing any more."""
        RUNNING.recording = None
        MODES.pop_everywhere(self._operators)
        self.ended = perf_counter()

    @contextmanager
    def span(self, name: str, kind: str, sequence_nr: int = -1) -> Iterator[None]:
        """A range around a block."""
        started = perf_counter()
        try:
            yield
        finally:
            self.note(name, kind, started, perf_counter(), sequence_nr=sequence_nr)

    def note(self, name: str, kind: str, started: float, ended: float, **more: Any) -> None:
        """A range of this thread."""
        self.ranges.append(Range(kind, name, started, ended, threading.get_native_id(), **more))

    @contextmanager
    def backward(self, spec: GraphSpec) -> Iterator[BackwardRun]:
        """A backward runs inside."""
        with self._lock:
            run = BackwardRun(len(self.backwards), spec, perf_counter())
            self.backwards.append(run)
        before, _current.run = _current.run, run
        try:
            with self.span("backward", ENGINE):
                yield run
        finally:
            _current.run = before
            run.ended = perf_counter()

    def note_nodes(
        self,
        run: BackwardRun | None,
        frozen: FrozenGraph,
        indices: Sequence[int],
        times: Sequence[float],
        task: TaskRun = NO_TASK,
    ) -> None:
        """Note Nodes that ran one after another.

        Args:
            run: the backward that they belong to, where its beginning was seen.
            frozen: their graph.
            indices: which they are.
            times: for each its start and its end, one after the other.
            task: their NodeTask.
        """
        thread, spec = threading.get_native_id(), frozen.spec
        number = -1 if run is None else run.number
        if run is not None and task is not NO_TASK:
            run.tasks.append(task)
        for at, index in enumerate(indices):
            node = spec.nodes[index]
            started, ended = times[2 * at], times[2 * at + 1]
            shapes: tuple[Any, ...] = ()
            if self.with_shapes:
                shapes = tuple([meta.shape for meta in frozen.nodes[index].input_metadata])
            nbytes = _bytes_of_results(spec, index) if self.with_memory else 0
            self.ranges.append(
                Range(
                    NODE, node.name, started, ended, thread, task.worker,
                    frozen.nodes[index].sequence_nr, shapes, nbytes, number, index, task.task,
                    task.attempt,
                )
            )  # fmt: skip


class _RunningProfile:
    """Attributes: ``recording``: of the profile that runs; None without one."""

    __slots__ = ("recording",)

    def __init__(self) -> None:
        self.recording: Recording | None = None


RUNNING = _RunningProfile()

_NOTHING = nullcontext()


def span(name: str, kind: str = ENGINE, sequence_nr: int = -1) -> AbstractContextManager[None]:
    """A range around a block, where a profile runs."""
    recording = RUNNING.recording
    return _NOTHING if recording is None else recording.span(name, kind, sequence_nr)


def current_run() -> BackwardRun | None:
    """The backward that runs on this thread, where a profile has seen it begin."""
    return _current.run


def _bytes_of_results(spec: GraphSpec, index: int) -> int:
    """Of the gradients that a Node passes on."""
    edges = [edge for edge in spec.nodes[index].edges if edge is not None]
    return sum([spec.nodes[target].input_nbytes[number] for target, number in edges])


class _Operators(OperatorMode):
    """Notes every operator that runs."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def forward(
        self, operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any], run: Any
    ) -> Any:
        recording, raw = self._recording, None
        number, started = upcoming_sequence_nr(), perf_counter()
        try:
            raw = run()
        finally:
            ended = perf_counter()
            shapes: tuple[Any, ...] = ()
            if recording.with_shapes:
                shapes = tuple([tuple(getattr(value, "shape", ())) for value in inputs])
            is_new = recording.with_memory and operator.view is None
            recording.note(
                f"mpgrad::{operator.name}", OPERATOR, started, ended, sequence_nr=number,
                shapes=shapes, nbytes=_bytes_of(raw) if is_new else 0,
            )  # fmt: skip
        return raw


def _bytes_of(raw: Any) -> int:
    arrays = raw if isinstance(raw, tuple) else (raw,)
    return sum([getattr(array, "nbytes", 0) for array in arrays])
