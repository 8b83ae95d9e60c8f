"""Both transports keep the contract of ``wire.transport``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.transport import (
    CLIENT,
    CONTROL,
    TASK,
    URGENT,
    WORKER_LANES,
    Arrival,
    Dealer,
    Router,
)
from simulation.transport import MemoryDealer, MemoryRouter

PATIENCE_MS = 120_000


class Transport(NamedTuple):
    """One way to make a router and those who talk to it."""

    router: Router
    worker: Callable[[str], Dealer]
    session: Callable[[str], Dealer]

    def introduced_worker(self, peer: str) -> Dealer:
        """A worker whose frames have arrived on all lanes, so that the router can reach it."""
        dealer = self.worker(peer)
        for lane in WORKER_LANES:
            dealer.send([b"hello"], lane)
        assert len(self.arrivals(len(WORKER_LANES))) == len(WORKER_LANES)
        return dealer

    def introduced_session(self, peer: str) -> Dealer:
        dealer = self.session(peer)
        dealer.send([b"hello"])
        assert self.arrivals(1) == [Arrival(CLIENT, peer, b"hello")]
        return dealer

    def arrivals(self, count: int) -> list[Arrival]:
        """All that arrives until there are ``count``."""
        found: list[Arrival] = []
        while len(found) < count:
            found += self.router.receive(PATIENCE_MS).arrivals
        return found


def frames(dealer: Dealer, count: int) -> list[bytes]:
    """All that comes to ``dealer`` until there are ``count``."""
    found: list[bytes] = []
    while len(found) < count:
        dealer.wait(PATIENCE_MS)
        fresh = dealer.receive()
        assert fresh, f"only {len(found)} of {count} frames came"
        found += fresh
    return found


@pytest.fixture(params=["memory", "zeromq"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    if request.param == "memory":
        router = MemoryRouter()
        yield Transport(
            router,
            lambda peer: MemoryDealer.worker(router, peer),
            lambda peer: MemoryDealer.session(router, peer),
        )
        return
    endpoint = Endpoint.create()
    router_there = endpoint.router()
    dealers: list[Dealer] = []

    def opened(dealer: Dealer) -> Dealer:
        dealers.append(dealer)
        return dealer

    yield Transport(
        router_there,
        lambda peer: opened(endpoint.worker(peer)),
        lambda peer: opened(endpoint.session(peer)),
    )
    for dealer in dealers:
        dealer.close()
    router_there.close()


def test_frames_of_a_lane_arrive_in_order_and_once(transport: Transport) -> None:
    worker = transport.introduced_worker("w0.1")
    sent = [str(number).encode() for number in range(500)]
    for start in range(0, 500, 7):
        worker.send(sent[start : start + 7])
    arrived = transport.arrivals(500)
    assert [arrival.frame for arrival in arrived] == sent
    assert {(arrival.lane, arrival.peer) for arrival in arrived} == {(TASK, "w0.1")}
    assert transport.router.receive(0).arrivals == []


def test_frames_to_a_dealer_arrive_in_order_and_once(transport: Transport) -> None:
    worker = transport.introduced_worker("w0.1")
    sent = [str(number).encode() for number in range(500)]
    for number, frame in enumerate(sent):
        transport.router.send(TASK, "w0.1", frame)
        if number % 7 == 0:
            transport.router.flush()
    assert transport.router.flush() == []
    assert frames(worker, 500) == sent
    assert worker.receive() == []


def test_nothing_leaves_before_flush(transport: Transport) -> None:
    worker = transport.introduced_worker("w0.1")
    transport.router.send(TASK, "w0.1", b"later")
    worker.wait(0)
    assert worker.receive() == []
    transport.router.flush()
    assert frames(worker, 1) == [b"later"]


def test_lanes_are_drained_by_urgency(transport: Transport) -> None:
    worker = transport.introduced_worker("w0.1")
    for lane in (TASK, URGENT, CONTROL, TASK):
        transport.router.send(lane, "w0.1", lane.encode())
    transport.router.flush()
    # A frame that follows on the slowest lane says that the others are there.
    assert sorted(frames_when_all_are_there(worker, transport)) == [
        b"control",
        b"task",
        b"task",
        b"urgent",
    ]
    for lane in (TASK, URGENT, CONTROL):
        worker.send([lane.encode()], lane)
    order = [arrival.lane for arrival in transport.arrivals(3)]
    assert sorted(order) == sorted([CONTROL, URGENT, TASK])


def frames_when_all_are_there(worker: Dealer, transport: Transport) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < 4:
        worker.wait(PATIENCE_MS)
        fresh = worker.receive()
        # Whatever is taken in one go is in the order of urgency.
        ranks = [(b"control", b"urgent", b"task").index(frame) for frame in fresh]
        assert ranks == sorted(ranks)
        found += fresh
    return found


def test_who_speaks_is_what_the_transport_knows(transport: Transport) -> None:
    first = transport.introduced_session("c1.1")
    second = transport.introduced_session("c1.2")
    first.send([b"I am c1.2"])
    second.send([b"I am c1.1"])
    assert sorted(transport.arrivals(2)) == [
        Arrival(CLIENT, "c1.1", b"I am c1.2"),
        Arrival(CLIENT, "c1.2", b"I am c1.1"),
    ]


def test_each_peer_gets_its_own(transport: Transport) -> None:
    first, second = (transport.introduced_session(peer) for peer in ("c1.1", "c1.2"))
    transport.router.send(CLIENT, "c1.2", b"for the second")
    transport.router.send(CLIENT, "c1.1", b"for the first")
    assert transport.router.flush() == []
    assert frames(first, 1) == [b"for the first"]
    assert frames(second, 1) == [b"for the second"]


def test_flush_names_who_was_never_there(transport: Transport) -> None:
    session = transport.introduced_session("c1.1")
    transport.router.send(CLIENT, "c9.9", b"anybody?")
    transport.router.send(CLIENT, "c1.1", b"you")
    assert transport.router.flush() == ["c9.9"]
    assert frames(session, 1) == [b"you"]
    assert transport.router.flush() == []


def test_flush_names_who_has_left(transport: Transport) -> None:
    session = transport.introduced_session("c1.1")
    session.close()
    gone: list[str] = []
    for _ in range(10_000):
        # The transport notices a moment later; nothing is waited for but that.
        transport.router.send(CLIENT, "c1.1", b"still there?")
        gone = transport.router.flush()
        if gone:
            break
        transport.router.receive(1)
    assert gone == ["c1.1"]


def test_empty_and_large_frames(transport: Transport) -> None:
    session = transport.introduced_session("c1.1")
    sent = [b"", bytes(range(256)) * 10_000, b"\x00\xff"]
    session.send(sent)
    found: list[Arrival] = []
    while len(found) < 3:
        session.wait(0)  # what the router had no room for leaves here
        found += transport.router.receive(0).arrivals
    assert [arrival.frame for arrival in found] == sent
    for frame in sent:
        transport.router.send(CLIENT, "c1.1", frame)
    assert transport.router.flush() == []
    returned: list[bytes] = []
    while len(returned) < 3:
        returned += session.receive()
        transport.router.receive(0)
    assert returned == sent


def test_a_worker_goes_on_when_all_has_left(transport: Transport) -> None:
    worker = transport.introduced_worker("w0.1")
    sent = [bytes([number]) * 1_000_000 for number in range(4)]
    sender = threading.Thread(target=worker.send, args=(sent,))
    sender.start()
    assert [arrival.frame for arrival in transport.arrivals(4)] == sent
    sender.join()


def test_a_watched_descriptor_wakes_both_ends() -> None:
    # Only real waiting can be woken, so this is not the memory transport's business.
    reader, writer = os.pipe()
    endpoint = Endpoint.create()
    router, dealer = endpoint.router(), endpoint.session("c1.1")
    router.watch(reader)
    dealer.watch(reader)
    os.write(writer, b"x")
    assert router.receive(PATIENCE_MS).readable == [reader]
    assert dealer.wait(PATIENCE_MS) == [reader]
    router.unwatch(reader)
    assert router.receive(0).readable == []
    router.close()
    dealer.close()
    os.close(reader)
    os.close(writer)


def test_a_new_incarnation_may_come_before_the_old_one_is_forgotten(transport: Transport) -> None:
    old = transport.introduced_worker("w0.1")
    old.close()
    new = transport.introduced_worker("w0.2")
    transport.router.send(TASK, "w0.2", b"work")
    assert transport.router.flush() == []
    assert frames(new, 1) == [b"work"]
