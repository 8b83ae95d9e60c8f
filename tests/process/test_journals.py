"""The journal of a real coordinator: an internal error leaves a file that runs again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.errors import CoordinatorLost, InvariantViolated, WorkerLost
from mpgrad.launch import replay_command as replay
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.instructions import CompleteGraph
from tests.python_path import path_to

pytestmark = pytest.mark.process

#: Runs when a child of the engine starts: it puts a bug into the core of the coordinator, or into
#: the shell of the workers.
PLANTED = """
import sys

if "mpgrad.coordinator" in sys.orig_argv or "replay" in sys.orig_argv:
    from mpgrad.scheduler.graph_task import GraphTask

    right = GraphTask.finish

    def wrong(self, task):
        if self.number == 1:
            raise ValueError("a planted bug")
        right(self, task)

    if "{where}" == "coordinator":
        GraphTask.finish = wrong
elif "mpgrad.workers" in sys.orig_argv and "{where}" == "worker":
    from mpgrad.workers.task import TaskRunner

    def wrong(self, dispatch):
        raise ValueError("a planted bug")

    TaskRunner.run = wrong
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPGRAD_JOURNAL_DIR", str(tmp_path / "journals"))
    return tmp_path / "journals"


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


def run_replay(file: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``mpgrad replay`` in a process of its own."""
    path = path_to(Path(mg.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "mpgrad", "replay", file],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def named_file(text: str) -> str:
    found = re.search(r"Its last events are in (\S+) \(`mpgrad replay", text)
    assert found is not None, text
    return found[1]


def test_a_bug_in_the_coordinator(directory: Path, plant, monkeypatch, capfd) -> None:
    plant("coordinator")
    with mg.Engine("process", cpu_workers=1):
        backward()
        with pytest.raises(CoordinatorLost) as caught:
            backward()
    file = named_file(str(caught.value))
    assert Path(file).parent == directory
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert "met an internal error: a planted bug. Its last events are in" in capfd.readouterr().err
    # The same bug gives the same instructions, and the same error at their end.
    again = [run_replay(file, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert [done.returncode for done in again] == [0, 0], again[0].stdout + again[0].stderr
    assert again[0].stdout == again[1].stdout
    assert "because: ValueError: a planted bug" in again[0].stdout
    assert re.search(r"replayed \d+ events: the same \d+ instructions", again[0].stdout)
    # Without the bug, the last event is the first that goes otherwise.
    monkeypatch.delenv("PYTHONPATH")
    mended = run_replay(file)
    assert mended.returncode == 1
    assert "has another outcome now" in mended.stdout
    assert "raised ValueError: a planted bug" in mended.stdout.partition("another outcome")[2]


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


def test_a_journal_that_the_user_asked_for(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mg.Engine("process", cpu_workers=2, journal="always"):
        backward()
    [file] = directory.iterdir()
    assert file.name.startswith("coordinator-")
    assert replay.main(str(file), 0) == 0, capsys.readouterr().out


def test_the_journal_can_be_switched_off(directory: Path, plant) -> None:
    plant("coordinator")
    with mg.Engine("process", cpu_workers=1, journal="off"):
        backward()
        with pytest.raises(CoordinatorLost) as caught:
            backward()
    assert "mpgrad replay" not in str(caught.value)
    assert not directory.exists()
