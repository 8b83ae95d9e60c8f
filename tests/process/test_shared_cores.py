"""Processes that share the cores share the workers: no child starts as many as there are cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from mpgrad.base import machine, shared_cores
from mpgrad.base.shared_cores import SharedCores
from mpgrad.engine.options import EngineOptions
from tests.process.conftest import script_environment

pytestmark = pytest.mark.process

RunScript = Callable[..., CompletedProcess[str]]

HEAD = """
import multiprocessing, os, sys
from mpgrad.base import machine
machine.available_cpus = lambda: {cores}
import mpgrad as mg

os.environ.pop("MPGRAD_CPU_WORKERS", None)  # which the tests set
os.environ.pop("MPGRAD_ENGINE", None)


class Doubles(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def workers(runs):
    if runs:  # what would run in workers if there were more than one
        x = mg.ones(4, requires_grad=True)
        mg.stack([Doubles.apply(x).sum() for _ in range(8)]).sum().backward()
        assert mg.current_engine().statistics().backwards_process == 0
    return mg.current_engine().cpu_workers
"""

CHILDREN = """
def child(barrier, found):
    barrier.wait()  # all have come
    found.put(workers(runs={runs}))
    barrier.wait()  # none has gone


if __name__ == "__main__":
    {before}
    context = multiprocessing.get_context("{method}")
    barrier, found = context.Barrier(4), context.Queue()
    children = [context.Process(target=child, args=(barrier, found)) for _ in range(4)]
    for one in children:
        one.start()
    print([found.get() for _ in children], workers(runs=False))
    for one in children:
        one.join()
"""


def children(run_script: RunScript, cores: int, **how: object) -> CompletedProcess[str]:
    source = HEAD.format(cores=cores) + CHILDREN.format(**{"before": "", "runs": False, **how})
    done = run_script(source)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(run_script: RunScript, method: str) -> None:
    done = children(run_script, 16, method=method)
    assert (done.stdout, done.stderr) == ("[4, 4, 4, 4] 16\n", "")


def test_an_engine_that_is_forked_with_its_process(run_script: RunScript) -> None:
    done = children(run_script, 16, method="fork", before="workers(runs=False)")
    assert (done.stdout, done.stderr) == ("[4, 4, 4, 4] 16\n", "")


def test_a_share_of_one_core_stays_in_the_process_and_that_is_said_once(
    run_script: RunScript,
) -> None:
    done = children(run_script, 4, method="fork", runs=True)
    assert done.stdout == "[1, 1, 1, 1] 4\n"
    assert done.stderr == (
        "mpgrad: multiprocessing runs 4 processes on 4 cores: backward passes stay in this process "
        "(Engine(cpu_workers=...) or MPGRAD_CPU_WORKERS decides otherwise)\n"
    )


OF_JOBLIB = """
import joblib
from pathlib import Path
from tests.leftovers import wait_until


def child(number, directory):
    machine.available_cpus = lambda: 12  # what is pickled by value does not patch
    Path(directory, str(number)).touch()
    assert wait_until(lambda: len(os.listdir(directory)) == 3)  # so they are three processes
    return workers(runs=False)


if __name__ == "__main__":
    calls = [joblib.delayed(child)(number, sys.argv[0] + ".d") for number in range(3)]
    os.mkdir(sys.argv[0] + ".d")
    print(joblib.Parallel(n_jobs=3)(calls))
"""


@pytest.mark.slow
def test_children_of_joblib(run_script: RunScript) -> None:
    pytest.importorskip("joblib")
    done = run_script(HEAD.format(cores=12) + OF_JOBLIB)
    assert (done.returncode, done.stdout) == (0, "[4, 4, 4]\n"), done.stderr


IN_XDIST = """
from mpgrad.base import machine
machine.available_cpus = lambda: 12
import mpgrad as mg


def test_it():
    assert mg.Engine().cpu_workers == 4
"""


@pytest.mark.slow
def test_processes_of_xdist(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(IN_XDIST)
    environment = script_environment()
    del environment["MPGRAD_CPU_WORKERS"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n3", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


# ---------------------------------------------------------------------- without processes


def default_workers() -> int:
    return EngineOptions.checked(None, None, "none", None, 1, "worker", None, None).cpu_workers


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cpus", lambda: 16)
    monkeypatch.delenv("MPGRAD_CPU_WORKERS", raising=False)


@pytest.mark.usefixtures("sixteen_cores")
def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert shared_cores.shared_cores() == SharedCores("torchrun", 8, False)
    assert default_workers() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert default_workers() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert default_workers() == 16


@pytest.mark.usefixtures("sixteen_cores")
def test_who_asks_for_workers_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("MPGRAD_CPU_WORKERS", "5")
    assert default_workers() == 5
    asked = EngineOptions.checked(None, 7, "none", None, 1, "worker", None, None)
    assert (asked.cpu_workers, asked.shared) == (7, None)


@pytest.mark.usefixtures("sixteen_cores")
def test_a_process_with_cores_of_its_own_shares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    parent = os.getppid()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1} if pid == parent else {0})
    assert shared_cores.shared_cores() is None
