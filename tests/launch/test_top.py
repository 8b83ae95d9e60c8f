"""``mpgrad top``: what it finds out about an engine of this very process, and of none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

import mpgrad as mg
from mpgrad.launch import top_command
from mpgrad.launch.engine_processes import (
    EngineUse,
    GpuUse,
    ProcessUse,
    WorkerUse,
    gpus_in_use,
    running_engines,
)
from mpgrad.shm.hosts_board import HostFigures, HostsBoard, hosts_of_client
from mpgrad.shm.status_board import (
    QUEUES_MAX,
    BoardFigures,
    QueueFigures,
    StatusBoard,
    WorkerFigures,
    figures_in,
    queues_in,
    workers_in,
)
from tests.leftovers import wait_until


class Waits(mg.Function):
    """Its backward waits until a pipe has an end: not before the test lets it go."""

    run_on = "worker"

    @staticmethod
    def forward(ctx, x, path):
        ctx.path = path
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        with open(ctx.path) as pipe:
            pipe.read()
        return grad, None


def test_the_board_holds_figures_and_workers() -> None:
    board = StatusBoard.create()
    figures = BoardFigures(1, 2, 3, 4, 5, 6, 1 << 40)
    queues = [QueueFigures(-1, 2, 9), QueueFigures(3, 0, 1)]
    workers = [WorkerFigures(pid, pid - 101, 5) for pid in (100, 101)]
    board.begin(1, 7, 8, 1)
    board.note_branches(1, 3, 1 << 40)
    board.report(figures, queues, [*workers, WorkerFigures(0, -1, 0)])
    copy = bytes(board._buffer)
    assert figures_in(copy) == figures
    assert queues_in(copy) == queues
    assert workers_in(copy) == [
        (workers[0], None, (0, 0)),
        (workers[1], (7, 8, 1), (3, 1 << 40)),
    ]
    board.clear(1)
    assert board.branches(1) == (3, 1 << 40)
    board.report(figures, queues * QUEUES_MAX, workers)
    assert len(queues_in(bytes(board._buffer))) == QUEUES_MAX
    board.close()


def test_hosts_of_a_cluster_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    board = HostsBoard()
    board.show([HostFigures("calm (1.2.3.4)", 8, 1234, 3 << 20), HostFigures("lost", losses=2)])
    assert top_command.main(once=True, as_json=False) == 0
    text = capsys.readouterr().out
    assert f"hosts of {os.getpid()}: " in text
    assert "  calm (1.2.3.4): 8 workers, 1,234 calls, 3.0 MiB sent, 0.0 MiB received\n" in text
    assert "  lost: 0 workers, 0 calls, 0.0 MiB sent, 0.0 MiB received, losses: 2\n" in text
    board.show([HostFigures("x" * 100_000)] * 9)  # as many as there is room for
    assert len(hosts_of_client(os.getpid())) == 2
    board.show([HostFigures("calm")])
    if (child := os.fork()) == 0:  # it has the descriptor, too
        found = hosts_of_client(os.getpid())
        board.close()
        os._exit(len(found))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hosts_of_client(os.getpid()) == [HostFigures("calm")]
    board.close()
    assert hosts_of_client(os.getpid()) == []


@pytest.mark.process
def test_branches_of_workers_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    x = mg.ones(1000, requires_grad=True)
    with mg.Engine("process", cpu_workers=1) as engine:
        outs = mg.parallel_map(lambda k: (x * k).exp().sum(), [1.0, 2.0])
        assert top_command.main(once=True, as_json=True) == 0
        found = json.loads(capsys.readouterr().out)["engines"]
        (mine,) = [o for o in found if o["coordinator"]["pid"] == engine.coordinator_pid]
        (worker,) = mine["workers"]
        statistics = engine.statistics()
        assert worker["branches"] == statistics.branches == 2
        assert worker["branch_bytes"] == statistics.branch_bytes >= 2 * 4000
        assert top_command.main(once=True, as_json=False) == 0
        assert "; 2 branches of 0.0 MiB" in capsys.readouterr().out
        mg.stack(outs).sum().backward()
        mg.parallel_map(abs, [1])  # the worker hears of it with this
        assert wait_until(lambda: engine.statistics().branches == 0)


@pytest.mark.process
def test_an_engine_at_work_is_seen(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    x = mg.ones(2, requires_grad=True)
    with mg.Engine("process", cpu_workers=2) as engine:
        loss = Waits.apply(x, str(path)).sum()
        pid = engine.coordinator_pid  # this process may have a default engine, too

        def two() -> None:
            (x * 2).sum().backward()  # the coordinator has just reported when the next one comes
            loss.backward()

        thread = threading.Thread(target=two)
        thread.start()
        writer = os.open(path, os.O_WRONLY)  # the worker has it open now
        try:

            def seen() -> bool:
                mine = [e for e in running_engines() if e.coordinator.pid == pid]
                return bool(mine) and mine[0].figures.dispatched == 1

            assert wait_until(seen)
            assert top_command.main(once=True, as_json=True) == 0
            found = json.loads(capsys.readouterr().out)["engines"]
            (mine,) = [o for o in found if o["coordinator"]["pid"] == engine.coordinator_pid]
            assert mine["client"]["pid"] == os.getpid()
            assert [worker["pid"] for worker in mine["workers"]] == engine.worker_pids()
            assert [worker["running"] for worker in mine["workers"]].count(None) == 1
            assert (mine["graphs"], mine["ready"], mine["dispatched"]) == (1, 0, 1)
            assert mine["remaining"] >= 1
            assert mine["queues"] == [{"device": "cpu", "urgent": 0, "task": 0}]
            assert sorted(worker["held"] for worker in mine["workers"]) == [0, 1]
            assert {worker["device"] for worker in mine["workers"]} == {"cpu"}
            assert mine["arena_limit"] > mine["arena_used"] >= 0
            assert top_command.main(once=True, as_json=False) == 0
            assert f"engine of {os.getpid()}:" in capsys.readouterr().out
        finally:
            os.close(writer)
            thread.join()

        def idle() -> bool:
            (mine,) = [e for e in running_engines() if e.coordinator.pid == pid]
            return mine.figures[1:5] == (0, 0, 0, 0)

        assert wait_until(idle)
        for _ in range(3):  # short ones
            (x * 2).sum().backward()
        assert wait_until(idle)
    assert [e for e in running_engines() if e.coordinator.pid == pid] == []


def test_without_engines_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top_command, "running_engines", list)
    monkeypatch.setattr(top_command, "used_clusters", list)
    assert top_command.main(once=True, as_json=False) == 0
    assert capsys.readouterr().out == "no engine runs (of this user)\n"
    assert top_command.main(once=True, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"engines": [], "gpus": [], "clusters": []}


#: Stands for NVIDIA's program on a machine with two GPUs, of which one keeps its use to itself.
NVIDIA_SMI = """#!/bin/sh
echo "$1" | grep -q index,utilization.gpu,memory.used,memory.total || exit 1
echo "0, 40, 1024, 81920"
echo "1, [N/A], 0, 81920"
echo "2, 7, 2, 4"
"""


def test_what_nvidia_smi_says_of_the_workers_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    idle = ProcessUse(1, 0.0, 0)
    workers = tuple(WorkerUse(idle, device, 0, None) for device in (-1, 0, 1))
    none = BoardFigures(0, 0, 0, 0, 0, 0, 0)
    engine = EngineUse(idle, "program", idle, workers, none, ())
    assert gpus_in_use([engine]) == [GpuUse(0, 0.4, 1 << 30, 80 << 30)]
    assert gpus_in_use([replace(engine, workers=workers[:1])]) == []
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert gpus_in_use([engine]) == []


def test_the_live_view_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top_command, "running_engines", list)
    monkeypatch.setattr(top_command, "used_clusters", list)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert top_command.main(once=False, as_json=False) == 2
    assert "mpgrad[top]" in capsys.readouterr().err


def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "top", "--once", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "engines" in json.loads(done.stdout)


@pytest.mark.parametrize("once", [True, False])
def test_brackets_and_escapes_in_the_name_of_a_program(
    once: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path is no markup, and commands nothing to the terminal."""
    pid = os.getpid()
    use = ProcessUse(pid, 1.0, 2**20)
    engine = EngineUse(
        use, "run [/y] [red]\x1b[2Jtrain.py", use, (), BoardFigures(0, 0, 0, 0, 0, 0, 1), ()
    )
    monkeypatch.setattr(top_command, "running_engines", lambda: [engine])
    monkeypatch.setattr(top_command, "gpus_in_use", lambda engines: [])
    naps = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(naps, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(top_command.time, "sleep", sleep)
    assert top_command.main(once=once, as_json=False) == 0
    shown = capsys.readouterr().out
    assert f"engine of {pid}: run [/y] [red]\\x1b[2Jtrain.py" in shown
    assert "\x1b" not in shown
