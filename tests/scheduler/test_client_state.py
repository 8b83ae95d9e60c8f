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


def test_results_that_come_before_the_end_belong_to_it(core: ClientState) -> None:
    assert core.handle_event(do.DeliverCaptures(PEER, 4, ((2, b"c"), (0, b"a")))) == []
    assert core.handle_event(do.DeliverCaptures(PEER, 4, ((3, b"d"),))) == []
    core.handle_event(END._replace(captures=(None, b"b", None, None)))
    assert core.outcomes[4].captures == (b"a", b"b", b"c", b"d")


def test_results_of_a_graph_that_fails_are_forgotten(core: ClientState) -> None:
    core.handle_event(do.DeliverCaptures(PEER, 4, ((0, b"a"),)))
    end = do.FailGraph(PEER, 4, "error", 0, b"boom")
    core.handle_event(end)
    assert core.outcomes == {4: end}
    core.handle_event(ev.GraphSubmitted(PEER, 5, 0, (), (), 1))
    core.handle_event(END._replace(graph=5, captures=(b"new",)))
    assert core.outcomes[5].captures == (b"new",)


@pytest.mark.parametrize("captures", [(b"b",), ()], ids=["twice", "none of its own"])
def test_a_result_comes_once(core: ClientState, captures: tuple[bytes, ...]) -> None:
    core.handle_event(do.DeliverCaptures(PEER, 4, ((0, b"a"),)))
    with pytest.raises(ProtocolError, match="result 0 of graph 4"):
        core.handle_event(END._replace(captures=captures))


def test_results_of_a_graph_that_has_ended_are_refused(core: ClientState) -> None:
    core.handle_event(END)
    with pytest.raises(ProtocolError, match="graph 4, which is not running"):
        core.handle_event(do.DeliverCaptures(PEER, 4, ((0, b"a"),)))


def test_a_graph_that_the_coordinator_has_lost(core: ClientState) -> None:
    with pytest.raises(ProtocolError, match="graph 4, which it has lost"):
        core.handle_event(do.GraphForgotten(PEER, 4))
    core.handle_event(END)  # it was on its way when the question was asked
    assert core.handle_event(do.GraphForgotten(PEER, 4)) == []
