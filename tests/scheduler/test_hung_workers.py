"""A worker that hangs: killed first, its tasks given to others when it is dead; who is to blame."""

from __future__ import annotations

import pytest

from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import DEATHS_MAX, KILLS_MAX
from mpgrad.scheduler.plan_tables import CAPTURE
from tests.scheduler.test_coordinator_state import CLIENT, WORKER, Core, kinds, task, to

TWO_SEEDS = {"seeds": ((0, 0, 0, b""), (1, 0, 0, b"")), "captures": 2}


@pytest.fixture
def core() -> Core:
    core = Core()
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(WORKER))
    return core


def hung(dispatch: do.DispatchNodeTask | None, peer: str = WORKER) -> ev.WorkerHung:
    return ev.WorkerHung(peer, "took too long", None if dispatch is None else dispatch[1:4])


def test_it_is_killed_once_and_gets_nothing_more(core: Core) -> None:
    first, _ = core.submit(task(to(CAPTURE)), task(to(CAPTURE, slot=1), position=1), **TWO_SEEDS)
    assert core.handle_event(hung(first)) == [do.FenceWorker(WORKER)]
    assert core.handle_event(hung(first)) == []
    assert core.submit(task(to(CAPTURE)), name=1) == []
    again = core.handle_event(ev.WorkerJoined("w1.1"))
    assert {(dispatch.peer, dispatch.owner_number) for dispatch in again} == {("w1.1", 1)}


def test_a_late_reply_counts_and_nobody_is_blamed(core: Core) -> None:
    first, other = core.submit(
        task(to(CAPTURE)), task(to(CAPTURE, slot=1), position=1), **TWO_SEEDS
    )
    core.handle_event(hung(first))
    assert core.done(first, b"") == []
    # Killed while it ran the other task, which did nothing wrong.
    assert core.lost(WORKER, other, killed=True) == [do.StartWorker(0)]
    [again] = core.handle_event(ev.WorkerJoined("w0.2"))
    assert (again.task, again.attempt) == (1, 2)
    (graph,) = core.graphs.values()
    assert graph.deaths == {}


def test_of_a_task_that_was_answered_nothing_follows(core: Core) -> None:
    first, _ = core.submit(task(to(CAPTURE)), task(to(CAPTURE, slot=1), position=1), **TWO_SEEDS)
    core.done(first, b"")
    assert core.handle_event(hung(first)) == []
    assert core.handle_event(hung(first, "w7.1")) == []


@pytest.mark.parametrize(("is_stopped", "limit"), [(False, DEATHS_MAX), (True, KILLS_MAX)])
def test_a_task_that_always_hangs_fails_its_graph(core: Core, is_stopped: bool, limit: int) -> None:
    """The fence is a SIGKILL; what counts is whether the task or somebody outside is to blame."""
    [running] = core.submit(task(to(CAPTURE)))
    for death in range(1, limit):
        core.handle_event(hung(None if is_stopped else running, running.peer))
        assert kinds(core.lost(running.peer, running, killed=True)) == ["StartWorker"]
        [running] = core.handle_event(ev.WorkerJoined(f"w0.{death + 1}"))
    core.handle_event(hung(None if is_stopped else running, running.peer))
    end, _ = core.lost(running.peer, running, killed=True)
    assert (end.kind, end.task) == ("lost" if is_stopped else "hung", 0)
    assert end.error == b"took too long (%d times)" % limit
