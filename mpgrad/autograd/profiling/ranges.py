"""What is noted while a profile runs: ranges of time, each of one process or thread.

The profile that runs stands in ``RUNNING``; everything that can be noted asks there. Without one a
backward costs some comparisons more, and an operator nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mpgrad.autograd.profiling.backward_run import NO_TASK, BackwardRun, TaskRun
from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.dispatch.operator_mode import MODES
from mpgrad.recording.graph.grad_modes import GRAD_MODE
from mpgrad.recording.graph.registry import Operator
from mpgrad.scheduler.graph_spec import GraphSpec

if TYPE_CHECKING:
    from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph

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
    """Attributes: ``run``: the backward that runs on this thread; ``thread``: its number."""

    def __init__(self) -> None:
        self.run: BackwardRun | None = None
        self.thread = threading.get_native_id()


_current = _CurrentRun()

#: What was noted of an operator: itself, start, end, thread, the number of its Node (-1: none), the
#: shapes of its inputs, the bytes of its results, and whether it changed its first input.
_OperatorNote: TypeAlias = tuple[Operator, float, float, int, int, tuple[Any, ...], int, bool]


class NodeNotes(NamedTuple):
    """What is kept of Nodes until their ranges are read: no Node and no array.

    Attributes:
        spec: their graph.
        thread: that called ``backward()``.
        backward: which one of the profile.
        numbers: their ``sequence_nr`` by index.
        shapes: of the gradients that flow in, by index, if they were asked for.
        with_memory: whether the bytes of results are wanted.
    """

    spec: GraphSpec
    thread: int
    backward: int
    numbers: dict[int, int]
    shapes: dict[int, tuple[Any, ...]] | None
    with_memory: bool

    def ranges(
        self, indices: Sequence[int], times: Sequence[float], task: TaskRun
    ) -> Iterator[Range]:
        """Their ranges; the arguments are those of ``Recording.note_nodes``."""
        for index, started, ended in zip(indices, times[::2], times[1::2], strict=True):
            shapes = () if self.shapes is None else self.shapes[index]
            nbytes = _bytes_of_results(self.spec, index) if self.with_memory else 0
            yield Range(
                NODE, self.spec.nodes[index].name, started, ended, self.thread, task.worker,
                self.numbers[index], shapes, nbytes, self.backward, index, task.task, task.attempt,
            )  # fmt: skip


class Recording:
    """What one profile has noted. Thread-safe.

    While it runs, a note is a tuple of what is at hand. Ranges are made when they are read.

    Args:
        with_shapes: whether shapes are kept.
        with_memory: whether the bytes of results are kept.
    """

    def __init__(self, *, with_shapes: bool, with_memory: bool) -> None:
        self.with_shapes, self.with_memory = with_shapes, with_memory
        self.origin = perf_counter()
        self.ended: float | None = None
        #: Process ids of the workers by slot, and of the coordinator, where they were asked.
        self.worker_pids: dict[int, int] = {}
        self.coordinator_pid: int | None = None
        #: What workers on other hosts are called, by their number.
        self.worker_names: dict[int, str] = {}
        self._lock = threading.Lock()
        self._ranges: list[Range] = []
        self._backwards: list[BackwardRun] = []
        self._operators: list[_OperatorNote] = []
        #: Each gives ranges, and may complete its backward.
        self._pending: list[Callable[[], Iterable[Range]]] = []

    @property
    def ranges(self) -> list[Range]:
        """All that was noted."""
        with self._lock:
            # Other threads may go on noting.
            noted, pending = self._operators[:], self._pending[:]
            del self._operators[: len(noted)], self._pending[: len(pending)]
            self._ranges += map(_operator_range, noted)
            for read in pending:
                self._ranges += read()
        return self._ranges

    @property
    def backwards(self) -> list[BackwardRun]:
        """Each ``backward()`` and ``grad()``, complete but for one that runs now."""
        _ = self.ranges
        return self._backwards

    def begin(self) -> None:
        """Note what happens from now on, on all threads."""
        _current.thread = threading.get_native_id()  # it is another one after a fork
        MODES.observe(self._note_operator)
        RUNNING.recording = self

    def end(self) -> None:
        """Note nothing any more."""
        RUNNING.recording = None
        MODES.observe(None)
        self.ended = perf_counter()

    def note(self, name: str, kind: str, started: float, ended: float, number: int = -1) -> None:
        """A range of this thread, and the number of its Node."""
        self._ranges.append(Range(kind, name, started, ended, _current.thread, -1, number))

    def note_range(self, found: Range) -> None:
        """A range that another process has told of."""
        self._ranges.append(found)

    def later(self, read: Callable[[], Iterable[Range]]) -> None:
        """Note the ranges that ``read()`` gives when they are asked for; it keeps no array."""
        self._pending.append(read)

    @contextmanager
    def backward(self, spec: GraphSpec) -> Iterator[BackwardRun]:
        """A backward runs inside."""
        with self._lock:
            run = BackwardRun(len(self._backwards), spec, perf_counter())
            self._backwards.append(run)
        before, _current.run = _current.run, run
        try:
            with Span(self, "backward", ENGINE):
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
        if run is not None and task is not NO_TASK:
            run.tasks.append(task)
        notes = self.notes_of(run, frozen, indices)
        self.later(functools.partial(notes.ranges, indices, times, task))

    def notes_of(
        self, run: BackwardRun | None, frozen: FrozenGraph, indices: Iterable[int]
    ) -> NodeNotes:
        """What the ranges of these Nodes need."""
        nodes, shapes = frozen.nodes, None
        if self.with_shapes:
            shapes = {at: tuple([m.shape for m in nodes[at].input_metadata]) for at in indices}
        return NodeNotes(
            frozen.spec,
            _current.thread,
            -1 if run is None else run.number,
            {at: nodes[at].sequence_nr for at in indices},
            shapes,
            self.with_memory,
        )

    def _note_operator(
        self, operator: Operator, inputs: Sequence[Any], started: float, result: Any
    ) -> None:
        ended = perf_counter()
        first = result[0] if type(result) is tuple else result
        node, is_in_place = getattr(first, "_grad_fn", None), first is inputs[0]
        if is_in_place and not GRAD_MODE.enabled:
            node = None  # an earlier operator's
        shapes: tuple[Any, ...] = ()
        if self.with_shapes:
            shapes = tuple([tuple(getattr(value, "shape", ())) for value in inputs])
        nbytes = 0
        if self.with_memory and operator.view is None and not is_in_place:
            nbytes = _bytes_of(result)
        number = -1 if node is None else node.sequence_nr
        self._operators.append(
            (operator, started, ended, _current.thread, number, shapes, nbytes, is_in_place)
        )


def _operator_range(note: _OperatorNote) -> Range:
    operator, started, ended, thread, number, shapes, nbytes, is_in_place = note
    name = f"mpgrad::{operator.name}{'_' if is_in_place else ''}"
    return Range(OPERATOR, name, started, ended, thread, -1, number, shapes, nbytes)


class Span:
    """A range around a block."""

    __slots__ = ("_kind", "_name", "_number", "_recording", "_started")

    def __init__(self, recording: Recording, name: str, kind: str, number: int = -1) -> None:
        self._recording, self._name, self._kind, self._number = recording, name, kind, number

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *exc: object) -> None:
        self._recording.note(self._name, self._kind, self._started, perf_counter(), self._number)


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
    return _NOTHING if recording is None else Span(recording, name, kind, sequence_nr)


def current_run() -> BackwardRun | None:
    """The backward that runs on this thread, where a profile has seen it begin."""
    return _current.run


def _bytes_of_results(spec: GraphSpec, index: int) -> int:
    """Of the gradients that a Node passes on."""
    edges = [edge for edge in spec.nodes[index].edges if edge is not None]
    return sum([spec.nodes[target].input_nbytes[number] for target, number in edges])


def _bytes_of(raw: Any) -> int:
    arrays = raw if isinstance(raw, tuple) else (raw,)
    return sum([getattr(array, "nbytes", 0) for array in arrays])
