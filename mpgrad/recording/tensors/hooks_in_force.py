"""The saved-tensor hooks in force on each thread (see ``saved_tensors_hooks``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread

if TYPE_CHECKING:
    from mpgrad.recording.tensors.tensor import Tensor


class HookPair(NamedTuple):
    """The arguments of ``saved_tensors_hooks``."""

    pack: Callable[[Tensor], Any]
    unpack: Callable[[Any], Tensor]


class HookState(NamedTuple):
    """The pairs that a thread has entered, innermost last, and why it may not enter more."""

    pairs: tuple[HookPair, ...] = ()
    forbidden: str | None = None


class _Threads(PerThread):
    state = HookState()


class SavedTensorsHooks:
    """The saved-tensor hooks of every thread.

    Attributes:
        thread: the ``state`` of this thread. A thread that continues its work takes it over.
        entered: one None for each pair in force on all threads together. It is nearly always
            empty, and then saving a tensor need not look up its thread.
    """

    __slots__ = ("entered", "thread")

    def __init__(self) -> None:
        self.entered: list[None] = []
        self.thread = _Threads()

    def innermost(self) -> HookPair | None:
        """The pair that packs the tensors saved by this thread."""
        pairs = self.thread.state.pairs
        return pairs[-1] if pairs else None

    def push(self, pair: HookPair) -> None:
        """Enter ``pair``.

        Raises:
            RuntimeError: hooks are disabled.
        """
        state = self.thread.state
        if state.forbidden is not None:
            raise RuntimeError(state.forbidden)
        self.thread.state = state._replace(pairs=(*state.pairs, pair))
        self.entered.append(None)  # only the number of entries matters

    def pop(self) -> None:
        """Leave the innermost pair.

        Raises:
            RuntimeError: this thread has entered none.
        """
        state = self.thread.state
        if not state.pairs:
            raise RuntimeError("there are no saved-tensor hooks to leave on this thread")
        self.thread.state = state._replace(pairs=state.pairs[:-1])
        self.entered.pop()

    def restore(self, before: HookState) -> None:
        """Restore the hooks that were in force on this thread ``before``."""
        change = len(before.pairs) - len(self.thread.state.pairs)
        self.entered += [None] * change
        if change < 0:
            del self.entered[change:]
        self.thread.state = before

    @contextmanager
    def only_if(self, condition: bool) -> Iterator[None]:
        """Without hooks unless ``condition``: the tensors recorded inside are not the user's."""
        before = self.thread.state
        if not condition:
            self.thread.state = HookState()
        try:
            yield
        finally:
            self.thread.state = before


HOOKS = SavedTensorsHooks()
