"""Threads that wait for messages: one of them receives, and all get what is theirs."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mpgrad.autograd.running.deferred_interrupts import interrupts_deferred
from mpgrad.distributed.group_member import GroupTable
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.operation import Work
from mpgrad.distributed.parcels import PendingReceive
from mpgrad.errors import HostLost, MpgradError
from tests.distributed.test_rendezvous import LONG_S, left, met, port  # noqa: F401
from tests.leftovers import wait_until

pytestmark = pytest.mark.process

TABLE = GroupTable(0, (0, 1))
MANY = 20


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a group sees nothing by chance."""
    monkeypatch.setattr("mpgrad.distributed.member_thread.LOOK_S", 1e6)


@pytest.fixture
def threads(port: int) -> Iterator[list[MemberThread]]:  # noqa: F811
    """Those of two ranks, in this process."""
    with met(port, 2) as meetings:
        both = [MemberThread(rank, meeting) for rank, meeting in enumerate(meetings)]
        yield both
        left(both)


def awaited(thread: MemberThread, tag: int, take: Callable[[Any], None] = lambda _: None) -> Work:
    """What rank 0 waits for until rank 1 sends a parcel with this tag."""
    work = Work("it")
    work.wait_until = thread.wait_until
    receive = PendingReceive("it", (1,), take, work, math.inf, math.inf)
    thread.do(lambda: thread.member.collect(TABLE, tag, receive))
    return work


def is_received(thread: MemberThread) -> bool:
    """Whether a thread that waits receives."""
    return repr(thread._receiving).startswith("<locked")


def send(thread: MemberThread, tag: int) -> None:
    thread.ask(lambda: thread.member.post(TABLE, 0, tag, "it", memoryview(b"")))


def test_who_waits_receives(threads: list[MemberThread]) -> None:
    here, there = threads
    receivers: list[threading.Thread] = []
    work = awaited(here, 0, lambda _: receivers.append(threading.current_thread()))
    # Only once this thread receives: before, the message would be the other one's.
    sender = threading.Thread(
        target=lambda: wait_until(lambda: is_received(here)) and send(there, 0)
    )
    sender.start()
    assert work.wait()
    sender.join()
    assert receivers == [threading.current_thread()]


def test_many_wait_at_once(threads: list[MemberThread]) -> None:
    here, there = threads
    works = [awaited(here, tag) for tag in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        waits = [pool.submit(work.wait) for work in works]
        assert wait_until(lambda: len(here._awaited) == MANY)
        for tag in reversed(range(MANY)):
            send(there, tag)
        assert all(wait.result(LONG_S) for wait in waits)
    assert here._awaited == []


def test_those_that_still_wait_when_the_receiver_has_gone(threads: list[MemberThread]) -> None:
    here, there = threads
    receiver_may_go = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(here.wait_until, receiver_may_go.is_set, LONG_S)
        assert wait_until(lambda: len(here._awaited) == 1)
        second = pool.submit(awaited(here, 0).wait)
        assert wait_until(lambda: len(here._awaited) == 2)
        receiver_may_go.set()
        here.do(lambda: None)  # whoever changes something has had the turn
        assert first.result(LONG_S)
        send(there, 0)
        assert second.result(LONG_S)


def test_a_wait_that_is_over_before_anything_comes(threads: list[MemberThread]) -> None:
    here, there = threads
    work = awaited(here, 0)
    assert not here.wait_until(lambda: False, 0.0)
    assert not here.wait_until(lambda: False, 0.001)
    send(there, 0)
    assert work.wait()


def test_ctrl_c_ends_a_wait_and_the_next_one_receives(threads: list[MemberThread]) -> None:
    here, there = threads
    work = awaited(here, 0)

    def interrupt() -> None:
        wait_until(lambda: is_received(here))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    thread.join()
    assert here._awaited == []
    assert not is_received(here)
    send(there, 0)
    assert work.wait()


def test_what_is_not_to_be_interrupted_is_not_so_by_a_wait(threads: list[MemberThread]) -> None:
    here, there = threads
    work, came = awaited(here, 0), []

    def interrupt() -> None:
        wait_until(lambda: is_received(here))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        send(there, 0)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        came.append(work.wait())
    thread.join()
    assert came == [True]


@pytest.fixture
def strike() -> Iterator[Callable[[Callable[[], Any], Callable[[], None]], threading.Thread]]:
    """Has the second function called by a handler of a signal, once the first says that it may."""
    before = signal.getsignal(signal.SIGUSR1)

    def strike(may_strike: Callable[[], Any], do: Callable[[], None]) -> threading.Thread:
        signal.signal(signal.SIGUSR1, lambda *_: do())

        def send_signal() -> None:
            wait_until(may_strike)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        thread = threading.Thread(target=send_signal)
        thread.start()
        return thread

    yield strike
    signal.signal(signal.SIGUSR1, before)


def test_a_handler_of_a_signal_waits_for_another_message(
    threads: list[MemberThread], strike: Any
) -> None:
    here, there = threads
    first, second = awaited(here, 0), awaited(here, 1)
    came = []

    def handle() -> None:
        send(there, 1)
        came.append(second.wait())
        send(there, 0)

    thread = strike(lambda: is_received(here), handle)
    assert first.wait()
    thread.join()
    assert came == [True]


def test_a_handler_of_a_signal_leaves(threads: list[MemberThread], strike: Any) -> None:
    here, _ = threads
    work = awaited(here, 0)
    thread = strike(lambda: is_received(here), here.leave)
    with pytest.raises(MpgradError, match="this rank leaves the group"):
        work.wait()
    thread.join()


def test_who_leaves_ends_the_waits_of_other_threads(threads: list[MemberThread]) -> None:
    here, _ = threads
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(awaited(here, tag).wait) for tag in range(2)]
        assert wait_until(lambda: len(here._awaited) == 2)
        here.leave()
        for wait in waits:
            with pytest.raises(MpgradError, match="this rank leaves the group"):
                wait.result(LONG_S)
    assert not here.wait_until(lambda: False, 0.0)


def test_a_rank_that_is_lost_ends_the_wait(port: int) -> None:  # noqa: F811
    with met(port, 2) as meetings:
        here = MemberThread(0, meetings[0])
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(awaited(here, 0).wait)
            assert wait_until(lambda: is_received(here))
            meetings[1].carrier.close(0)
            with pytest.raises(HostLost):
                wait.result(LONG_S)
        left([here])
