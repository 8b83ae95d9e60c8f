"""scripts/gpu_check: one line without a GPU, and every benchmark runs (on the fake driver)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import BENCHMARKS, _obstacle
from benchmarks.gpu.report import WANTED, Part, written
from tests.cuda.fake_driver import TWO_GPUS
from tests.python_path import path_to

ROOT = Path(__file__).resolve().parents[2]


def run(arguments: list[str], driver: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path_to(ROOT), "MPGRAD_CUDA_DRIVER": driver}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True
    )


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = run(["-m", "benchmarks.gpu", "--output", str(tmp_path / "report.md")], "cupy")
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 2
    assert len(done.stdout.strip().splitlines()) == 1
    assert "no GPU here" in done.stdout
    assert not (tmp_path / "report.md").exists()


def test_a_gpu_is_no_obstacle() -> None:
    path = {"PYTHONPATH": path_to(ROOT), "MPGRAD_CUDA_DRIVER": TWO_GPUS}
    assert _obstacle({**os.environ, **path}) == ""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "resnet"])
def test_a_benchmark_runs_to_its_end(name: str) -> None:
    done = run(["-m", f"benchmarks.gpu.{name}", "--small"], TWO_GPUS)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert name != "node_task" or "(53 NodeTasks" in summary  # one for each Node


def test_the_report_tells_failures_and_rehearsals() -> None:
    parts = [Part(name, True, f"as {name}", {"text": "a picture"}) for name in WANTED]
    parts[0] = Part("tests", False, "1 failed | 3 passed", {"trace": "FAILED a"})
    page = written(parts, "some GPU", 7.0, is_rehearsal=True)
    assert "**failed**: 1 failed \\| 3 passed" in page
    assert "rehearsal" in page
    assert all(WANTED[name] in page for name in BENCHMARKS)
    assert "rehearsal" not in written(parts, "some GPU", 7.0, is_rehearsal=False)
