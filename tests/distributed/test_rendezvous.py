"""How ranks find each other over TCP, and who is refused; the ranks are threads of this process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import zmq

from mpgrad.distributed import rendezvous
from mpgrad.distributed.carrier.contract import HostArrival, HostDisconnected
from mpgrad.distributed.carrier.messages import Join, encode_head
from mpgrad.distributed.carrier.zeromq_carrier import ZmqHostCarrier
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.group_member import GroupTable
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.operation import Work
from mpgrad.distributed.parcels import PendingReceive
from mpgrad.distributed.rendezvous import (
    Meeting,
    RendezvousHost,
    meet,
    rank_name,
    read,
    versions_of_this_process,
)
from mpgrad.distributed.states.host_membership import (
    HostGone,
    HostJoined,
    Participant,
    PeerLeft,
    RefuseHost,
    Rendezvous,
    SendRoster,
)
from mpgrad.errors import CollectiveTimeout, HostLost, RendezvousTimeout
from tests.leftovers import wait_until

KEY = hashlib.blake2b(b"the group", digest_size=32).digest()
OTHER_KEY = hashlib.blake2b(b"another", digest_size=32).digest()
LONG_S = 60.0


@pytest.fixture
def port() -> Iterator[int]:
    """A port that the system gives to nobody else."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def carriers(key: bytes = KEY, *, encrypt: bool = True) -> Callable[..., ZmqHostCarrier]:
    return lambda name, host, port: ZmqHostCarrier(key, name, host, port, encrypt=encrypt)


@contextlib.contextmanager
def met(port: int, ranks: int, **chosen: Any) -> Iterator[list[Meeting]]:
    with ThreadPoolExecutor(ranks) as pool:
        futures = [
            pool.submit(meet, carriers(**chosen), k, ranks, ("localhost", port), LONG_S)
            for k in range(ranks)
        ]
        meetings = [future.result() for future in futures]
    yield meetings


def left(threads: list[MemberThread]) -> None:
    with ThreadPoolExecutor(len(threads)) as pool:
        for future in [pool.submit(thread.leave) for thread in threads]:
            future.result()


@pytest.mark.process
@pytest.mark.parametrize("encrypt", [True, False])
def test_all_ranks_learn_of_each_other(port: int, encrypt: bool) -> None:
    with met(port, 3, encrypt=encrypt) as meetings:
        assert len({meeting.members for meeting in meetings}) == 1
        left([MemberThread(rank, meeting) for rank, meeting in enumerate(meetings)])


@pytest.mark.process
def test_a_stranger_and_a_damaged_frame_are_counted_and_not_read(port: int) -> None:
    with met(port, 2, encrypt=False) as meetings:
        address = meetings[0].carrier.address
        threads = [MemberThread(rank, meeting) for rank, meeting in enumerate(meetings)]
        stranger = ZmqHostCarrier(OTHER_KEY, "1.0", "127.0.0.1", 0, encrypt=False)
        stranger.connect("0", address)
        stranger.send("0", [b"\x93\x07\x00\x00"])
        assert wait_until(lambda: meetings[0].carrier.strangers == 1)
        damaged = lambda: threads[1]._generation.send(0, [b"damaged"])  # noqa: E731
        threads[1].ask(damaged)
        assert wait_until(lambda: threads[0].member.damaged == 1)
        stranger.close(0)
        left(threads)


@pytest.mark.process
def test_whoever_has_another_key_is_not_heard(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.0)
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(meet, carriers(), 0, 2, ("127.0.0.1", port), 0.2)
        guest = pool.submit(meet, carriers(OTHER_KEY), 1, 2, ("127.0.0.1", port), 0.2)
        with pytest.raises(RendezvousTimeout, match=r"rank 0 did not answer .* another key"):
            guest.result()
        with pytest.raises(RendezvousTimeout, match="of 2 ranks these did not come: 1"):
            host.result()


def refusal(future: Future[Meeting]) -> str:
    error = future.exception()
    assert type(error) is RuntimeError, error
    return str(error)


@pytest.mark.process
def test_who_does_not_fit_is_told_why(port: int) -> None:
    master = ("127.0.0.1", port)
    with ThreadPoolExecutor(4) as pool:
        host = pool.submit(meet, carriers(), 0, 2, master, LONG_S)
        sizes = pool.submit(meet, carriers(), 1, 3, master, LONG_S)
        assert "rank 1 has world size 3, but rank 0 has 2" in refusal(sizes)
        old = (("Python", "2.7"),)
        python = pool.submit(meet, carriers(), 1, 2, master, LONG_S, old)
        assert "rank 1 has Python 2.7, but rank 0 has Python 3." in refusal(python)
        first = pool.submit(meet, carriers(), 1, 2, master, LONG_S)
        meetings = [host.result(), first.result()]
        threads = [MemberThread(rank, meeting) for rank, meeting in enumerate(meetings)]
        left(threads)


@pytest.mark.process
def test_who_comes_to_a_former_rank_0_waits_for_the_next(port: int) -> None:
    """As a process does that leaves its group and initializes the next one at once."""
    master = ("127.0.0.1", port)
    with ThreadPoolExecutor(2) as pool:
        with met(port, 2) as meetings:
            former = meetings[0].carrier
            guest = pool.submit(meet, carriers(), 1, 2, master, LONG_S)
            assert wait_until(lambda: any(map(is_join, former.receive(100))))
            for meeting in meetings:
                meeting.carrier.close(0)
        both = [pool.submit(meet, carriers(), 0, 2, master, LONG_S), guest]
        left([MemberThread(rank, of.result()) for rank, of in enumerate(both)])


@pytest.mark.process
def test_a_rank_0_that_has_heard_a_process_is_lost_with_its_connection(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[Any] = []
    wait = rendezvous._wait
    monkeypatch.setattr(
        rendezvous, "_wait", lambda side, deadline: sides.append(side) or wait(side, deadline)
    )
    with ThreadPoolExecutor(1) as pool:
        guest = pool.submit(meet, carriers(), 1, 3, ("127.0.0.1", port), LONG_S)
        carrier = carriers()("0.0", "127.0.0.1", port)
        own = Join(0, 3, "0", carrier.address, versions_of_this_process())
        side = RendezvousHost(carrier, own, replaces=False)

        def is_heard() -> bool:
            for event in carrier.receive(100):
                side.take(event)
            return bool(sides) and sides[0].is_heard

        assert wait_until(is_heard)
        carrier.close(0)
        with pytest.raises(HostLost, match="rank 0 is lost"):
            guest.result()


def is_join(event: Any) -> bool:
    return isinstance(event, HostArrival) and isinstance(read(event), Join)


@pytest.mark.process
def test_a_rank_that_goes_without_farewell_is_lost(port: int) -> None:
    with met(port, 3) as meetings:
        threads = [MemberThread(rank, meetings[rank]) for rank in (0, 1)]
        meetings[2].carrier.close(0)
        for thread in threads:
            assert wait_until(lambda thread=thread: thread.member.membership.loss is not None)
            assert thread.member.membership.loss.rank == 2
        left(threads)


def test_nothing_can_come_before_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that came between would be told of never, and a lone rank 1 wait for ever."""
    done: list[tuple[str, Any]] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(zmq.Socket, name)

        def note(socket: Any, option: Any, *rest: Any) -> Any:
            done.append((name, option if name == "getsockopt" else socket))
            return real(socket, option, *rest)

        return note

    for name in ("bind", "getsockopt"):
        monkeypatch.setattr(zmq.Socket, name, noted(name))
    carrier = carriers()("0.0", "127.0.0.1", 0)
    carrier.close(0)
    listens = max(at for at, (name, _) in enumerate(done) if name == "bind")
    looks = [at for at, what in enumerate(done) if what == ("getsockopt", zmq.EVENTS)]
    assert looks
    assert max(looks) < listens


def test_a_peer_that_was_disconnected_can_have_another_label() -> None:
    here, there = carriers()("0.0", "127.0.0.1", 0), carriers()("1.0", "127.0.0.1", 0)

    def heard() -> list[bytes]:
        found = there.receive(100)
        return [bytes(e.frames[0]) for e in found if isinstance(e, HostArrival)]

    try:
        for k in range(3):
            here.connect(f"{k}", there.address)
            here.send(f"{k}", [b"%d" % k])
            got: list[bytes] = []
            assert wait_until(lambda got=got: bool(got.extend(heard()) or got))
            assert got == [b"%d" % k]
            here.disconnect(f"{k}")
            here.send(f"{k}", [b"to nobody"])
        assert heard() == []
    finally:
        here.close(0)
        there.close(0)


def test_who_has_come_at_last_is_not_one_that_cannot_be_reached(port: int) -> None:
    """A process that got no processor meanwhile hears of both at once, behind the first message:
    a lone rank 1 took rank 0 for lost as soon as they had met."""
    here, there = carriers()("1.0", "127.0.0.1", 0), None
    try:
        here.connect("0", f"tcp://127.0.0.1:{port}")
        here.send("0", [b"are you there"])
        # Nobody listens. The news of that is not read: that would take it away.
        assert select.select([here._of_mouth.FD], [], [], LONG_S)[0]
        there = carriers()("0.0", "127.0.0.1", port)
        assert wait_until(lambda: there.receive(100))
        assert here.receive(0) == []
        there.close(0)
        assert wait_until(lambda: any(isinstance(e, HostDisconnected) for e in here.receive(100)))
    finally:
        here.close(0)
        if there is not None:
            there.close(0)


@pytest.fixture
def member(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemberThread]:
    """The thread of a rank that is alone. It sleeps, and only a request wakes it."""
    monkeypatch.setattr("mpgrad.distributed.member_thread.LOOK_S", 1e6)
    with met(port, 1) as meetings:
        thread = MemberThread(0, meetings[0])
        has_turn = threading.Event()

        def take_wake() -> None:
            """What woke the thread may have come before the request: then it would wake again."""
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(thread._sleep._wake)
            has_turn.set()

        with thread._turn:
            thread.ask(take_wake)
        assert has_turn.wait(LONG_S)
        with thread._turn:  # it gives the turn back only to sleep
            pass
        yield thread
        left([thread])


@pytest.mark.process
def test_what_little_there_is_to_do_is_done_by_who_asks(member: MemberThread) -> None:
    done: list[threading.Thread] = []
    member.do(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]


@pytest.mark.process
def test_who_has_not_the_turn_does_not_wait_for_it(member: MemberThread) -> None:
    goes_on, has_turn, done = threading.Event(), threading.Event(), threading.Event()
    member.ask(lambda: (has_turn.set(), goes_on.wait(LONG_S)))
    has_turn.wait(LONG_S)
    member.do(done.set)
    assert not done.is_set()
    goes_on.set()
    assert done.wait(LONG_S)


@pytest.mark.process
def test_a_signal_comes_after_what_is_done(member: MemberThread) -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        member.do(lambda: (signal.raise_signal(signal.SIGINT), done.append(1)))
    member.do(lambda: done.append(2))
    assert done == [1, 2]


@pytest.mark.process
def test_an_earlier_deadline_wakes_the_thread(member: MemberThread) -> None:
    work = Work("it")
    work.wait_until = member.wait_until
    receive = PendingReceive("it", (0,), lambda _: None, work, 0.0, time.monotonic())
    table = GroupTable(0, (0,))
    member.do(lambda: member.member.collect(table, 0, receive))
    with pytest.raises(CollectiveTimeout):
        work.wait(timedelta(seconds=LONG_S))


def test_a_timeout_of_a_year_is_one() -> None:
    carrier = carriers()("0.0", "127.0.0.1", 0)
    carrier.connect("0", carrier.address)
    carrier.send("0", [b"to itself"])
    while not carrier.receive(365 * 24 * 3600 * 1000):
        pass
    carrier.close(0)


# ---------------------------------------------------------------------------- the pure part

VERSIONS = (("Python", "3.11"),)


def joined(rank: int, incarnation: str = "a", size: int = 3) -> HostJoined:
    return HostJoined(Participant(rank, incarnation, f"tcp://host{rank}"), size, VERSIONS)


def test_a_rank_is_one_process() -> None:
    meeting = Rendezvous(3, VERSIONS)
    assert meeting.handle_event(joined(0)) == []
    assert meeting.handle_event(joined(1)) == []
    assert meeting.handle_event(joined(1)) == []  # the same message again
    (answer,) = meeting.handle_event(joined(1, "b"))
    assert isinstance(answer, RefuseHost)
    assert answer.reason == "rank 1 is taken by another process, at tcp://host1"
    meeting.handle_event(HostGone("a"))
    assert meeting.missing == [0, 1, 2]


def test_who_computes_otherwise_is_named() -> None:
    meeting = Rendezvous(4, VERSIONS)
    usual = (("the processor", "EPYC"), ("the NumPy", "2.3.0"))
    for rank, arithmetic in enumerate((usual, (usual[0], ("the NumPy", "2.1.0")), usual)):
        meeting.handle_event(joined(rank, size=4)._replace(arithmetic=arithmetic))
    assert meeting.differences() == "the NumPy of rank 1 is 2.1.0, but that of rank 0 2.3.0"
    other = (("the processor", "Xeon"), ("the NumPy", "2.1.0"))
    meeting.handle_event(joined(3, size=4)._replace(arithmetic=other))
    assert meeting.differences() == (
        "the NumPy of rank 1, 3 is 2.1.0, but that of rank 0 2.3.0; "
        "the processor of rank 3 is Xeon, but that of rank 0 EPYC"
    )


def test_a_roster_that_was_lost_is_sent_again() -> None:
    meeting = Rendezvous(2, VERSIONS)
    meeting.handle_event(joined(0, size=2))
    first = meeting.handle_event(joined(1, size=2))
    assert [type(answer) for answer in first] == [SendRoster, SendRoster]
    assert meeting.handle_event(joined(1, size=2)) == first[1:]
    (late,) = meeting.handle_event(joined(1, "b", size=2))
    assert isinstance(late, RefuseHost)


@pytest.mark.process
def test_who_has_left_is_not_taken_back(port: int) -> None:
    """It would wait in a group that the former rank 0 is about to leave."""
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(
                meet, carriers(), k, 2, ("127.0.0.1", port), LONG_S, restarts=True, reopens=True
            )
            for k in range(2)
        ]
        generation = Generation(0, both[0].result())
        guest = both[1].result()
    sender = rank_name(1, "again")
    again = Join(1, 2, "again", guest.carrier.address, versions_of_this_process())
    generation.member.membership.handle_event(PeerLeft(1))
    generation.take(HostArrival(sender, [memoryview(encode_head(again))]))
    assert generation.ignored == 1
    generation.end()
    guest.carrier.close(0)
