"""PerThread: the state of each thread, so that a backward can continue on another thread.

A deeply nested backward continues on a helper thread (see ``helper_threads``). Its user must not
notice: grad mode, running Functions and callbacks go along. So all state of a thread lies in
instances of PerThread; a test checks that.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_parts: list[PerThread] = []


class PerThread(threading.local):
    """A ``threading.local`` whose attributes travel with a backward.

    Give defaults as class attributes (or make them in ``__init__``, which runs once per thread).
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PerThread:
        self = super().__new__(cls, *args, **kwargs)
        _parts.append(self)
        return self


class ThreadState:
    """The state of one thread, which another thread takes over and gives back.

    The user's context variables go along too (NumPy keeps ``errstate`` in one), as a copy.
    """

    def __init__(self) -> None:
        self._states = _copied()
        self._context = contextvars.copy_context()

    def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the current thread with this state; note the state it leaves."""
        before = _copied()
        _replace(self._states)
        try:
            return self._context.run(function)
        finally:
            self._states = _copied()
            _replace(before)

    def unpack(self) -> None:
        """Give the current thread the state, as the other thread left it."""
        _replace(self._states)


def _copied() -> list[dict[str, Any]]:
    return [dict(vars(part)) for part in _parts]


def _replace(states: list[dict[str, Any]]) -> None:
    # A part that came into being meanwhile has no state to take over.
    for part, state in zip(_parts, states, strict=False):
        mine = vars(part)
        mine.clear()
        mine.update(state)
