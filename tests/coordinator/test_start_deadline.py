"""How long a child that starts may do nothing, look by look; and the watch of workers."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from mpgrad.base.processor_use import ProcessorUse, processor_use
from mpgrad.base.start_deadline import StartDeadline, Verdict
from mpgrad.coordinator.worker_watchdog import TICK_S, StartWatch

NS = 1_000_000_000


class Looks:
    """A deadline, and what its child has used so far."""

    def __init__(self, limit_s: float, run_limit_s: float = float("inf")) -> None:
        self.deadline, self._used_ns = StartDeadline(limit_s, run_limit_s), 0

    def __call__(self, count: int, used_s: float, *, stopped: bool = False) -> Verdict:
        """The last of ``count`` looks, between which so many seconds of a processor are used."""
        verdict = Verdict.WAIT
        for _ in range(count):
            self._used_ns += int(used_s * NS)
            use = ProcessorUse(self._used_ns, 0)
            verdict = self.deadline.look(1.0, use, is_stopped=stopped)
        return verdict


def test_a_child_that_does_nothing() -> None:
    looks = Looks(30.0)
    assert looks(29, 0.0) is Verdict.WAIT
    assert looks(1, 0.0) is Verdict.LATE
    assert "did nothing for 30 s" in looks.deadline.words()
    assert "MPGRAD_START_TIMEOUT" in looks.deadline.words()


def test_a_child_that_wakes_up_now_and_then_does_nothing() -> None:
    assert Looks(30.0)(30, 50e-6) is Verdict.LATE


def test_seconds_of_work_do_not_count() -> None:
    looks = Looks(30.0)
    assert looks(20, 0.0) is Verdict.WAIT
    assert looks(10_000, 0.01) is Verdict.WAIT
    assert looks(10, 0.0) is Verdict.LATE


def test_a_child_that_works_and_never_answers_where_that_is_limited() -> None:
    looks = Looks(30.0, run_limit_s=30.0)
    assert looks(29, 1.0) is Verdict.WAIT
    assert looks(1, 1.0) is Verdict.LATE
    assert "without an answer" in looks.deadline.words()


def test_a_stopped_child_is_named_once_and_then_given_up() -> None:
    looks = Looks(30.0)
    assert looks(2, 0.0, stopped=True) is Verdict.WAIT
    assert looks(1, 0.0, stopped=True) is Verdict.NOTICE
    assert looks(26, 0.0, stopped=True) is Verdict.WAIT
    assert looks(1, 0.0, stopped=True) is Verdict.STOPPED


def test_a_child_that_goes_on_and_is_stopped_again_is_named_again() -> None:
    looks = Looks(30.0)
    assert looks(3, 0.0, stopped=True) is Verdict.NOTICE
    assert looks(1, 0.5) is Verdict.WAIT
    assert looks(3, 0.0, stopped=True) is Verdict.NOTICE


def test_the_work_of_this_process_is_seen() -> None:
    before = processor_use(os.getpid())
    while processor_use(os.getpid()) == before:
        sum(range(100_000))
    assert processor_use(os.getpid()).ran_ns > before.ran_ns > 0


def test_the_work_of_a_process_that_has_gone() -> None:
    assert processor_use((1 << 22) + 1) == (0, 0)


def test_a_child_that_no_processor_is_free_for_is_not_idle() -> None:
    deadline = StartDeadline(30.0, run_limit_s=30.0)
    for second in range(1, 1000):
        use = ProcessorUse(0, second * NS)
        assert deadline.look(1.0, use, is_stopped=False) is Verdict.WAIT


class _Workers:
    """As much of a Supervisor as the watch sees: workers that start, and what is done to them."""

    def __init__(self, *, stopped: bool) -> None:
        child = SimpleNamespace(
            pid=7, processor_use=lambda: ProcessorUse(0, 0), is_stopped=lambda: stopped
        )
        self.workers = [SimpleNamespace(peer="w0.1", child=child)]
        self.done: list[str] = []

    def starting(self) -> list[Any]:
        return self.workers

    def fence(self, peer: str) -> None:
        self.done.append(f"killed {peer}")

    def give_up(self, peer: str, how: str) -> None:
        self.done.append(f"gave up {peer}: {how}")


def watched(workers: _Workers, looks: int) -> StartWatch:
    supervisor: Any = workers
    watch = StartWatch(5.0, supervisor)
    watch.wake(0.0)
    for number in range(1, looks + 1):
        watch.look_in_time(number * TICK_S)
    return watch


def test_a_stopped_worker_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    workers = _Workers(stopped=True)
    watched(workers, 4)
    assert workers.done == []
    watched(workers, 5)
    assert workers.done == ["killed w0.1"]
    notice = capsys.readouterr().err.splitlines()[0]
    words = ("worker w0.1 (pid 7)", "(SIGSTOP) for 3 s", "`kill -CONT 7`", "in 2 s it is killed")
    for word in words:
        assert word in notice


def test_a_worker_that_does_nothing_ends_all_starts() -> None:
    workers = _Workers(stopped=False)
    watched(workers, 5)
    [done] = workers.done
    assert done.startswith("gave up w0.1: did nothing for 5 s")


def test_the_watch_sleeps_while_no_worker_starts() -> None:
    workers = _Workers(stopped=False)
    workers.workers.clear()
    watch = watched(workers, 1)
    assert watch.wait_ms(1.0) is None
    watch.wake(7.0)
    assert watch.wait_ms(7.25) == 1000 * TICK_S - 250
