"""RemoteHost and Cluster: what HostCalls asks of whoever places and watches the hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: What a call has given: the answer, the bytes of its tensors, microseconds; or an error.
Reply: TypeAlias = tuple[bytes, Any, float] | bytes


class Greeting(NamedTuple):
    """What a host tells of itself.

    Attributes:
        workers: their number.
        versions: what must be equal on all hosts.
        arithmetic: what decides how results are rounded.
    """

    workers: int
    versions: dict[str, str]
    arithmetic: dict[str, str]


class RemoteHost(Protocol):
    """The actor on one host. Each ``end`` gets a function that gives the result, or raises."""

    name: str
    node: str

    def greet(self, end: Callable[[Callable[[], Greeting]], None]) -> None:
        """Start its engine."""

    def run(
        self,
        task: bytes,
        data: Sequence[Array],
        stored: Sequence[Any],
        end: Callable[[Callable[[], list[Reply]]], None],
    ) -> None:
        """Run a HostTask."""

    def ask(self, end: Callable[[Callable[[], None]], None]) -> None:
        """Ask whether it lives."""

    def stop(self, number: int, grace_ms: int | None) -> None:
        """Nobody wants the call with that number any more."""

    def kill(self, pause_s: float = 0.0) -> None:
        """End it, with all its processes; another one may take its place after so many seconds."""


class Cluster(Protocol):
    """The hosts."""

    def new_hosts(self, most: int | None) -> list[RemoteHost]:
        """An actor on each node that has none; on up to ``most`` of them."""

    def ask_for(self, hosts: int | None) -> None:
        """Let an autoscaler know how many hosts are wanted; None: it is not asked."""

    def store(self, data: Array) -> Any:
        """A reference to bytes that every host can fetch."""

    def is_loss(self, error: BaseException) -> bool:
        """Whether the host is gone, rather than a call has failed."""

    def close(self) -> None:
        """Leave it."""
