"""The simulation's clock and its lanes: one seed decides when each message arrives.

A lane keeps its order, like one direction of a ZeroMQ socket pair; between lanes any order can
happen. This file does not look into frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

#: A usual delivery takes this long, plus up to as much again ...
USUAL_DELAY_US = 20
#: ... and one in ten up to this long, so that messages of other lanes overtake it.
SLOW_DELAY_US = 1500
SLOW_SHARE = 0.1


class VirtualTime:
    """A heap of actions, each with its microsecond; equal times keep the order of scheduling."""

    def __init__(self, rng: Random) -> None:
        self.now: float = 0
        self.rng = rng
        self._asked = 0
        #: Time, order of scheduling, whether it is weak, the action.
        self._agenda: list[tuple[float, int, bool, Callable[..., None], tuple[Any, ...]]] = []
        self._strong = 0

    def seconds(self) -> float:
        """The time for a shell's clock."""
        return self.now / 1e6

    def after(self, delay_us: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action(*arguments)`` when ``delay_us`` have passed."""
        self.at(self.now + int(delay_us), action, *arguments)

    def at(self, time_us: float, action: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        self._strong += 1
        heappush(self._agenda, (time_us, self._asked, False, action, arguments))

    def weakly_at(self, time_us: float, action: Callable[..., None], *arguments: Any) -> None:
        """The same for a periodic check of a shell: it does not happen if nothing else is
        scheduled."""
        self._asked += 1
        heappush(self._agenda, (time_us, self._asked, True, action, arguments))

    def step(self) -> bool:
        """Do the next action; False if there is none."""
        if not self._strong:
            return False
        self.now, _, is_weak, action, arguments = heappop(self._agenda)
        self._strong -= not is_weak
        action(*arguments)
        return True

    def hand_over_us(self) -> int:
        """The delivery time of the next message."""
        rng = self.rng.random
        if rng() < SLOW_SHARE:
            return int(SLOW_DELAY_US * rng())
        return USUAL_DELAY_US + int(USUAL_DELAY_US * rng())


class SlowLane:
    """One direction between two peers: first in, first out, each frame at its own time."""

    def __init__(self, time: VirtualTime, deliver: Callable[[bytes], None]) -> None:
        self._time, self._deliver = time, deliver
        self._frames: deque[bytes] = deque()
        self._last_us: float = 0

    def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._frames.append(frame)
            self._last_us = max(self._last_us, self._time.now + self._time.hand_over_us())
            self._time.at(self._last_us, self._arrive)

    def cut(self) -> None:
        """The sender has died: some of its last frames are lost, the others still arrive."""
        kept = self._time.rng.randint(0, len(self._frames))
        while len(self._frames) > kept:
            self._frames.pop()

    def _arrive(self) -> None:
        if self._frames:  # else this arrival was lost in cut()
            self._deliver(self._frames.popleft())
