"""What a NodeTask may go through is a table, and an error shows what led to it."""

from __future__ import annotations

import pytest

from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler.coordinator_state import (
    BYTES_KEPT,
    EVENTS_KEPT,
    TASKS_KEPT,
    CoordinatorState,
)
from mpgrad.scheduler.events import (
    GraphCancelled,
    GraphExtended,
    GraphSubmitted,
    NodeTaskFailed,
    OutputEmitted,
    SessionOpened,
    WorkerJoined,
)
from mpgrad.scheduler.graph_task import (
    GRAPH_TRANSITIONS,
    TASK_TRANSITIONS,
    GraphEvent,
    GraphPhase,
    GraphTask,
    TaskState,
    transitions_as_text,
)
from mpgrad.scheduler.instructions import FailGraph, ForwardOutput
from mpgrad.scheduler.plan_tables import NodeTaskSpec
from mpgrad.shm.free_list import FreeList

HAPPENINGS = {happening for _, happening in TASK_TRANSITIONS}


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("happening", sorted(HAPPENINGS))
def test_only_what_stands_in_the_table_may_happen(state: TaskState, happening: str) -> None:
    graph = GraphTask(1, "c1.1", 1, 0, [])
    graph.states = [state]
    if (state, happening) in TASK_TRANSITIONS:
        graph._apply(0, happening)
        assert graph.states == [TASK_TRANSITIONS[state, happening].state]
    else:
        refusal = f"task 0 is {state.value}, which does not allow: {happening}"
        with pytest.raises(InvariantViolated, match=refusal):
            graph._apply(0, happening)


def test_what_is_outstanding_is_ready_or_dispatched() -> None:
    """``outstanding_tasks`` counts these two states, ``remaining`` all but the last one."""
    outstanding = {TaskState.READY, TaskState.DISPATCHED}
    for (state, _), after in TASK_TRANSITIONS.items():
        assert after.outstanding_tasks == (after.state in outstanding) - (state in outstanding)
        assert after.remaining == (state is TaskState.DONE) - (after.state is TaskState.DONE)


@pytest.mark.parametrize("kind", [InvariantViolated, LookupError, ValueError])
def test_an_internal_error_shows_the_last_events(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    core.handle_event(SessionOpened("c1.1"))
    for number in range(EVENTS_KEPT):
        core.handle_event(WorkerJoined(f"w{number}.1"))

    def violated(event: object) -> None:
        raise kind("as planted")

    monkeypatch.setitem(core._handlers, GraphCancelled, violated)
    with pytest.raises(kind) as caught:
        core.handle_event(GraphCancelled("c1.1", 1))
    title, *shown = caught.value.__notes__[0].splitlines()
    assert (title, len(shown)) == ("The last events:", EVENTS_KEPT)
    assert "w1.1" in shown[0]
    assert shown[-1].startswith("GraphCancelled(peer='c1.1', graph=1")


def test_the_fault_of_a_peer_shows_nothing() -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    with pytest.raises(ProtocolError) as caught:
        core.handle_event(GraphCancelled("c1.1", 1, grace_ms=-1))
    assert not hasattr(caught.value, "__notes__")


def test_what_makes_an_event_large_is_not_kept() -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    core.handle_event(SessionOpened("c1.1"))
    core.handle_event(WorkerJoined("w0.1"))
    tasks = (NodeTaskSpec(False, 0.0, 0, 1, (1,), ()),) * (TASKS_KEPT + 1)
    submitted = GraphSubmitted("c1.1", 1, 0, tasks, ((0, 0, 0, b"seed"),), 0, is_whole=False)
    extended = GraphExtended("c1.1", 1, tasks, True)
    large = b"x" * (BYTES_KEPT + 1)
    core.handle_event(submitted)
    core.handle_event(extended)
    assert [len(graph.specs) for graph in core.graphs.values()] == [2 * len(tasks)]
    [shown] = core.handle_event(OutputEmitted("w0.1", 0, "stdout", large))
    [failed] = core.handle_event(NodeTaskFailed("w0.1", 0, 0, 1, large))
    # All of it was used.
    assert isinstance(shown, ForwardOutput)
    assert isinstance(failed, FailGraph)
    assert shown.data == failed.error == large
    kept = list(core.last_events)[-4:]
    assert [len(event.tasks) for event in kept[:2]] == [TASKS_KEPT] * 2
    assert (len(kept[2].data), len(kept[3].error)) == (BYTES_KEPT, BYTES_KEPT)


def test_every_action_of_a_graph_is_a_method_of_the_core() -> None:
    for (before, _), (after, action) in GRAPH_TRANSITIONS.items():
        assert callable(getattr(CoordinatorState, action))
        # A graph that has ended is in no table: nothing can happen to it.
        assert before in (GraphPhase.RUNNING, GraphPhase.DRAINING)
        assert action != "ignore" or after is before


def test_what_stands_in_no_table_violates_an_invariant() -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    graph = GraphTask(1, "c1.1", 1, 0, [], phase=GraphPhase.COMPLETED)
    with pytest.raises(InvariantViolated, match="graph 1 is completed, which does not allow"):
        core.happens(graph, GraphEvent.CANCELLED, "cancelled", -1, b"")
    graph.phase = GraphPhase.DRAINING
    with pytest.raises(InvariantViolated, match="is draining, which does not allow: every task"):
        core.happens(graph, GraphEvent.ALL_DONE)


def test_the_tables_can_be_printed() -> None:
    printed = transitions_as_text()
    assert len(printed.splitlines()) == len(GRAPH_TRANSITIONS) + len(TASK_TRANSITIONS) + 3
    for (before, event), (after, action) in GRAPH_TRANSITIONS.items():
        [row] = [row for row in printed.splitlines() if row.startswith(before) and event in row]
        assert row.split()[-2:] == [after, action]
