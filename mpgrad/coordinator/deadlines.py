"""Deadlines: the times at which cancelled graphs must have ended (``SetDeadline``)."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from mpgrad.scheduler.events import DeadlinePassed
from mpgrad.scheduler.instructions import SetDeadline


class Deadlines:
    """The deadlines that have not passed."""

    def __init__(self) -> None:
        #: (time, graph), the next one first.
        self._pending: list[tuple[float, int]] = []

    def set(self, deadline: SetDeadline, now_s: float) -> None:
        """Add a deadline that the core asked for."""
        heappush(self._pending, (now_s + deadline.after_ms / 1000, deadline.graph))

    def wait_ms(self, now_s: float) -> int | None:
        """How long the loop may sleep; None: forever."""
        if not self._pending:
            return None
        return max(0, math.ceil((self._pending[0][0] - now_s) * 1000))

    def take_passed(self, now_s: float) -> list[DeadlinePassed]:
        """Remove and return the deadlines that have passed."""
        passed = []
        while self._pending and self._pending[0][0] <= now_s:
            passed.append(DeadlinePassed(heappop(self._pending)[1]))
        return passed
