"""The transport within one process: the contract of ``wire.transport``, without sockets.

Frames go through lanes. The lanes of this file deliver at once; a World's lanes take time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.transport import CLIENT, ROUTER_LANES, WORKER_LANES, Arrival, Received

#: Stands for the end of a connection; it is compared by identity, so that no frame is like it.
END = b"the end of a connection"


class Lane(Protocol):
    """One direction between two peers, in order."""

    def send(self, frames: Sequence[bytes]) -> None:
        """These leave in one piece."""
        ...

    def cut(self) -> None:
        """The sender has died."""
        ...


class DirectLane:
    """Delivers at once."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver

    def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._deliver(frame)

    def cut(self) -> None:
        """No frame is in transit."""


MakeLane = Callable[[Callable[[bytes], None]], Lane]


def nothing() -> None:
    """Do nothing when a frame arrives."""


class MemoryRouter:
    """The coordinator's end; dealers attach to it directly.

    Args:
        make_lane: makes the lane that ends in a function.
        on_arrival: is called when a frame has arrived.
    """

    #: Within one process every sender belongs to the engine.
    ignored = 0

    def __init__(
        self, make_lane: MakeLane = DirectLane, on_arrival: Callable[[], None] = nothing
    ) -> None:
        self.make_lane, self.on_arrival = make_lane, on_arrival
        self._inbox: dict[str, deque[Arrival]] = {lane: deque() for lane in ROUTER_LANES}
        self._outbox: dict[tuple[str, str], list[bytes]] = {}
        #: The lanes to the connected peers.
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._watched: list[int] = []
        self._readable: list[int] = []
        #: Peers whose end has arrived.
        self._ended: list[str] = []

    def connect(self, lane: str, peer: str, deliver: Callable[[bytes], None]) -> Lane:
        """Connect a dealer for ``lane``; return its own lane to this router."""
        self._lanes[lane, peer] = self.make_lane(deliver)
        return self.make_lane(lambda frame: self._arrive(Arrival(lane, peer, frame)))

    def disconnect(self, lane: str, peer: str) -> None:
        self._lanes.pop((lane, peer), None)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.frame is END:
            self._ended.append(arrival.peer)
        else:
            self._inbox[arrival.lane].append(arrival)
        self.on_arrival()

    def become_readable(self, descriptor: int) -> None:
        """A watched descriptor becomes readable: its process has died."""
        if descriptor not in self._readable:
            self._readable.append(descriptor)
        self.on_arrival()

    def watch(self, descriptor: int) -> None:
        self._watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._watched.remove(descriptor)
        if descriptor in self._readable:
            self._readable.remove(descriptor)

    def receive(self, timeout_ms: int | None) -> Received:
        """All frames that have arrived; within one thread it cannot wait."""
        arrivals: list[Arrival] = []
        for queue in self._inbox.values():
            arrivals.extend(queue)
            queue.clear()
        return Received(arrivals, [here for here in self._readable if here in self._watched])

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        self._outbox.setdefault((lane, peer), []).append(frame)

    def flush(self) -> list[str]:
        gone, self._ended = self._ended, []
        for (lane, peer), frames in self._outbox.items():
            way = self._lanes.get((lane, peer))
            if way is None:
                gone.append(peer)
            else:
                way.send(frames)
        self._outbox.clear()
        return gone

    def close(self) -> None:
        self._lanes.clear()


class MemoryDealer:
    """A worker's or a session's end.

    Args:
        on_arrival: is called when a frame has arrived.
        sleep: sleeps for this many milliseconds (None: forever) or until a frame arrives.
    """

    def __init__(
        self,
        router: MemoryRouter,
        peer: str,
        lanes: Sequence[str],
        on_arrival: Callable[[], None] = nothing,
        sleep: Callable[[int | None], None] = lambda timeout_ms: None,
    ) -> None:
        self._router, self._peer, self._sleep = router, peer, sleep
        self._on_arrival = on_arrival
        self._inbox: dict[str, deque[bytes]] = {lane: deque() for lane in lanes}
        self._ways = {lane: router.connect(lane, peer, self._to(lane)) for lane in lanes}
        self._reply_lane = lanes[-1]
        self._is_cut = False
        self._watched: list[int] = []
        #: Whether what it watches has become readable.
        self._is_readable = False

    def _to(self, lane: str) -> Callable[[bytes], None]:
        queue = self._inbox[lane]

        def deliver(frame: bytes) -> None:
            queue.append(frame)
            self._on_arrival()

        return deliver

    @classmethod
    def worker(cls, router: MemoryRouter, peer: str) -> MemoryDealer:
        return cls(router, peer, WORKER_LANES)

    @classmethod
    def session(cls, router: MemoryRouter, peer: str) -> MemoryDealer:
        return cls(router, peer, (CLIENT,))

    def watch(self, descriptor: int) -> None:
        self._watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._watched.remove(descriptor)

    def become_readable(self) -> None:
        """The process at the other end has died."""
        self._is_readable = True
        self._on_arrival()

    def wait(self, timeout_ms: int | None) -> list[int]:
        if self._is_cut or not (self._is_readable or any(self._inbox.values())):
            self._sleep(timeout_ms)
        return list(self._watched) if self._is_readable else []

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        if self._is_cut:  # it has died in the middle of a turn
            return frames
        for queue in self._inbox.values():
            frames.extend(queue)
            queue.clear()
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        if not self._is_cut:
            self._ways[lane or self._reply_lane].send(frames)

    def cut(self) -> None:
        """The process has died: its last frames may be lost, and it sends no more."""
        self._is_cut = True
        for way in self._ways.values():
            way.cut()

    def close(self) -> None:
        for lane in self._ways:
            self._router.disconnect(lane, self._peer)

    def hang_up(self) -> None:
        """Close; the router reports the peer as gone when all its frames have arrived."""
        self.close()
        self._ways[self._reply_lane].send([END])


class MemoryEndpoint(Endpoint):
    """The endpoint of a simulated engine."""

    #: Makes the Dealer of a peer.
    make_dealer: Callable[[str, tuple[str, ...]], MemoryDealer]

    def dealer(self, peer: str, lanes: tuple[str, ...]) -> MemoryDealer:
        return self.make_dealer(peer, lanes)
