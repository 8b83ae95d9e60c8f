"""The transport as the shells use it: ``wire.zeromq`` and ``simulation.transport`` implement it.

The Router is the coordinator's end, a Dealer is the end of a worker or of a session. The frames
between a Dealer and the Router arrive in order per lane and never twice; lanes do not wait for each
other. ``send`` collects frames and ``flush`` sends them, with one wake-up for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

#: Lanes in the order in which a receiver reads them. "client" belongs to sessions, the others to
#: workers: cancellations, reentrant work, and everything else.
CONTROL, URGENT, TASK, CLIENT = "control", "urgent", "task", "client"
WORKER_LANES = (CONTROL, URGENT, TASK)
ROUTER_LANES = (CONTROL, URGENT, TASK, CLIENT)


class Arrival(NamedTuple):
    """A frame at the Router, and its sender as the transport (not the frame) knows it."""

    lane: str
    peer: str
    frame: bytes


class Received(NamedTuple):
    """The result of one ``receive``."""

    arrivals: list[Arrival]
    #: Watched descriptors that have become readable.
    readable: list[int]


class Router(Protocol):
    """The coordinator's end."""

    @property
    def ignored(self) -> int:
        """The number of frames whose senders could not prove that they belong to the engine."""
        ...

    def watch(self, descriptor: int) -> None:
        """Let ``receive`` return when ``descriptor`` becomes readable (a pidfd: has died)."""
        ...

    def unwatch(self, descriptor: int) -> None: ...

    def receive(self, timeout_ms: int | None) -> Received:
        """Wait for an event, then take all frames, lane by lane."""
        ...

    def send(self, lane: str, peer: str, frame: bytes) -> None: ...

    def flush(self) -> list[str]:
        """Send the collected frames; return the peers that could not be reached."""
        ...

    def close(self) -> None: ...


class Dealer(Protocol):
    """A worker's or a session's end."""

    def watch(self, descriptor: int) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...

    def wait(self, timeout_ms: int | None) -> list[int]:
        """Sleep until something arrives; return the watched descriptors that are readable.

        It takes no frame, so an exception (Ctrl-C) that interrupts it loses nothing.
        """
        ...

    def receive(self) -> list[bytes]:
        """All frames that have arrived: control before urgent before task."""
        ...

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        """Send frames; the default lane is the last one of this Dealer.

        It never waits: the transport's own thread sends.
        """
        ...

    def close(self) -> None: ...
