"""A worker's core: one task at a time, urgent ones first, every dispatched task answered once."""

from __future__ import annotations

import pytest

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.worker_state import WorkerState

PEER = "w0.1"


def dispatch(task: int, *, graph: int = 0, depth: int = 0) -> do.DispatchNodeTask:
    return do.DispatchNodeTask(PEER, graph, task, 1, graph, depth, (0, 0), (), ())


def finished(task: int, graph: int = 0) -> ev.NodeTaskFinished:
    return ev.NodeTaskFinished(ev.NodeTaskDone(PEER, graph, task, 1, ()))


@pytest.fixture
def core() -> WorkerState:
    return WorkerState(PEER)


def test_a_task_runs_at_once_and_the_next_one_after_its_reply(core: WorkerState) -> None:
    assert core.handle_event(dispatch(0)) == [do.ExecuteNodeTask(dispatch(0))]
    assert core.handle_event(dispatch(1)) == []
    reply, execute = core.handle_event(finished(0))
    assert reply == finished(0).reply
    assert execute == do.ExecuteNodeTask(dispatch(1))
    assert core.handle_event(finished(1)) == [finished(1).reply]


def test_deeper_graphs_overtake_and_equals_keep_their_order(core: WorkerState) -> None:
    core.handle_event(dispatch(0))
    for waiting in (dispatch(1), dispatch(2), dispatch(3, graph=1, depth=1)):
        core.handle_event(waiting)
    order, running = [], dispatch(0)
    while core.running is not None:
        running = core.running
        order.append(running.task)
        core.handle_event(finished(running.task, running.graph))
    assert order == [0, 3, 1, 2]


def test_cancelling_gives_back_what_has_not_begun(core: WorkerState) -> None:
    for task in (dispatch(0), dispatch(1), dispatch(2, graph=1), dispatch(3)):
        core.handle_event(task)
    assert core.handle_event(do.CancelGraph(PEER, 0)) == [
        ev.NodeTaskDropped(PEER, 0, 1, 1),
        ev.NodeTaskDropped(PEER, 0, 3, 1),
    ]
    # The running one lands as usual, and the other graph goes on.
    assert core.handle_event(finished(0)) == [
        finished(0).reply,
        do.ExecuteNodeTask(dispatch(2, graph=1)),
    ]


def test_cancelling_an_unknown_graph_does_nothing(core: WorkerState) -> None:
    assert core.handle_event(do.CancelGraph(PEER, 7)) == []


def test_it_stops_after_the_running_task(core: WorkerState) -> None:
    core.handle_event(dispatch(0))
    core.handle_event(dispatch(1))
    assert core.handle_event(do.ShutDown(PEER)) == []
    assert core.handle_event(finished(0)) == [finished(0).reply, do.StopProcess()]


def test_an_idle_worker_stops_at_once(core: WorkerState) -> None:
    assert core.handle_event(do.ShutDown(PEER)) == [do.StopProcess()]


def test_a_reply_to_another_task_is_a_bug(core: WorkerState) -> None:
    with pytest.raises(InvariantViolated, match="did not run"):
        core.handle_event(finished(0))
    core.handle_event(dispatch(0))
    with pytest.raises(InvariantViolated, match="did not run"):
        core.handle_event(finished(1))


def test_an_event_of_another_core_is_a_bug(core: WorkerState) -> None:
    with pytest.raises(InvariantViolated, match="WorkerJoined"):
        core.handle_event(ev.WorkerJoined(PEER))
