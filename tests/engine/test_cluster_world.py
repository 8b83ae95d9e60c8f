"""Calls on the hosts of a simulated cluster: each ends once, rightly, and nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mpgrad.engine.cluster import host_calls
from mpgrad.engine.cluster.host_actor import HostActor
from mpgrad.engine.cluster.host_calls import HostCalls
from mpgrad.engine.cluster.host_in_use import HostInUse
from mpgrad.engine.cluster.host_tasks import HostArrays, TaskPacker
from mpgrad.engine.submitter import Submission
from simulation.cluster_world import ClusterWorld, ClusterWorldFailure


def run_worlds(seeds: Sequence[int]) -> Counter[str]:
    seen = Counter[str]()
    for seed in seeds:
        seen.update(ClusterWorld(seed).run().seen)
    return seen


@pytest.mark.slow
def test_each_call_ends_once_and_nothing_is_left() -> None:
    seen = run_worlds(range(80))
    happened = {
        "right", "raised", "stopped", "poison", "lost and right", "branches found",
        "branches made again", "dies", "hangs", "leaves", "joins", "autoscaled", "closed early",
    }  # fmt: skip
    assert happened <= {what for what, count in seen.items() if count}


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    seen = run_worlds(range(10_000, 11_000))
    assert seen["hosts lost"] > 2_000
    assert seen["dark"] > 5
    assert seen["no hosts"] > 50


def test_a_world_is_the_same_every_time() -> None:
    assert ClusterWorld(7).run().seen == ClusterWorld(7).run().seen


# ---------------------------------------------------------------------------- planted bugs


def a_stopped_call_waits_on_its_host_for_ever(patch: pytest.MonkeyPatch) -> None:
    def stop(actor: Any, number: int, grace_ms: int | None) -> None:
        if number in actor._running:
            actor._execution.submitter.stop(actor._running[number], grace_ms)

    patch.setattr(HostActor, "stop", stop)


def a_call_that_waits_again_is_dropped_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Submission, "drop", lambda submission: None)


def an_idle_host_keeps_what_came_last(patch: pytest.MonkeyPatch) -> None:
    def task(packer: Any, number: int, released: Sequence[int]) -> bytes:
        return right(packer, number - (not packer._calls), released)  # that of the last one

    right = TaskPacker.task
    patch.setattr(TaskPacker, "task", task)


def a_host_forgets_what_came_later(patch: pytest.MonkeyPatch) -> None:
    def opened(actor: Any, task: Any, data: Any) -> Any:
        for digest in task.forgotten:
            actor._arrays.pop(digest, None)
        return right(actor, task, data)

    right = HostActor._opened
    patch.setattr(HostActor, "_opened", opened)


def arrays_count_as_arrived_when_they_are_sent(patch: pytest.MonkeyPatch) -> None:
    def use(arrays: HostArrays, digest: bytes, nbytes: int) -> bool:
        found = right(arrays, digest, nbytes)
        arrays._arrived.add(digest)
        return found

    right = HostArrays.use
    patch.setattr(HostArrays, "use", use)


def calls_of_a_lost_host_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def lose(calls: HostCalls, host: HostInUse, error: BaseException) -> None:
        host.tasks.clear()
        right(calls, host, error)

    right = HostCalls._lose
    patch.setattr(HostCalls, "_lose", lose)


def any_host_is_asked_for_a_branch(patch: pytest.MonkeyPatch) -> None:
    def add(packer: TaskPacker, *args: Any, knows: bool) -> None:
        right(packer, *args, knows=True)

    right = TaskPacker.add
    patch.setattr(TaskPacker, "add", add)


def ended_branches_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostCalls, "_note_ended", lambda calls: calls.ended.clear())


def a_silent_host_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host_calls, "SILENCE_S", 1e9)


def a_call_that_kills_its_hosts_runs_again_and_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host_calls, "LOSSES_MAX", 10**9)


def the_answer_of_a_stopped_call_is_told(patch: pytest.MonkeyPatch) -> None:
    def opened(host: HostInUse, reply: Any) -> Any:
        last.append(right(host, reply))
        return last[-1]

    def drop(submission: Submission) -> None:
        found = last[-1] if last else KeyError()
        submission.tell(found if isinstance(found, BaseException) else [found])

    last: list[Any] = []
    right = HostInUse.opened
    patch.setattr(HostInUse, "opened", opened)
    patch.setattr(Submission, "drop", drop)


def answers_are_told_to_the_wrong_calls(patch: pytest.MonkeyPatch) -> None:
    def begin(actor: Any, task: bytes, data: Any, *stored: Any) -> Any:
        return right(actor, task, data, *stored)[::-1]

    right = HostActor.begin
    patch.setattr(HostActor, "begin", begin)


PLANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_stopped_call_waits_on_its_host_for_ever,
    a_call_that_waits_again_is_dropped_without_a_word,
    an_idle_host_keeps_what_came_last,
    arrays_count_as_arrived_when_they_are_sent,
    calls_of_a_lost_host_are_forgotten,
    any_host_is_asked_for_a_branch,
    ended_branches_are_not_told,
    a_silent_host_is_waited_for,
    a_call_that_kills_its_hosts_runs_again_and_again,
    the_answer_of_a_stopped_call_is_told,
    answers_are_told_to_the_wrong_calls,
]


#: It strikes in one world of 500.
RARE = pytest.param(a_host_forgets_what_came_later, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [*PLANTS, RARE])
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((ClusterWorldFailure, KeyError, AssertionError)):
        run_worlds(range(1_500))
