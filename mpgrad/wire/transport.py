"""What the shells ask of a transport: ``zeromq`` and ``memory`` keep one contract.

The Router is the coordinator's end, a Dealer is the end of a worker or of a session. The frames
between a Dealer and the Router arrive in order per lane and never twice; lanes do not wait for each
other. ``send`` collects, ``flush`` sends: one wake-up for many frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

#: Lanes in the order in which a receiver drains them. "client" belongs to sessions, the others to
#: workers: cancellations, reentrant work, and everything else.
CONTROL, URGENT, TASK, CLIENT = "control", "urgent", "task", "client"
WORKER_LANES = (CONTROL, URGENT, TASK)
ROUTER_LANES = (CONTROL, URGENT, TASK, CLIENT)


class Arrival(NamedTuple):
    """A frame at the Router and who sent it, as the transport (not the frame) knows."""

    lane: str
    peer: str
    frame: bytes


class Received(NamedTuple):
    """What one ``receive`` found."""

    arrivals: list[Arrival]
    #: Watched descriptors that have become readable.
    readable: list[int]


class Router(Protocol):
    """The coordinator's end."""

    @property
    def ignored(self) -> int:
        """Frames of strangers, who could not prove that they belong to the engine."""
        ...

    def watch(self, descriptor: int) -> None:
        """Let ``receive`` return when ``descriptor`` becomes readable (a pidfd: has died)."""
        ...

    def unwatch(self, descriptor: int) -> None: ...

    def receive(self, timeout_ms: int | None) -> Received:
        """Wait for something, then take all there is, lane by lane."""
        ...

    def send(self, lane: str, peer: str, frame: bytes) -> None: ...

    def flush(self) -> list[str]:
        """Send what was collected; the peers that turned out to be gone."""
        ...

    def close(self) -> None: ...


class Dealer(Protocol):
    """A worker's or a session's end."""

    def watch(self, descriptor: int) -> None: ...

    def wait(self, timeout_ms: int | None) -> list[int]:
        """Sleep until something has come; the watched descriptors that are readable.

        Takes nothing, so an exception (Ctrl-C) that breaks the sleep loses nothing.
        """
        ...

    def receive(self) -> list[bytes]:
        """All frames that have come: control before urgent before task."""
        ...

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        """Send; the default lane is the last of this Dealer's.

        It never waits: the transport's own thread sends.
        """
        ...

    def close(self) -> None: ...
