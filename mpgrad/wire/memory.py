"""The in-memory transport: the same contract as ZeroMQ within one process, for tests and tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mpgrad.wire.transport import CLIENT, ROUTER_LANES, WORKER_LANES, Arrival, Received


class MemoryRouter:
    """The coordinator's end; Dealers attach to it directly."""

    #: Within one process there are no strangers.
    ignored = 0

    def __init__(self) -> None:
        self._inbox: dict[str, deque[Arrival]] = {lane: deque() for lane in ROUTER_LANES}
        self._outbox: dict[tuple[str, str], list[bytes]] = {}
        self._dealers: dict[tuple[str, str], deque[bytes]] = {}
        self._watched: list[int] = []

    def watch(self, descriptor: int) -> None:
        self._watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._watched.remove(descriptor)

    def receive(self, timeout_ms: int | None) -> Received:
        """All that has arrived; there is nothing to wait for within one thread."""
        arrivals: list[Arrival] = []
        for queue in self._inbox.values():
            arrivals.extend(queue)
            queue.clear()
        return Received(arrivals, [])

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._outbox.setdefault((lane, peer), []).append(frame)

    def flush(self) -> list[str]:
        gone = []
        for (lane, peer), frames in self._outbox.items():
            queue = self._dealers.get((lane, peer))
            if queue is None:
                gone.append(peer)
            else:
                queue.extend(frames)
        self._outbox.clear()
        return gone

    def close(self) -> None:
        self._dealers.clear()


class MemoryDealer:
    """A worker's or a session's end."""

    def __init__(self, router: MemoryRouter, peer: str, lanes: Sequence[str]) -> None:
        self._router, self._peer, self._lanes = router, peer, tuple(lanes)
        self._queues: list[deque[bytes]] = []
        for lane in lanes:
            self._queues.append(router._dealers.setdefault((lane, peer), deque()))

    @classmethod
    def worker(cls, router: MemoryRouter, peer: str) -> MemoryDealer:
        return cls(router, peer, WORKER_LANES)

    @classmethod
    def session(cls, router: MemoryRouter, peer: str) -> MemoryDealer:
        return cls(router, peer, (CLIENT,))

    def watch(self, descriptor: int) -> None:
        """Nothing can become readable here."""

    def wait(self, timeout_ms: int | None) -> list[int]:
        """Whatever has come is there already."""
        return []

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        for queue in self._queues:
            frames.extend(queue)
            queue.clear()
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        lane = lane or self._lanes[-1]
        self._router._inbox[lane].extend(Arrival(lane, self._peer, frame) for frame in frames)

    def close(self) -> None:
        for lane in self._lanes:
            self._router._dealers.pop((lane, self._peer), None)
