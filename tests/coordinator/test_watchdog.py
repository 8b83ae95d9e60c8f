"""The watchdog's judgement, look by look; time is what it is told."""

from __future__ import annotations

import pytest

from mpgrad.coordinator.worker_watchdog import (
    IDLE_LIMIT_S,
    STOPPED_LIMIT_S,
    TICK_S,
    Sight,
    Watchdog,
)
from mpgrad.scheduler.events import WorkerHung

TASK, NEXT = (0, 3, 1), (0, 4, 1)


def sight(running: tuple[int, int, int] | None = TASK, *, is_stopped: bool = False) -> Sight:
    return Sight("w0.1", "worker w0.1 (pid 7)", running, is_stopped)


def looks(watchdog: Watchdog, shown: Sight, seconds: float) -> list[WorkerHung]:
    """What it reports in the looks of so many seconds, of a coordinator that is never late."""
    now_s, end_s, found = 0.0, seconds, []
    watchdog.wake(now_s)
    while True:
        wait_ms = watchdog.wait_ms(now_s)
        assert wait_ms is not None
        now_s += wait_ms / 1000
        if now_s > end_s:
            return found
        assert watchdog.is_due(now_s)
        found += watchdog.look(now_s, [shown])


def test_without_a_timeout_a_task_may_take_for_ever() -> None:
    assert looks(Watchdog(None), sight(), 10_000) == []


@pytest.mark.parametrize("timeout_s", [0.1, 1.0, 30.0])
def test_a_task_that_takes_too_long(timeout_s: float) -> None:
    assert looks(Watchdog(timeout_s), sight(), timeout_s) == []
    first, *_ = looks(Watchdog(timeout_s), sight(), 1.6 * timeout_s)
    assert first.running == TASK
    assert f"worker w0.1 (pid 7) had not finished it after {timeout_s:g} s" in first.cause


def test_another_task_begins_anew() -> None:
    watchdog = Watchdog(1.0)
    for number in range(40):
        assert watchdog.look(float(number), [sight(TASK if number % 8 < 4 else NEXT)]) == []


def test_a_stopped_worker_is_no_fault_of_its_task() -> None:
    assert looks(Watchdog(1.0), sight(is_stopped=True), STOPPED_LIMIT_S) == []
    [first, *_] = looks(Watchdog(1.0), sight(is_stopped=True), STOPPED_LIMIT_S + 2 * TICK_S)
    assert first.running is None
    assert "SIGSTOP" in first.cause


def test_a_worker_that_begins_nothing() -> None:
    assert looks(Watchdog(None), sight(None), IDLE_LIMIT_S) == []
    [first] = looks(Watchdog(None), sight(None), IDLE_LIMIT_S + TICK_S)
    assert first.running is None


def test_time_in_which_the_coordinator_was_stopped_does_not_count() -> None:
    watchdog = Watchdog(10.0)
    for number in range(10):
        assert watchdog.look(1000.0 * number, [sight()]) == []


def test_it_sleeps_while_nobody_has_tasks() -> None:
    watchdog = Watchdog(5.0)
    assert watchdog.wait_ms(0.0) is None
    watchdog.wake(0.0)
    watchdog.wake(0.5)
    assert watchdog.wait_ms(0.5) == 500
    assert watchdog.look(1.0, []) == []
    assert watchdog.wait_ms(1.0) is None
    assert not watchdog.is_due(1e9)
