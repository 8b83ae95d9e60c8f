"""The coordinator's deadlines: told once, in the order of their times."""

from __future__ import annotations

from mpgrad.coordinator.worker_watchdog import Deadlines
from mpgrad.scheduler.events import DeadlinePassed
from mpgrad.scheduler.instructions import SetDeadline


def test_nothing_is_waited_for_where_there_is_none() -> None:
    deadlines = Deadlines()
    assert deadlines.wait_ms(5.0) is None
    assert deadlines.take_passed(5.0) == []


def test_each_is_told_once_in_the_order_of_their_times() -> None:
    deadlines = Deadlines()
    deadlines.set(SetDeadline(7, 1000), 100.0)
    deadlines.set(SetDeadline(8, 500), 100.2)
    assert deadlines.wait_ms(100.2) == 500
    assert deadlines.take_passed(100.5) == []
    assert deadlines.take_passed(100.75) == [DeadlinePassed(8)]
    assert deadlines.wait_ms(100.5) == 500
    assert deadlines.wait_ms(300.0) == 0
    assert deadlines.take_passed(300.0) == [DeadlinePassed(7)]
    assert deadlines.wait_ms(300.0) is None


def test_the_loop_wakes_up_when_one_has_passed_and_not_before() -> None:
    """A time that is rounded down would wake it too early, again and again."""
    deadlines = Deadlines()
    deadlines.set(SetDeadline(1, 1), 0.0)
    assert deadlines.wait_ms(0.0004) == 1
