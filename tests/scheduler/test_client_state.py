"""A session's core: every graph ends once, every task that reaches the session is answered."""

from __future__ import annotations

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.client_state import ClientState

PEER = "c1.0"
END = do.CompleteGraph(PEER, 4, (), (), ())


@pytest.fixture
def core() -> ClientState:
    core = ClientState(PEER)
    core.handle_event(ev.GraphSubmitted(PEER, 4, 0, (), (), 0))
    return core


def test_an_end_becomes_an_outcome(core: ClientState) -> None:
    assert core.running == [4]
    assert core.handle_event(END) == []
    assert core.running == []
    assert core.outcomes == {4: END}


def test_a_graph_ends_once(core: ClientState) -> None:
    core.handle_event(END)
    with pytest.raises(ProtocolError, match="ended twice"):
        core.handle_event(END)


def test_only_tasks_of_running_graphs_are_run(core: ClientState) -> None:
    with pytest.raises(ProtocolError, match="graph 5, which is not running"):
        core.handle_event(do.DispatchNodeTask(PEER, 9, 2, 1, 5, 0, (0, 0), (), ()))


def test_only_a_running_graph_is_cancelled(core: ClientState) -> None:
    assert core.handle_event(ev.GraphCancelled(PEER, 4)) == [ev.GraphCancelled(PEER, 4)]
    core.handle_event(END)
    assert core.handle_event(ev.GraphCancelled(PEER, 4)) == []


def test_a_task_is_run_and_answered_even_if_its_graph_is_cancelled(core: ClientState) -> None:
    task = do.DispatchNodeTask(PEER, 9, 2, 1, 4, 0, (0, 0), (), ())
    assert core.handle_event(task) == [do.ExecuteNodeTask(task)]
    assert core.handle_event(do.CancelGraph(PEER, 9)) == []
    reply = ev.NodeTaskDone(PEER, 9, 2, 1, ())
    assert core.handle_event(ev.NodeTaskFinished(reply)) == [reply]


def test_a_task_that_comes_after_the_cancellation_is_not_run(core: ClientState) -> None:
    """Ctrl-C has come: user code that begins now might run for ever."""
    core.handle_event(ev.GraphCancelled(PEER, 4))
    task = do.DispatchNodeTask(PEER, 9, 2, 1, 4, 0, (0, 0), (), ())
    assert core.handle_event(task) == [ev.NodeTaskDropped(PEER, 9, 2, 1)]
