"""Ctrl-C while a session waits: it breaks the sleep alone, and none is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from mpgrad.engine.session import _Interrupts


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def run(*, awake: Callable[[], object], asleep: Callable[[], object]) -> None:
    """As ``Session`` does: deal with a message, then sleep until the next one."""
    interrupts = _Interrupts()
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
