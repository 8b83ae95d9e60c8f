"""The slot that the engine sits in: autograd calls it without knowing it, so nothing imports up.

``mpgrad.engine`` fills the slot when it is loaded; the first backward has it loaded, as
``tensor_methods``, which knows all that users call, says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpgrad.autograd.running.helper_threads import LEVELS_PER_THREAD, on_helper_thread
from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.thread_state import PerThread
from mpgrad.graph.grad_modes import is_multithreading_enabled

if TYPE_CHECKING:
    from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
    from mpgrad.tensors.tensor import Tensor

T = TypeVar("T")


class Executor(Protocol):
    """What the slot expects of an engine."""

    def expect(self) -> None:
        """A graph is about to be frozen for it: what can be done beside that begins now."""

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run a frozen graph.

        Returns:
            For each of its captures the array (or None) and whether nobody else holds it, so that
            ``.grad`` may adopt it.
        """

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The same for ``create_graph``: takes the seeds as Tensors and gives recorded Tensors."""


_current: Callable[[], Executor] | None = None

#: Loads the default engine, which installs itself.
load: Callable[[], None] | None = None

#: True in a worker process, where every engine is local.
is_worker = False


class _Place(PerThread):
    #: True while a rule differentiates something of its own, which is no graph of the user.
    is_local = False
    #: What stands in for the current engine.
    executor: Executor | None = None


_place = _Place()


def is_local() -> bool:
    """Whether backward passes that start on this thread now must stay in this process."""
    return is_inside_rule() or not is_multithreading_enabled()


def is_inside_rule() -> bool:
    """Whether backward passes that start on this thread now are a rule's own, no user's."""
    return is_worker or _place.is_local


@contextmanager
def locally() -> Iterator[None]:
    """Keep backward passes that start inside in this process."""
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
    """Put in the function that says which engine is current."""
    global _current
    _current = current


def expect() -> None:
    """Tell the current engine that a graph is about to be frozen for it; one that is loaded."""
    if _current is not None and not is_worker:
        _current().expect()


def execute(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Run ``frozen`` on the current engine."""
    return _with_room(_engine().execute, frozen)


def execute_recorded(frozen: FrozenGraph, seeds: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Run ``frozen`` on the current engine and record what it computes (``create_graph``)."""
    return _with_room(_engine().execute_recorded, frozen, seeds)


def _engine() -> Executor:
    if _place.executor is not None:
        return _place.executor
    if _current is None and load is not None:
        load()
    if _current is None:
        raise RuntimeError("no engine is installed: import the names of mpgrad from mpgrad itself")
    return _current()


def _with_room(function: Callable[..., T], frozen: FrozenGraph, *args: Any) -> T:
    """Call ``function``, on a helper thread if too many backwards lie on this one's stack."""
    running = innermost()
    if running is not None:
        running.frozen = frozen
        if running.levels >= LEVELS_PER_THREAD:
            return on_helper_thread(running, functools.partial(function, frozen, *args))
    return function(frozen, *args)
