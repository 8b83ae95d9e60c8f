"""Clock and Loop: computed time, and a process that sleeps until a message wakes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from benchmarks.scaling.costs import Costs
from mpgrad.wire.codec import encode


class Clock:
    """What happens when, in microseconds; of two things at one time the first asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._asked = 0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_us: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action(*arguments)`` then."""
        self._asked += 1
        heappush(self._agenda, (time_us, self._asked, action, arguments))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._agenda:
            self.now, _, action, arguments = heappop(self._agenda)
            action(*arguments)


class Frame(NamedTuple):
    """An encoded message."""

    coded: bytes
    #: How many of its bytes are gradients.
    inline: int


def inline_bytes(message: Any) -> int:
    """Bytes of the gradients that travel inside ``message``, wherever they stand in it."""
    total, left = 0, [message]
    while left:
        field = left.pop()
        if isinstance(field, bytes):
            total += len(field)
        elif isinstance(field, tuple):
            left.extend(field)
    return total


class Cores:
    """Processors that all processes share; what one process needs, it takes from a computing one.

    Args:
        count: how many; None: each process has its own.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        #: By who computes: how much later than planned it will be done.
        self._late_us: dict[Loop, float] = {}

    def begin(self, loop: Loop) -> None:
        """``loop`` computes from now on."""
        self._late_us[loop] = 0.0

    def end(self, loop: Loop) -> float:
        """``loop`` would be done now; how much longer it takes, and if so, it still computes."""
        late_us = self._late_us.pop(loop)
        if late_us > 0.0:
            self._late_us[loop] = 0.0
        return late_us

    def take(self, microseconds: float) -> None:
        """A process that does not compute is busy for so long."""
        if self._count is not None and len(self._late_us) >= self._count:
            slowed = min(self._late_us, key=lambda loop: self._late_us[loop])
            self._late_us[slowed] += microseconds


class Loop:
    """One process: asleep until frames come, then busy with them until none is left."""

    def __init__(self, clock: Clock, costs: Costs) -> None:
        self.clock, self.costs = clock, costs
        self.busy_us = 0.0
        self._inbox: list[Frame] = []
        self._is_asleep = True
        #: Per receiver, when the latest frames sent to it arrive: none overtakes another.
        self._arrives: dict[Loop, float] = {}

    def arrive(self, frames: Sequence[Frame]) -> None:
        """Frames could be read from now on."""
        self._inbox.extend(frames)
        if self._is_asleep:
            self._is_asleep = False
            messages = self.costs.messages
            self.clock.at(self.clock.now + messages.asleep_us - messages.wire_us, self.look)

    def look(self) -> None:
        """Take what has come."""
        raise NotImplementedError

    def take_all(self) -> list[Frame]:
        frames, self._inbox = self._inbox, []
        return frames

    def rest(self) -> None:
        """Nothing more to do: look once more, then sleep."""
        if self._inbox:
            self.look()
        else:
            self._is_asleep = True

    def taking_us(self, frames: Sequence[Frame]) -> float:
        """Processor time of receiving and decoding ``frames``."""
        messages = self.costs.messages
        return messages.poll_us + sum(
            messages.receive_us + messages.coded_us(len(coded), inline) for coded, inline in frames
        )

    def encoded(self, message: Any) -> tuple[Frame, float]:
        """The frame, and the processor time of making it."""
        frame = Frame(encode(message), inline_bytes(message))
        return frame, self.costs.messages.coded_us(len(frame.coded), frame.inline)

    def send(self, receiver: Loop, frames: Sequence[Frame], at_us: float) -> None:
        """``frames`` leave at ``at_us``, in one piece."""
        messages = self.costs.messages
        size_us = messages.wire_us_per_kb * sum(len(frame.coded) for frame in frames) / 1024
        arrives = max(at_us + messages.wire_us + size_us, self._arrives.get(receiver, 0.0))
        self._arrives[receiver] = arrives
        self.clock.at(arrives, receiver.arrive, list(frames))
