"""PerThread: what autograd keeps per thread, so that a backward can go on on another thread.

A deeply nested backward goes on on a helper thread (see ``reentrant``), and its user must not
notice: grad mode, running Functions, callbacks and all the rest go along. Hence all per-thread
state of the front end is kept in instances of PerThread, and a test sees to that.
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


class Luggage:
    """One thread's state on its way to another thread and back.

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
