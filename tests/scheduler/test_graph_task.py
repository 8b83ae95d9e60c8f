"""What a NodeTask may go through is a table, and an error shows what led to it."""

from __future__ import annotations

import pytest

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.events import GraphCancelled, SessionOpened, WorkerJoined
from mpgrad.scheduler.graph_task import TRANSITIONS, GraphTask, TaskState
from mpgrad.shm.free_list import FreeList
from mpgrad.wire.journal import EVENTS_SHOWN, Journal

HAPPENINGS = {happening for _, happening in TRANSITIONS}


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("happening", sorted(HAPPENINGS))
def test_only_what_stands_in_the_table_may_happen(state: TaskState, happening: str) -> None:
    graph = GraphTask(1, "c1.1", 1, 0, [])
    graph.states = [state]
    if (state, happening) in TRANSITIONS:
        graph._apply(0, happening)
        assert graph.states == [TRANSITIONS[state, happening].state]
    else:
        refusal = f"task 0 is {state.value}, which does not allow: {happening}"
        with pytest.raises(InvariantViolated, match=refusal):
            graph._apply(0, happening)


def test_what_is_outstanding_is_ready_or_dispatched() -> None:
    """``outstanding_tasks`` counts these two states, ``remaining`` all but the last one."""
    outstanding = {TaskState.READY, TaskState.DISPATCHED}
    for (state, _), after in TRANSITIONS.items():
        assert after.outstanding_tasks == (after.state in outstanding) - (state in outstanding)
        assert after.remaining == (state is TaskState.DONE) - (after.state is TaskState.DONE)


def test_a_violated_invariant_shows_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    journal = Journal(core.handle_event, core.tables)
    journal.handle_event(SessionOpened("c1.1"))
    for number in range(EVENTS_SHOWN):
        journal.handle_event(WorkerJoined(f"w{number}.1"))

    def violated(event: object) -> None:
        raise InvariantViolated("as planted")

    monkeypatch.setitem(core._handlers, GraphCancelled, violated)
    with pytest.raises(InvariantViolated) as caught:
        journal.handle_event(GraphCancelled("c1.1", 1))
    title, *shown = caught.value.__notes__[0].splitlines()
    assert (title, len(shown)) == ("The last events:", EVENTS_SHOWN)
    assert "w1.1" in shown[0]
    assert shown[-1].startswith("GraphCancelled(peer='c1.1', graph=1")
