"""A bug in a process of the engine: who hears of it, and what the coordinator tells."""

from __future__ import annotations

from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.engine import coordinator_watchdog, session
from mpgrad.errors import CoordinatorLost, InvariantViolated, ProtocolError, WorkerLost
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.instructions import CompleteGraph
from tests.python_path import path_to

pytestmark = pytest.mark.process

#: Runs when a child of the engine starts: it puts a bug into the core of the coordinator, or into
#: the shell of the workers.
PLANTED = """
import sys

if "mpgrad.coordinator" in sys.orig_argv:
    from mpgrad.scheduler.graph_task import GraphTask

    right = GraphTask.finish

    def wrong(self, task):
        if self.number == 1:
            raise ValueError("a planted bug")
        right(self, task)

    if "{where}" == "coordinator":
        GraphTask.finish = wrong
    if "{where}" == "memory of the coordinator":
        from mpgrad.scheduler.coordinator_state import CoordinatorState

        CoordinatorState.complete = CoordinatorState._forget
    if "{where}" == "tables of the coordinator":
        from mpgrad.base.handles import ENGINE_ARENA, Block
        from mpgrad.scheduler import invariants
        from mpgrad.scheduler.coordinator_state import CoordinatorState

        invariants.DECIDE_EVERY = 1
        right_complete = CoordinatorState.complete

        def complete(self, graph):
            if graph.number == 1:
                self.leases.holders[Block(ENGINE_ARENA, 1 << 30, 64, 1)] = 1
            right_complete(self, graph)

        CoordinatorState.complete = complete
elif "mpgrad.workers" in sys.orig_argv and "{where}" == "worker":
    from mpgrad.workers.task import TaskRunner

    def wrong(self, dispatch):
        raise ValueError("a planted bug")

    TaskRunner.run = wrong
"""


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def plant(where: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(PLANTED.replace("{where}", where))
        monkeypatch.setenv("PYTHONPATH", path_to(tmp_path))

    return plant


def backward() -> None:
    """Two branches that meet, so that tasks pass on gradients to each other."""
    x = mg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    ((x @ x).exp() + (x * x).exp()).sum().backward()


def many_backwards() -> None:
    """The tables are recounted now and then."""
    for _ in range(1000):
        backward()


def test_a_bug_in_the_coordinator(plant, capfd: pytest.CaptureFixture[str]) -> None:
    plant("coordinator")
    with mg.Engine("process", cpu_workers=1):
        backward()
        with pytest.raises(CoordinatorLost, match=r"internal error.*ValueError: a planted bug"):
            backward()
    said = capfd.readouterr().err
    assert "met an internal error: a planted bug\n" in said
    # Once: where it was raised, and what had happened before, from the first event on.
    assert said.count("Traceback (most recent call last):") == 1
    assert "right(self, task)" not in said
    assert 'raise ValueError("a planted bug")' in said
    events = said.partition("The last events:\n")[2].splitlines()
    assert events[0].startswith(("SessionOpened(", "WorkerJoined("))
    assert [line.partition("(")[0] for line in events if line.startswith("Graph")] == [
        "GraphSubmitted"
    ] * 2
    assert events[-1].startswith("NodeTaskDone(peer='w0.1', graph=1")


def test_tables_that_do_not_add_up_end_the_coordinator(
    plant, capfd: pytest.CaptureFixture[str]
) -> None:
    """No peer is cut off for it; who waits is told why, and the next backward is right."""
    plant("tables of the coordinator")
    with mg.Engine("process", cpu_workers=1):
        backward()
        with pytest.raises(CoordinatorLost) as caught:
            many_backwards()
        backward()
    for words in ("ended after an internal error", "TablesCorrupt", "leases do not add up"):
        assert words in str(caught.value)
    said = capfd.readouterr().err
    assert "met an internal error: the coordinator has recounted its tables: leases do not" in said
    assert said.partition("The last events:\n")[2].startswith(("SessionOpened(", "WorkerJoined("))
    assert "protocol error" not in said


def test_a_graph_that_is_lost_is_an_error(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for ever for the end of a graph that the coordinator does not know."""
    monkeypatch.setattr(coordinator_watchdog, "WAIT_MS", 10)
    monkeypatch.setattr(session, "WAIT_MS", 10)
    plant("memory of the coordinator")
    with mg.Engine("process", cpu_workers=1):
        with pytest.raises(ProtocolError, match="which it has lost"):
            backward()
        with pytest.raises(ProtocolError, match="which it has lost"):
            mg.parallel_map(abs, [1, 2])


def test_a_bug_in_a_worker(plant, capfd: pytest.CaptureFixture[str]) -> None:
    plant("worker")
    with mg.Engine("process", cpu_workers=1), pytest.raises(WorkerLost) as caught:
        backward()
    assert "exited with status 1" in str(caught.value)
    assert "met an internal error: a planted bug" in capfd.readouterr().err


def test_a_bug_in_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    right, completed = ClientState.handle_event, set()

    def wrong(self, event):
        if isinstance(event, CompleteGraph):
            completed.add(event.graph)
            if event.graph > min(completed):
                raise ValueError("a planted bug")
        return right(self, event)

    monkeypatch.setattr(ClientState, "handle_event", wrong)
    with mg.Engine("process", cpu_workers=1):
        backward()
        with pytest.raises(InvariantViolated, match="a planted bug"):
            backward()
