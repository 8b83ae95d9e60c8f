"""BuffersOfFork: which forks that run side by side reach a buffer that one of them has changed.

In a loop the later one would start from what the earlier one has left. Side by side that depends on
when their answers come, so it is an error, in every mode.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

_CHANGED = (
    "{later} reaches a buffer of shape {shape} that {earlier}, a fork begun before, has changed. "
    "Side by side it may or may not see the change. Wait for the first result before the second "
    "fork, call module.eval(), or give each a Module of its own"
)

#: The forks that nobody has waited for.
_open: weakref.WeakSet[BuffersOfFork] = weakref.WeakSet()


class BuffersOfFork:
    """The buffers that a fork reaches. It counts as one that runs until its result is asked for.

    Args:
        name: of its function.
        reached: the buffers.
    """

    def __init__(self, name: str, reached: Sequence[Any]) -> None:
        self._name = name
        self._reached = {id(one): one for one in reached}
        self._changed: dict[int, Any] | None = None
        self._later: list[BuffersOfFork] = []
        self._earlier: list[BuffersOfFork] = []
        if reached:
            self._earlier = [one for one in [*_open] if one._reached.keys() & self._reached.keys()]
            for one in self._earlier:
                one._later.append(self)
            _open.add(self)

    def note(self, changed: Sequence[Any]) -> None:
        """The fork has ended, and has changed some of its buffers.

        Raises:
            RuntimeError: another fork beside it would have started from another value in a loop.
        """
        self._changed = {id(one): one for one in changed}
        for one in self._later:
            if one._changed is not None:
                _require_apart(self, one)
        for one in self._earlier:
            if one._changed is not None:
                _require_apart(one, self)
        self._later, self._earlier = [], []

    def ask(self) -> None:
        """Its result is waited for: who begins now begins after it."""
        _open.discard(self)


def _require_apart(earlier: BuffersOfFork, later: BuffersOfFork) -> None:
    for key, buffer in (earlier._changed or {}).items():
        if key in later._reached:
            raise RuntimeError(
                _CHANGED.format(later=later._name, earlier=earlier._name, shape=[*buffer.shape])
            )
