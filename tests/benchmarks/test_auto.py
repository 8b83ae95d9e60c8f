"""The comparison of ``auto`` with both modes: that it runs and says where."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpgrad.base.machine import available_cpus
from tests.leftovers import wait_until

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.auto", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.process
def test_each_step_of_auto_is_shown() -> None:
    done = run("tiny", "--steps", "6")
    assert (done.returncode, done.stderr) == (0, "")
    for row, machine in zip(done.stdout.splitlines()[-2:], ("calm", "busy"), strict=True):
        figures = r"( +\d+\.\d){3}( +\d+\.\d\d){2}"
        assert re.fullmatch(rf"tiny +{machine}{figures}  llllll", row), row


@pytest.mark.slow
@pytest.mark.process
def test_a_natural_program_runs_as_a_map() -> None:
    pytest.importorskip("scipy")
    done = run("memo, map", "--steps", "5")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [re.split(r" {2,}", row)[0] for row in done.stdout.splitlines()[-2:]]
    assert rows == ["memo, map", "memo, map"]


@pytest.mark.process
def test_the_processes_that_spin_end_with_the_benchmark() -> None:
    code = (
        "import os, signal\nfrom benchmarks import auto\n"
        "with auto.busy_cores() as spinners:\n"
        "    print(*[one.pid for one in spinners], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == available_cpus()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}/task").exists() for pid in pids))


def test_a_program_that_is_not_there() -> None:
    done = run("huge")
    assert done.returncode == 2
    assert "no such program: huge" in done.stderr
