"""Ctrl-C while a session waits: it breaks the sleep alone, and none is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from mpgrad.autograd.running.deferred_interrupts import GRACE_MS, PATIENCE_MS, Interrupts


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def run(*, awake: Callable[[], object], asleep: Callable[[], object]) -> None:
    """As ``Session`` does: deal with a message, then sleep until the next one."""
    interrupts = Interrupts()
    with interrupts.deferred():
        awake()
        with interrupts.allowed():
            asleep()


def test_it_waits_until_a_message_is_dealt_with() -> None:
    done: list[str] = []

    def deal_with_message() -> None:
        ctrl_c()
        done.append("message")

    with pytest.raises(KeyboardInterrupt):
        run(awake=deal_with_message, asleep=lambda: done.append("slept"))
    assert done == ["message"]


def test_it_breaks_the_sleep() -> None:
    done: list[str] = []

    def sleep() -> None:
        ctrl_c()
        done.append("slept")

    with pytest.raises(KeyboardInterrupt):
        run(awake=lambda: None, asleep=sleep)
    assert done == []


def test_one_that_comes_as_it_falls_asleep_is_not_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def current_thread() -> threading.Thread:
        ctrl_c()
        return threading.main_thread()

    with pytest.raises(KeyboardInterrupt):
        run(
            awake=lambda: monkeypatch.setattr(threading, "current_thread", current_thread),
            asleep=lambda: done.append("slept a whole second"),
        )
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def struck(act: Callable[[], object]) -> KeyboardInterrupt:
    """The KeyboardInterrupt that ``act`` ends with."""
    with pytest.raises(KeyboardInterrupt) as caught:
        act()
    return caught.value


def test_it_breaks_the_users_code_and_then_the_wait_for_its_graph() -> None:
    interrupts = Interrupts()
    done: list[str] = []

    def task() -> None:
        with interrupts.user_code():
            ctrl_c()
            done.append("the rest of the user's code")

    def sleep() -> None:
        with interrupts.allowed():
            done.append("slept")

    with interrupts.deferred():
        first = struck(task)
        done.append("its task is answered")
        assert struck(sleep) is first  # so that the traceback shows the user's code
    assert done == ["its task is answered"]


@pytest.mark.parametrize("is_same_engine", [True, False])
def test_a_backward_inside_the_users_code_deals_with_its_messages(is_same_engine: bool) -> None:
    outer = Interrupts()
    inner = outer if is_same_engine else Interrupts()
    done: list[str] = []

    def first_inside() -> None:
        with inner.deferred():
            ctrl_c()
            done.append("message")
            with inner.allowed():
                done.append("slept")

    def second_inside() -> None:
        with inner.deferred():
            ctrl_c()
            done.append("last message")

    def task() -> None:
        with outer.user_code():
            struck(first_inside)
            done.append("the user catches it")
            second_inside()
            done.append("the rest of the user's code")

    def sleep() -> None:
        with outer.allowed():
            done.append("slept")

    with outer.deferred():
        struck(task)
        struck(sleep)
    assert done == ["message", "the user catches it", "last message"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_said_once_until_all_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    outer, inner = Interrupts(lambda: 50.0), Interrupts(lambda: 50.0)
    assert outer.patience_ms is None
    with outer.deferred(), inner.deferred():
        assert inner.begin_to_stop(KeyboardInterrupt()) == GRACE_MS
        assert inner.patience_ms == PATIENCE_MS
        inner.forget()
    assert outer.begin_to_stop(KeyboardInterrupt()) == GRACE_MS
    assert capsys.readouterr().err.count("stopping") == 1
    outer.forget()
    assert outer.patience_ms is None
    outer.begin_to_stop(KeyboardInterrupt())
    assert capsys.readouterr().err.count("stopping") == 1


def test_the_time_runs_from_ctrl_c_and_ends() -> None:
    """However late it is dealt with, and however many graphs it ends one after another."""
    now_s = [50.0]
    interrupts = Interrupts(lambda: now_s[0])
    left: list[int | None] = []

    def look() -> None:
        left.extend((interrupts.begin_to_stop(KeyboardInterrupt()), interrupts.patience_ms))

    def run() -> None:
        with interrupts.deferred():
            ctrl_c()
            now_s[0] += 0.25
            look()
            now_s[0] += 60.0
            look()

    struck(run)
    assert left == [GRACE_MS - 250, PATIENCE_MS - 250, 0, 0]


class TimeoutOfTheUser(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[list[str]]:
    """A handler of SIGALRM that notes that it was called, and raises."""
    called: list[str] = []

    def handler(*_: object) -> None:
        called.append("alarm")
        raise TimeoutOfTheUser

    before = signal.signal(signal.SIGALRM, handler)
    yield called
    signal.signal(signal.SIGALRM, before)


def test_other_signals_wait_until_a_message_is_dealt_with(alarm: list[str]) -> None:
    with pytest.raises(TimeoutOfTheUser):
        run(
            awake=lambda: (signal.raise_signal(signal.SIGALRM), alarm.append("message")),
            asleep=lambda: alarm.append("slept"),
        )
    assert alarm == ["message", "alarm"]


def test_one_that_does_not_raise_may_come_again_in_the_same_sleep() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: called.append(number))
    try:
        run(
            awake=lambda: None,
            asleep=lambda: [signal.raise_signal(signal.SIGALRM) for _ in range(3)],
        )
        assert len(called) == 3
    finally:
        signal.signal(signal.SIGALRM, before)


def test_only_ctrl_c_breaks_the_wait_for_the_end(alarm: list[str]) -> None:
    interrupts = Interrupts()

    def stop() -> None:
        with interrupts.deferred():
            interrupts.begin_to_stop(TimeoutOfTheUser())
            with interrupts.allowed():
                signal.raise_signal(signal.SIGALRM)
                alarm.append("slept")
            with interrupts.allowed():
                struck(ctrl_c)
                alarm.append("stopped")
            interrupts.forget()

    with pytest.raises(TimeoutOfTheUser):
        stop()
    assert alarm == ["slept", "stopped", "alarm"]


def test_a_handler_of_ours_that_user_code_puts_back_calls_the_users(alarm: list[str]) -> None:
    interrupts = Interrupts()
    with interrupts.deferred():
        found = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, found)
    with pytest.raises(TimeoutOfTheUser):
        signal.raise_signal(signal.SIGALRM)


def test_handlers_that_wait_strike_in_the_backward_of_the_first() -> None:
    """Each is called once, also where the first one runs a backward, in which the others strike."""
    called: list[str] = []

    def first(*_: object) -> None:
        called.append("first")
        with interrupts.deferred(), interrupts.allowed():
            called.append("slept")

    interrupts = Interrupts()
    before = signal.signal(signal.SIGUSR1, first)
    other = signal.signal(signal.SIGUSR2, lambda *_: called.append("second"))
    try:
        with interrupts.deferred():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            with interrupts.allowed():
                called.append("awake")
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGUSR2, other)
    assert called == ["first", "second", "slept", "awake"]
