"""What the shells ask of a carrier between hosts: ``zeromq`` and the simulation keep one contract.

A carrier belongs to one process. It brings messages (lists of frames) from one host to another: in
order between two hosts, at most once, or it says that the connection has ended. Names are labels:
a sender's is proved by the group's key, a receiver's was chosen in ``connect``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias


class HostArrival(NamedTuple):
    """A message, and the name of its sender."""

    sender: str
    frames: list[memoryview]


class HostDisconnected(NamedTuple):
    """The connection to ``peer`` has ended; what was under way may be lost."""

    peer: str
    cause: str


class HostUnreachable(NamedTuple):
    """An attempt to connect to ``peer`` has failed; another one follows."""

    peer: str


CarrierEvent: TypeAlias = HostArrival | HostDisconnected | HostUnreachable


class HostCarrier(Protocol):
    """One process's end of the connections between hosts."""

    @property
    def address(self) -> str:
        """Where others connect to."""
        ...

    @property
    def strangers(self) -> int:
        """Messages and connections of those who could not prove that they belong to the group."""
        ...

    def connect(self, peer: str, address: str) -> None:
        """From now on, send to ``peer`` at ``address``; it may not be there yet."""
        ...

    def disconnect(self, peer: str) -> None:
        """Nothing is sent to ``peer`` any more; this label is not used again."""
        ...

    def send(self, peer: str, frames: Sequence[Any]) -> None:
        """Send; it never waits. The bytes of ``frames`` must not change any more."""
        ...

    def receive(self, timeout_ms: int | None) -> list[CarrierEvent]:
        """Wait for something, then take all there is; nothing where the time is over."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable while ``receive`` may find something."""
        ...

    def close(self, patience_ms: int) -> None:
        """End all connections; what was sent has ``patience_ms`` to leave."""
        ...
