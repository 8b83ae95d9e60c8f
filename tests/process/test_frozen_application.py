"""A program that PyInstaller has frozen: ``sys.executable`` is the program itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import path_to

pytest.importorskip("PyInstaller")

pytestmark = [pytest.mark.process, pytest.mark.long]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
with open(os.environ["RUNS"], "a") as file:
    print("run", file=file)
import mpgrad as mg


class Heavy(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * (2.0 + 0 * sum(range(300_000)))


x = mg.tensor([1.0, 2.0], requires_grad=True)
with mg.Engine(cpu_workers=2) as engine:
    for _ in range(40):
        x.grad = None
        mg.stack([Heavy.apply(x * k).sum() for k in range(1, 9)]).sum().backward()
    print(sys.frozen, x.grad.tolist(), len(engine.worker_pids()))
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The frozen program."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "application.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "ERROR"]
    subprocess.run(
        [*command, "--collect-submodules", "mpgrad", "application.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path_to(ROOT), "PYINSTALLER_CONFIG_DIR": str(folder)},
        check=True,
    )
    return folder / "dist" / "application" / "application"


def run(
    application: Path, runs: Path, mode: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], int]:
    """What it does, and how often it was started."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPGRAD"))}
    done = subprocess.run(
        [application],
        env={**bare, "RUNS": str(runs), "MPGRAD_ENGINE": mode, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done, len(runs.read_text().splitlines())


RIGHT = "True [72.0, 72.0]"


def test_a_frozen_application(application: Path, tmp_path: Path) -> None:
    """One test, since it takes a minute to freeze a program."""
    done, runs = run(application, tmp_path / "process", "process")
    assert (done.returncode, done.stdout, runs) == (1, "", 1)
    for words in ("sys.executable", "multiprocessing.freeze_support", "MPGRAD_PYTHON"):
        assert words in done.stderr

    done, runs = run(application, tmp_path / "auto", "auto")
    assert (done.returncode, done.stdout, runs) == (0, f"{RIGHT} 0\n", 1)
    [line] = done.stderr.splitlines()
    assert "MPGRAD_PYTHON" in line

    variables = {"MPGRAD_PYTHON": sys.executable, "PYTHONPATH": path_to(ROOT)}
    done, runs = run(application, tmp_path / "python", "process", **variables)
    assert (done.returncode, done.stdout, runs) == (0, f"{RIGHT} 2\n", 1), done.stderr
