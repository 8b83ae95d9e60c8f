"""The coordinator as a World's Session sees it, its Ctrl-C, and graphs that cannot be made."""

from __future__ import annotations

import os
from functools import cache
from random import Random

from mpgrad.autograd.running.deferred_interrupts import Interrupts
from mpgrad.base.processor_use import ProcessorUse
from simulation.silence import AlwaysAnswers
from simulation.transport import MemoryEndpoint

#: The milliseconds that running tasks have after their graph was cancelled.
GRACES_MS = (0, 2, 1000)


@cache
def _pidfd() -> int:
    """A descriptor that never becomes readable; sessions keep copies of it."""
    return os.eventfd(0)


class NotMade(Exception):
    """The rest of a graph cannot be made: an array has changed, memory has run out."""


class KnownCoordinator:
    """The coordinator process for its sessions."""

    pid = 1
    is_closed = False

    def __init__(self, endpoint: MemoryEndpoint, silence: AlwaysAnswers) -> None:
        self.endpoint, self.pidfd, self._silence = endpoint, _pidfd(), silence

    def say(self, text: str) -> None:
        """Print nothing."""

    def is_stopped(self) -> bool:
        return self._silence.is_stopped

    def processor_use(self) -> ProcessorUse:
        return self._silence.processor_use()

    def hear_of_start(self) -> bool:
        return True

    def kill(self, why: str | None = None) -> None:
        self._silence.on_kill(why)

    def cause_of_death(self) -> str:
        return "died"


class DrawnInterrupts(Interrupts):
    """Prints nothing, and varies the time that running tasks have."""

    rng: Random

    def begin_to_stop(self, cause: BaseException) -> int:
        self._is_stopping, self._since_s = True, self._clock()
        return self.rng.choice(GRACES_MS)
