"""Engines shared by a module's tests, and the check that every test leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs, freeze
from mpgrad.engine import submitter
from mpgrad.engine.engine import _stack
from mpgrad.scheduler.cost_model import CostModel
from tests.leftovers import Leftovers, left_since
from tests.python_path import path_to

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory() -> Iterator[None]:
    """Other engines on this machine keep their sockets in /tmp: they are not ours to judge."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="mpt-") as directory, pytest.MonkeyPatch.context() as m:
        m.setenv("TMPDIR", directory)
        tempfile.tempdir = directory
        yield
        tempfile.tempdir = before


@pytest.fixture(scope="session", autouse=True)
def threads_that_serve_forks_end_soon() -> Iterator[None]:
    """They wait 10 s for another fork, and a test waits for the descriptor that they have open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submitter, "IDLE_S", 0.05)
        yield


@pytest.fixture(scope="session")
def everything_opened_once(own_temporary_directory: None) -> None:
    """The descriptors that a process keeps once it has had an engine (its own arena's)."""
    with mg.Engine("process", cpu_workers=1):
        mg.tensor([1.0], requires_grad=True).sum().backward()


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing(everything_opened_once: None) -> Iterator[None]:
    """Set up before the module's engine, so that it sees that one go."""
    before, entered = Leftovers.now(), list(_stack)
    yield
    assert left_since(before) == ""
    assert _stack == entered, "an engine's `with` block was not left"


@pytest.fixture(autouse=True)
def leaves_nothing(module_leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up after the module's engine, so that what was there before a test may stay."""
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine")
    before = Leftovers.now()
    yield
    assert left_since(before) == ""


@pytest.fixture(scope="module")
def process_engine() -> Iterator[mg.Engine]:
    """Two workers, shared by the tests of a module."""
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


@pytest.fixture
def engine(process_engine: mg.Engine) -> Iterator[mg.Engine]:
    """The module's engine; afterwards it must still work, and hold nothing."""
    yield process_engine
    check_usable()


def check_usable() -> None:
    """The current engine computes a gradient."""
    x = mg.tensor([3.0, 4.0], requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [6.0, 8.0]


class Unteachable(CostModel):
    """Costs stay what the shapes say: on a busy machine others are measured, and plans differ."""

    def observe(self, key: Any, measured_us: Any, guess: float | None = None) -> None:
        pass


def plans_of_shapes_alone(patch: pytest.MonkeyPatch) -> None:
    """The plan of a graph is the same whatever has run before, and however fast that was."""
    patch.setattr(costs, "model", Unteachable())
    for kept in ("_memory", "_guards"):  # a plan that another test has left would serve
        patch.setattr(freeze, kept, type(getattr(freeze, kept))())


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python source as a script of its own and return what it did."""

    def run(source: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            script_command(tmp_path, source),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=script_environment(),
            **options,
        )

    return run


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start Python source as a script of its own; it does not survive the test."""
    with contextlib.ExitStack() as stack:

        def start(source: str, **options: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                script_command(tmp_path, source),
                env=script_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                **options,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def script_command(directory: Path, source: str) -> list[str]:
    """The command that runs ``source`` as a script."""
    path = directory / "script.py"
    path.write_text(source)
    return [sys.executable, str(path)]


def script_environment() -> dict[str, str]:
    """Lets a script find this very mpgrad, in process mode with two workers."""
    return {
        **os.environ,
        "PYTHONPATH": path_to(ROOT),
        "MPGRAD_ENGINE": "process",
        "MPGRAD_CPU_WORKERS": "2",
    }
