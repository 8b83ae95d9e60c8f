"""RunningBackward: one call of ``backward()`` or ``grad()`` from its beginning to its end.

Each thread knows its innermost one: an inner backward (of a hook, or of a Function) finds the outer
one there, ``queue_callback`` finds the owner of a callback, and a failure finds the changes to
undo. User code asks it for its number and its Nodes: hooks and custom Functions of the client run
on the thread that called backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import copied, on_host, on_its_device
from mpgrad.autograd.running.deferred_interrupts import interrupts_deferred
from mpgrad.base.accidental_ends import accidental_end
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.grad_modes import set_grad_enabled
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.accumulate_grad import grad_lock
from mpgrad.recording.tensors.hooks_in_force import HOOKS

if TYPE_CHECKING:
    from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
    from mpgrad.recording.tensors.tensor import Tensor

_numbers = itertools.count()


class _Current(PerThread):
    """The innermost backward that this thread runs."""

    backward: RunningBackward | None = None


_current = _Current()


def innermost() -> RunningBackward | None:
    """The backward that this thread runs, the innermost of several; None outside of one."""
    return _current.backward


class RunningBackward:
    """Use it as ``with RunningBackward(): execute and commit``.

    The end of the block calls the callbacks. If anything fails, every ``.grad`` gets its value from
    before again, even if an inner backward has added to it.

    Args:
        create_graph: call callbacks with recording on.
        is_partial: only the gradients of some inputs are needed.

    Attributes:
        outer: the backward that this one runs inside of.
        depth: the number of those.
        levels: the number of those that began on this thread (helper threads begin anew).
        session: the session of this thread with the engine's processes, which inner backwards
            share.
        id: its number, unique in this process.
        frozen: the graph that it executes, once that is known.
        is_interrupted: Ctrl-C came while the outermost one waited for a helper thread.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_hooks",
        "_undo",
        "create_graph",
        "depth",
        "frozen",
        "id",
        "is_interrupted",
        "is_partial",
        "levels",
        "outer",
        "session",
    )

    def __init__(self, *, create_graph: bool = False, is_partial: bool = False) -> None:
        self.create_graph, self.is_partial = create_graph, is_partial
        self.id = next(_numbers)
        self.frozen: FrozenGraph | None = None
        self.outer: RunningBackward | None = None
        self.depth = self.levels = 0
        self.session: Any = None
        self.is_interrupted = False
        self._callbacks: list[Callable[[], Any]] | None = None
        self._undo: UndoLog | None = None

    def __enter__(self) -> RunningBackward:
        self.outer = outer = _current.backward
        if outer is not None:
            self.depth, self.levels = outer.depth + 1, outer.levels + 1
            self.session = outer.session
        self._hooks = HOOKS.thread.state
        _current.backward = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._callbacks is not None:
                self._call_callbacks(self._callbacks)
        except BaseException:
            self._fail()
            raise
        finally:
            _current.backward = self.outer
            if HOOKS.thread.state is not self._hooks:  # user code entered or left hooks in here
                HOOKS.restore(self._hooks)
        if kind is not None:
            self._fail()
        elif self._undo is not None and self.outer is not None:
            self.outer._log().extend(self._undo)

    def outermost(self) -> RunningBackward:
        """The backward at the start of the chain of outer ones."""
        running = self
        while running.outer is not None:
            running = running.outer
        return running

    # ------------------------------------------------------------------ callbacks

    def queue(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` once every gradient of this backward is in its ``.grad``."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def _call_callbacks(self, callbacks: list[Callable[[], Any]]) -> None:
        try:
            with set_grad_enabled(self.create_graph):
                for callback in callbacks:  # a callback may queue more callbacks
                    callback()
        except StopIteration as error:
            raise accidental_end("A callback of queue_callback") from error

    # ------------------------------------------------------------------ failure

    def undo_log(self) -> UndoLog | None:
        """The log for a commit; None if nothing can fail after it."""
        if self.outer is None and self._callbacks is None:
            return None
        return self._log()

    def _log(self) -> UndoLog:
        if self._undo is None:
            self._undo = UndoLog()
        return self._undo

    def _fail(self) -> None:
        if self._undo is not None:
            with interrupts_deferred(), grad_lock():
                self._undo.undo()


def note_early_change(tensor: Any) -> None:
    """``tensor.grad`` is about to change while the backward that changes it still runs."""
    if _current.backward is not None:
        _current.backward._log().note(tensor)


def checkpoint_is_valid() -> bool:
    """Whether no backward of this thread computes the gradients of some inputs only."""
    running = _current.backward
    while running is not None:
        if running.is_partial:
            return False
        running = running.outer
    return True


def queue_callback(callback: Callable[[], Any]) -> None:
    """Call ``callback()`` at the end of the backward that is running on this thread.

    It is for hooks and for Functions that run in the calling process. Callbacks run in the order in
    which they were queued, on the thread that called ``backward()``, once every ``.grad`` has its
    gradient. They belong to the innermost backward and may queue more callbacks. If one raises, the
    others are not called and ``backward()`` raises that error, with every ``.grad`` as it was
    before.

    Raises:
        RuntimeError: no backward is running on this thread.
    """
    running = _current.backward
    if running is None:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    running.queue(callback)


class UndoLog:
    """The earlier value of each changed ``.grad``, in the order of the changes.

    A backward inside a hook adds to ``.grad`` when it ends, as in PyTorch, and a leaf with
    post-accumulate hooks gets its gradient before the others. Both happen while the outermost
    backward may still fail, and then no change may remain. (Additions of other threads to the same
    ``.grad`` in between are undone, too.)
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        #: Tensor, its earlier ``.grad``, and a copy of its values (None if there was none).
        self._entries: list[tuple[Tensor, Tensor | None, np.ndarray[Any, Any] | None]] = []

    def note(self, tensor: Tensor) -> None:
        """``tensor.grad`` is about to be replaced, or changed in place."""
        grad = tensor._grad
        self._entries.append((tensor, grad, None if grad is None else copied(grad._array)))

    def extend(self, later: UndoLog) -> None:
        """Take over the entries of a backward that has ended inside this one."""
        self._entries += later._entries

    def undo(self) -> None:
        """Restore all values, the last change first."""
        while self._entries:
            tensor, grad, values = self._entries.pop()
            if (
                grad is not None
                and values is not None
                and on_host(grad._array).tobytes() != on_host(values).tobytes()
            ):
                with on_its_device(values):
                    np.copyto(grad._array, values)
                grad._version_counter.count()
            tensor._grad = grad


# ---------------------------------------------------------------------- questions of user code


def current_graph_task_id() -> int:
    """The number of the running backward, -1 outside."""
    running = innermost()
    return -1 if running is None else running.id


def current_graph_task_keep_graph() -> bool:
    """Whether the running backward keeps the saved tensors of its Nodes; True outside."""
    running = innermost()
    return running is None or running.frozen is None or running.frozen.keep_graph


def current_graph_task_execution_order() -> list[Node]:
    """The Nodes of the running backward in the order of the serial engine.

    Workers may run independent Nodes in another order, or at once; hooks keep to this one.

    Raises:
        RuntimeError: no backward is running.
    """
    frozen = _executed("_current_graph_task_execution_order")
    return list(dict.fromkeys(frozen.nodes[index].subject for index in frozen.spec.order))


def will_engine_execute_node(node: Any) -> bool:
    """Whether the running backward runs ``node``, or captures its gradient.

    Raises:
        RuntimeError: no backward is running; ``node`` is not a Node; or it is a leaf's Node in
            ``grad()``, where it never runs.
    """
    if not isinstance(node, Node):
        raise RuntimeError(
            f"_will_engine_execute_node expects an grad_fn, but got {type(node).__name__}"
        )
    frozen = _executed("_will_engine_execute_node")
    if frozen.only_captures(node):
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running "
            "autograd.grad(). This is currently not supported."
        )
    return any(member.subject is node for member in frozen.nodes)


def _executed(name: str) -> FrozenGraph:
    """The graph that the innermost backward of this thread executes."""
    running = innermost()
    if running is None or running.frozen is None:
        raise RuntimeError(f"{name} should only be called during the backward pass")
    return running.frozen
