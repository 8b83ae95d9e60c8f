"""SimulatedCarrier: a HostCarrier on a network inside one process, which a seed drives.

Messages between two processes come in order; some come once more, much later. A connection ends
with either of its processes, or breaks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mpgrad.distributed.carrier.contract import (
    CarrierEvent,
    HostArrival,
    HostDisconnected,
    HostUnreachable,
)

#: Shares of messages whose copy comes once more; of broken connections that lose what is under way.
DOUBLED, LOST = 0.05, 0.8


class Network(Protocol):
    """What all carriers of a world share."""

    #: By address.
    listening: dict[str, SimulatedCarrier]
    #: Copies of messages that come once more: the sender, the address, the message.
    copies: list[tuple[str, str, list[bytes]]]


class SimulatedCarrier:
    """One process's end of the connections; a connection begins with its first message.

    Args:
        network: who listens where, and what may come once more.
        name: who this is, for those that it sends to.
        address: where it listens.
    """

    def __init__(self, network: Network, name: str, address: str) -> None:
        self._network, self.name, self.address = network, name, address
        self.strangers = 0
        self.is_open = True
        #: By label: the address, who is connected there, and what is under way.
        self.peers: dict[str, str] = {}
        self.connected: dict[str, SimulatedCarrier] = {}
        self.queues: dict[str, list[list[bytes]]] = {}
        self.untried: set[str] = set()
        #: The labels whose connections break, though both ends live.
        self.broken: set[str] = set()
        #: What has come to this process, and takes it.
        self.take: Callable[[CarrierEvent], None] = lambda event: None
        network.listening[address] = self

    def connect(self, peer: str, address: str) -> None:
        assert peer not in self.peers, f"{self.name} connects to {peer} twice"
        self.peers[peer], self.queues[peer] = address, []
        self.untried.add(peer)

    def disconnect(self, peer: str) -> None:
        for known in (self.peers, self.queues, self.connected):
            known.pop(peer, None)
        self.untried.discard(peer)
        self.broken.discard(peer)

    def send(self, peer: str, frames: Sequence[Any]) -> None:
        self.queues[peer].append([bytes(frame) for frame in frames])

    def receive(self, timeout_ms: int | None) -> list[CarrierEvent]:
        raise NotImplementedError

    def fileno(self) -> int:
        raise NotImplementedError

    def close(self, patience_ms: int) -> None:
        self.is_open = False
        if self._network.listening.get(self.address) is self:
            del self._network.listening[self.address]

    def turns(self) -> list[str]:
        """The labels with which something can happen."""
        return [
            peer
            for peer, queue in self.queues.items()
            if queue
            or peer in self.untried
            or peer in self.broken
            or (peer in self.connected and not self.connected[peer].is_open)
        ]

    def turn(self, peer: str, chance: random.Random) -> None:
        """Bring the next message to ``peer``, or learn that it has gone."""
        self.untried.discard(peer)
        there = self.connected.get(peer)
        if there is None:
            there = self._network.listening.get(self.peers[peer])
            if there is None:
                self.take(HostUnreachable(peer))
                return
            self.connected[peer] = there
        if not there.is_open or peer in self.broken:
            self.broken.discard(peer)
            # ZeroMQ connects again by itself, to whoever listens there then.
            del self.connected[peer]
            if chance.random() < LOST:
                self.queues[peer].clear()
            self.take(HostDisconnected(peer, "the connection to it has ended"))
            return
        if self.queues[peer]:
            frames = self.queues[peer].pop(0)
            if chance.random() < DOUBLED:
                self._network.copies.append((self.name, self.peers[peer], frames))
            there.arrive(self.name, frames)

    def arrive(self, sender: str, frames: list[bytes]) -> None:
        """A message has come."""
        self.take(HostArrival(sender, [memoryview(frame) for frame in frames]))
