"""Clock and Process: computed time, and a transport on which every step takes some of it.

The engine's shells run unchanged. The process that is running pays for everything that it sends,
receives and computes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from benchmarks.scaling.costs import Costs
from mpgrad.wire.schema import decode
from mpgrad.wire.transport import Received
from simulation.transport import MemoryDealer, MemoryRouter
from simulation.virtual_time import VirtualTime

#: The number of frames whose gradients stay counted: sender and receiver both pay for them.
FRAMES_KNOWN = 4096


class Cores:
    """Processors that all processes share; a process that needs one slows a computing one down.

    Args:
        count: the number of processors; None: each process has its own.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        #: By computing process: its delay.
        self._late_us: dict[Hashable, float] = {}

    def begin(self, process: Hashable) -> None:
        """``process`` computes from now on."""
        self._late_us[process] = 0.0

    def end(self, process: Hashable) -> float:
        """End ``process``, or return the additional time for which it still computes."""
        late_us = self._late_us.pop(process)
        if late_us > 0.0:
            self._late_us[process] = 0.0
        return late_us

    def take(self, microseconds: float) -> None:
        """A process that does not compute is busy for this long."""
        if self._count is not None and len(self._late_us) >= self._count:
            slowed = min(self._late_us, key=lambda process: self._late_us[process])
            self._late_us[slowed] += microseconds


class Clock(VirtualTime):
    """The time of a machine, in microseconds."""

    def __init__(self, costs: Costs, cores: Cores) -> None:
        super().__init__(Random(0))  # nothing is drawn
        self.costs, self.cores = costs, cores
        #: The time that the running process has spent since it began.
        self.spent_us = 0.0

    @property
    def here_us(self) -> float:
        """The time as the running process sees it."""
        return self.now + self.spent_us

    def seconds(self) -> float:
        return self.here_us / 1e6

    def pay(self, microseconds: float) -> None:
        """The running process needs this long for something."""
        self.spent_us += microseconds

    def pay_coding(self, frames: Sequence[bytes]) -> None:
        """It encodes or decodes messages."""
        for frame in frames:
            self.pay(self.costs.messages.coded_us(len(frame), inline_bytes(frame)))


class Process:
    """Sleeps until a message arrives, then runs turn after turn until nothing is left."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.busy_us = 0.0
        self._is_asleep, self._has_mail = True, False

    def turn(self) -> None:
        """Receive messages, and handle them."""
        raise NotImplementedError

    def begin(self, action: Callable[..., None], *arguments: Any) -> None:
        """``action(*arguments)`` takes the time that it pays for; then the process continues."""
        self._is_asleep = False
        self.clock.spent_us = 0.0
        action(*arguments)
        self.busy_us += self.clock.spent_us
        self.clock.at(self.clock.here_us, self.go_on)

    def go_on(self) -> None:
        """Look for messages once more, then sleep."""
        if self._has_mail:
            self.begin(self.turn)
        else:
            self._is_asleep = True

    def on_arrival(self) -> None:
        """A message can be read from now on."""
        self._has_mail = True
        if self._is_asleep:
            self._is_asleep = False
            costs = self.clock.costs.messages
            waking_us = costs.asleep_us - costs.wire_us
            self.clock.at(self.clock.now + waking_us, self.begin, self.turn)

    def take(self, frames: Sequence[bytes]) -> None:
        """It receives and decodes all messages that have arrived."""
        self._has_mail = False
        costs = self.clock.costs.messages
        self.clock.pay(costs.poll_us + costs.receive_us * len(frames))
        self.clock.pay_coding(frames)


class TimedLane:
    """One direction between two peers; see ``simulation.transport.Lane``."""

    def __init__(self, clock: Clock, deliver: Callable[[bytes], None]) -> None:
        self._clock, self._deliver = clock, deliver
        #: The arrival of the last message: no message overtakes another.
        self._arrives_us = 0.0

    def send(self, frames: Sequence[bytes]) -> None:
        costs = self._clock.costs.messages
        self._clock.pay(costs.send_us)
        size_us = costs.wire_us_per_kb * sum(map(len, frames)) / 1024
        arrives_us = self._clock.here_us + costs.wire_us + size_us
        self._arrives_us = max(arrives_us, self._arrives_us)
        for frame in frames:
            self._clock.at(self._arrives_us, self._deliver, frame)

    def cut(self) -> None:
        """Do nothing: no process dies here."""


class TimedRouter(MemoryRouter):
    """The end of the coordinator's ``process``."""

    def __init__(self, process: Process) -> None:
        super().__init__(lambda deliver: TimedLane(process.clock, deliver), process.on_arrival)
        self._process = process

    def receive(self, timeout_ms: int | None) -> Received:
        received = super().receive(timeout_ms)
        self._process.take([arrival.frame for arrival in received.arrivals])
        return received

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._process.clock.pay_coding([frame])
        super().send(lane, peer, frame)


class TimedDealer(MemoryDealer):
    """The end of another ``process``; ``sleep`` as for MemoryDealer."""

    def __init__(
        self, process: Process, router: MemoryRouter, peer: str, lanes: Sequence[str], sleep: Any
    ) -> None:
        super().__init__(router, peer, lanes, process.on_arrival, sleep)
        self._process = process

    def receive(self) -> list[bytes]:
        frames = super().receive()
        self._process.take(frames)
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        self._process.clock.pay_coding(frames)
        super().send(frames, lane)


@lru_cache(FRAMES_KNOWN)
def inline_bytes(frame: bytes) -> int:
    """The bytes of the gradients inside a message."""
    total, left = 0, [decode(frame)]
    while left:
        field: Any = left.pop()
        if isinstance(field, bytes):
            total += len(field)
        elif isinstance(field, tuple):
            left.extend(field)
    return total
