"""The slot of the engine: autograd calls it without knowing the engine, so nothing imports up.

``mpgrad.engine`` fills the slot when it is loaded; the first backward loads it. The loader is set
by ``tensor_methods``, the layer that knows all public names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpgrad.autograd.running.helper_threads import LEVELS_PER_THREAD, on_helper_thread
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.accidental_ends import accidental_end
from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.grad_modes import GRAD_MODE

if TYPE_CHECKING:
    from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
    from mpgrad.recording.tensors.tensor import Tensor

T = TypeVar("T")


class Executor(Protocol):
    """The interface of an engine for the slot."""

    @property
    def mode(self) -> str:
        """In "local", nothing that it does depends on the costs of Nodes."""

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run a frozen graph.

        Returns:
            For each of its captures the array (or None) and whether nobody else holds it, so that
            ``.grad`` may adopt it.
        """

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The same for ``create_graph``: takes Tensors as seeds and returns recorded Tensors."""


_current: Callable[[], Executor] | None = None

#: Loads the default engine, which installs itself.
load: Callable[[], None] | None = None

#: True in a worker process, where every engine is local.
is_worker = False


class _Place(PerThread):
    #: True while a rule differentiates a graph of its own, which is not the user's.
    is_local = False
    #: Replaces the current engine, if set.
    executor: Executor | None = None


_place = _Place()


def is_local() -> bool:
    """Whether a backward that starts on this thread now must stay in this process."""
    return is_inside_rule() or not GRAD_MODE.multithreading


def is_inside_rule() -> bool:
    """Whether a backward that starts on this thread now belongs to a rule, not to the user."""
    return is_worker or _place.is_local


@contextmanager
def locally() -> Iterator[None]:
    """Run backwards that start in the block in this process."""
    before, _place.is_local = _place.is_local, True
    try:
        yield
    finally:
        _place.is_local = before


@contextmanager
def executing_with(executor: Executor) -> Iterator[None]:
    """Give backward passes that start inside to ``executor``."""
    before, _place.executor = _place.executor, executor
    try:
        yield
    finally:
        _place.executor = before


def install(current: Callable[[], Executor]) -> None:
    """Set the function that returns the current engine."""
    global _current
    _current = current


def execute(engine: Executor, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Run ``frozen``."""
    return _with_room(engine.execute, frozen)


def execute_recorded(
    engine: Executor, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Run ``frozen`` and record the computation (``create_graph``)."""
    return _with_room(engine.execute_recorded, frozen, seeds)


def current() -> Executor:
    """The engine of a backward that starts on this thread now."""
    if _place.executor is not None:
        return _place.executor
    if _current is None and load is not None:
        load()
    if _current is None:
        raise RuntimeError("no engine is installed: import the names of mpgrad from mpgrad itself")
    return _current()


def _with_room(function: Callable[..., T], frozen: FrozenGraph, *args: Any) -> T:
    """Call ``function``, on a helper thread if too many backwards are on this one's stack.

    Raises:
        RuntimeError: a Function or a hook has raised StopIteration.
    """
    running = innermost()
    try:
        if running is not None:
            running.frozen = frozen
            if running.levels >= LEVELS_PER_THREAD:
                return on_helper_thread(running, functools.partial(function, frozen, *args))
        return function(frozen, *args)
    except StopIteration as error:
        raise accidental_end("A Function or a hook in backward") from error
