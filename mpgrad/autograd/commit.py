"""commit(): adds the gradients that a backward captured to ``.grad``: all of them, or none.

Workers only produce gradients. They are added to ``.grad`` here, when all of them are known, so
that a failed backward leaves every ``.grad`` as it was. An UndoLog records the additions of an
inner backward until the outer one has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mpgrad.arrays.cuda.device_arrays import on_its_device
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, LeafSink, ResultSink, RetainSink
from mpgrad.autograd.profiling.ranges import span
from mpgrad.autograd.running.collector import collector_held, collector_held_for
from mpgrad.autograd.running.deferred_interrupts import interrupts_deferred
from mpgrad.autograd.running.hook_nodes import first_recorded_grad
from mpgrad.autograd.running.running_backward import UndoLog, innermost
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.shapes.shape import clone
from mpgrad.recording.graph.grad_modes import INFERENCE_MODES, enable_grad
from mpgrad.recording.tensors.accumulate_grad import begins, first_grad, grad_lock
from mpgrad.recording.tensors.assigned_grad import OWN_DTYPE
from mpgrad.recording.tensors.storage import VersionCounter, adopt
from mpgrad.recording.tensors.tensor import Tensor

#: The number of commits of this process; a change shows that there was one in between.
_commits = 0

_set_grad: Callable[[Tensor, Tensor], None] = vars(Tensor)["_grad"].__set__
_exhaust: Callable[[Iterator[None]], None] = deque[None](maxlen=0).extend


def results(
    frozen: FrozenGraph, captured: list[tuple[Any, bool]], count: int
) -> list[Tensor | None]:
    """The ``count`` results of ``grad()``; other captures are committed."""
    found = results_alone(frozen, captured, count)
    commit(frozen, captured)
    return found


def results_alone(
    frozen: FrozenGraph, captured: list[tuple[Any, bool]], count: int
) -> list[Tensor | None]:
    """As :func:`results`, and nothing is committed."""
    found: list[Tensor | None] = [None] * count
    for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True):
        if isinstance(sink, ResultSink) and array is not None:
            found[sink.number] = Tensor(array if exclusive else adopt(array))
    return found


def commit(frozen: FrozenGraph, captured: list[tuple[Any, bool]]) -> None:
    """Add the captured gradients to ``.grad``: first all checks, then all additions.

    Raises:
        RuntimeError: a leaf cannot accept its gradient; nothing was changed.
    """
    with span("commit"):
        undo = _undo_log()
        if undo is not None or not _commit_first(frozen, captured):
            _commit(frozen, captured, undo)


def _commit_first(frozen: FrozenGraph, captured: list[tuple[Any, bool]]) -> bool:
    """Let the gradients become the leaves' first ``.grad``, all in one call; whether that is all.

    No signal interrupts a call that runs no Python code, so none has to be deferred.
    """
    global _commits
    leaves: list[Tensor] = []
    arrays: list[Any] = []
    with collector_held_for(len(captured)), grad_lock():
        before = _commits
        for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True):
            if array is None:
                continue
            if type(sink) is not LeafSink:
                return False
            leaf = sink.accumulator.leaf()
            if not begins(leaf):
                return False
            leaves.append(leaf)
            arrays.append(first_grad(array, leaf._array, exclusive=exclusive))
        if len({*map(id, leaves)}) < len(leaves):
            return False
        assignments = map(_set_grad, leaves, _tensors_of(arrays))
        # A signal handler may have run a backward. Between this comparison and the end of the call
        # that follows no signal arrives.
        if _commits != before:
            return False
        _exhaust(assignments)
        _commits += 1
    return True


def _tensors_of(arrays: list[Any]) -> list[Tensor]:
    """``Tensor(array)`` of each, without a call of the class, which takes twice as long."""
    if INFERENCE_MODES.entered:
        return [Tensor(array) for array in arrays]
    new, found = object.__new__, []
    for array in arrays:
        tensor = new(Tensor)
        tensor._array = array
        tensor._version_counter = counter = new(VersionCounter)
        counter.value = tensor._output_nr = 0
        tensor._requires_grad = tensor._retains_grad = False
        tensor._grad = tensor._grad_fn = tensor._view = tensor._accumulator = None
        tensor._leaf_hooks = tensor._post_accumulate_hooks = None
        tensor._grad_dtype = OWN_DTYPE
        found.append(tensor)
    return found


def _commit(frozen: FrozenGraph, captured: list[tuple[Any, bool]], undo: UndoLog | None) -> None:
    """Add the gradients one by one, with signals deferred."""
    global _commits
    todo = [
        (sink, array, exclusive)
        for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True)
        if array is not None and not isinstance(sink, ResultSink)
    ]
    with interrupts_deferred(), grad_lock(), collector_held():
        _commits += 1
        for sink, _, _ in todo:
            if isinstance(sink, LeafSink):
                sink.accumulator.check()
        for sink, array, exclusive in todo:
            if undo is not None:
                undo.note(sink.accumulator.variable if isinstance(sink, LeafSink) else sink.tensor)
            if isinstance(sink, LeafSink):
                sink.accumulator.accumulate(array, exclusive=exclusive)
            else:
                _retain(sink.tensor, array)


def _undo_log() -> UndoLog | None:
    running = innermost()
    return running.undo_log() if running is not None else None


# ---------------------------------------------------------------------- with create_graph


def recorded_results(
    frozen: FrozenGraph, gradients: list[Tensor | None], count: int
) -> list[Tensor | None]:
    """As :func:`results`, for gradients with a history."""
    found: list[Tensor | None] = [None] * count
    for sink, gradient in zip(frozen.sinks, gradients, strict=True):
        if isinstance(sink, ResultSink):
            found[sink.number] = gradient
    commit_recorded(frozen, gradients)
    return found


def commit_recorded(frozen: FrozenGraph, gradients: list[Tensor | None]) -> None:
    """As :func:`commit`; every ``.grad`` becomes a new tensor with a history.

    Raises:
        RuntimeError: a leaf cannot accept its gradient; nothing was changed.
    """
    undo = _undo_log()
    global _commits
    with interrupts_deferred(), grad_lock(), enable_grad():
        _commits += 1
        todo = list(_recorded_additions(frozen, gradients))
        for tensor, gradient in todo:
            if undo is not None:
                undo.note(tensor)
            previous = tensor._grad
            if previous is not None:
                tensor._grad = add(previous, gradient)
            elif tensor._grad_fn is None:
                tensor._grad = first_recorded_grad(tensor, gradient)
            else:
                tensor._grad = clone(gradient)


def _recorded_additions(
    frozen: FrozenGraph, gradients: list[Tensor | None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Which tensor gets which gradient; raises if a leaf cannot accept its own."""
    for sink, gradient in zip(frozen.sinks, gradients, strict=True):
        if gradient is None or isinstance(sink, ResultSink):
            continue
        if isinstance(sink, RetainSink):
            yield sink.tensor, gradient
        else:
            sink.accumulator.check(in_place=False)
            if sink.accumulator.variable._requires_grad:
                yield sink.accumulator.variable, gradient


def _retain(tensor: Tensor, array: Any) -> None:
    previous = tensor._grad
    with on_its_device(array):
        tensor._grad = Tensor(adopt(array) if previous is None else previous._array + array)
