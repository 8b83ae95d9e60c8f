"""A cancelled graph has a deadline: who still has tasks of it then is ended, and not blamed."""

from __future__ import annotations

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import GRACE_MS_MAX, RESTARTS_WITHOUT_PROGRESS_MAX
from mpgrad.scheduler.plan_tables import CAPTURE
from tests.scheduler.test_coordinator_state import CLIENT, OTHER, WORKER, Core, task, to

CANCELLED = do.FailGraph(CLIENT, 0, "cancelled", -1, b"cancelled by the caller")


@pytest.fixture
def core() -> Core:
    core = Core()
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(WORKER))
    return core


def cancel(core: Core, name: int = 0, grace_ms: int | None = 1000) -> list[object]:
    return core.handle_event(ev.GraphCancelled(CLIENT, name, grace_ms))


def test_whoever_runs_on_is_killed_and_replaced(core: Core) -> None:
    [running] = core.submit(task(to(CAPTURE, nbytes=8192)))
    assert cancel(core) == [do.CancelGraph(WORKER, 0), do.SetDeadline(0, 1000)]
    assert core.handle_event(ev.DeadlinePassed(0)) == [do.FenceWorker(WORKER)]
    assert core.submit(task(to(CAPTURE)), name=1) == []
    assert core.lost(WORKER, running, killed=True) == [CANCELLED, do.StartWorker(0)]
    assert core.arena.used_bytes == 0
    [again] = core.handle_event(ev.WorkerJoined("w0.2"))
    assert again.owner_number == 1


def test_whoever_has_nothing_of_it_is_left_alone(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    [_] = core.submit(task(to(CAPTURE)))
    [bystander] = core.submit(task(to(CAPTURE)), name=1)
    assert bystander.peer == OTHER
    cancel(core)
    assert core.handle_event(ev.DeadlinePassed(0)) == [do.FenceWorker(WORKER)]


def test_a_late_reply_ends_the_graph_before_the_death(core: Core) -> None:
    [running] = core.submit(task(to(CAPTURE)))
    cancel(core)
    core.handle_event(ev.DeadlinePassed(0))
    assert core.done(running, b"late") == [CANCELLED]
    assert core.lost(WORKER, killed=True) == [do.StartWorker(0)]


def test_what_ends_in_time_has_no_deadline(core: Core) -> None:
    [running] = core.submit(task(to(CAPTURE)))
    core.done(running, b"")
    assert cancel(core) == []
    [running] = core.submit(task(to(CAPTURE)), name=1)
    assert cancel(core, name=1)[-1] == do.SetDeadline(1, 1000)
    core.done(running, b"")
    [_] = core.submit(task(to(CAPTURE)), name=2)
    assert core.handle_event(ev.DeadlinePassed(1)) == []


def test_without_a_grace_tasks_take_as_long_as_they_take(core: Core) -> None:
    [_] = core.submit(task(to(CAPTURE)))
    assert cancel(core, grace_ms=None) == [do.CancelGraph(WORKER, 0)]
    # Ctrl-C while the caller waits for that.
    assert cancel(core) == [do.SetDeadline(0, 1000)]


@pytest.mark.parametrize("grace_ms", [-1, GRACE_MS_MAX + 1])
def test_a_grace_has_bounds(core: Core, grace_ms: int) -> None:
    core.submit(task(to(CAPTURE)))
    with pytest.raises(ProtocolError, match="ms to end"):
        cancel(core, grace_ms=grace_ms)


def test_another_graphs_task_is_run_again_and_not_to_blame(core: Core) -> None:
    """The cancelled graph's task waited behind it."""
    [running] = core.submit(task(to(CAPTURE)), name=1)
    [_] = core.submit(task(to(CAPTURE), priority=1.0), name=0)
    cancel(core, name=0)
    number = core.graph_of(CLIENT, 0).number
    assert core.handle_event(ev.DeadlinePassed(number)) == [do.FenceWorker(WORKER)]
    assert core.lost(WORKER, running, killed=True) == [CANCELLED, do.StartWorker(0)]
    [again] = core.handle_event(ev.WorkerJoined("w0.2"))
    assert (again.owner_number, again.attempt) == (1, 2)
    (graph,) = core.graphs.values()
    assert (graph.deaths, graph.kills) == ({}, {})


def test_such_deaths_do_not_count_for_the_slot(core: Core) -> None:
    for name in range(2 * RESTARTS_WITHOUT_PROGRESS_MAX):
        [running] = core.submit(task(to(CAPTURE)), name=name)
        cancel(core, name=name)
        core.handle_event(ev.DeadlinePassed(running.graph))
        assert core.lost(running.peer, running, killed=True)[-1] == do.StartWorker(0)
        core.handle_event(ev.WorkerJoined(f"w0.{name + 2}"))


def test_one_that_hung_before_is_killed_once_and_its_task_is_to_blame(core: Core) -> None:
    [running] = core.submit(task(to(CAPTURE)))
    hung = ev.WorkerHung(WORKER, "took too long", running[1:4])
    assert core.handle_event(hung) == [do.FenceWorker(WORKER)]
    cancel(core)
    assert core.handle_event(ev.DeadlinePassed(0)) == []
