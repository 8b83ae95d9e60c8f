"""PerThread: the state of each thread, so that a backward can continue on another thread.

A deeply nested backward continues on a helper thread (see ``helper_threads``), which user code must
not notice: grad mode, running Functions and callbacks are taken over. So all state of a thread is
in instances of PerThread; a test checks that.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_parts: list[PerThread] = []


class PerThread(threading.local):
    """A ``threading.local`` whose attributes a backward takes to a helper thread.

    Give defaults as class attributes (or make them in ``__init__``, which runs once per thread).
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PerThread:
        self = super().__new__(cls, *args, **kwargs)
        _parts.append(self)
        return self


class ThreadState:
    """The state of one thread, which another thread takes over and gives back.

    The user's context variables are included as a copy (NumPy keeps ``errstate`` in one).
    """

    def __init__(self) -> None:
        self._states = _copied()
        self._context = contextvars.copy_context()

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the current thread with this state; keep the state afterwards."""
        before = _copied()
        _replace(self._states)
        try:
            return self._context.run(function)
        finally:
            self._states = _copied()
            _replace(before)

    def unpack(self) -> None:
        """Give the current thread the state that the other thread has left."""
        _replace(self._states)


def _copied() -> list[dict[str, Any]]:
    return [dict(vars(part)) for part in _parts]


def _replace(states: list[dict[str, Any]]) -> None:
    # A PerThread that was made in the meantime has no state to take over.
    for part, state in zip(_parts, states, strict=False):
        mine = vars(part)
        mine.clear()
        mine.update(state)
