"""The comparison of ``auto`` with both modes: that it runs and says where."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    row = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"tiny( +\d+){3}( +\d+\.\d\d){2}  llllll", row), row


def test_a_graph_that_is_not_there() -> None:
    done = run("huge")
    assert done.returncode == 2
    assert "no such graph: huge" in done.stderr
