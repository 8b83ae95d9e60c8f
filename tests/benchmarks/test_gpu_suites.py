"""The test suites of scripts/gpu_check: what is told of those that fail, hang or die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.gpu import suites
from benchmarks.gpu.report import Part
from benchmarks.gpu.suites import Suite, run_suites

TESTS = """
import os, signal
def test_good(): assert os.environ["TOLD"] == "yes"
def test_bad(): assert 1 == 2, "a number"
def test_deadly():
    if os.environ.get("DIE"): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    return tmp_path


def found(root: Path, *arguments: str, limit_s: float = 100.0, **environment: str) -> Part:
    suite = Suite("some", (*arguments, "tests"), {"TOLD": "yes", **environment})
    (part,) = run_suites((suite,), root, os.environ, limit_s)
    return part


def test_a_suite_that_passes(root: Path) -> None:
    part = found(root, "-k", "good")
    assert part.has_worked
    assert part.summary.startswith("1 passed, 2 deselected")


def test_a_suite_that_fails_shows_why(root: Path) -> None:
    part = found(root)
    assert not part.has_worked
    assert part.summary.startswith("1 failed, 2 passed")
    assert "a number" in part.figures["trace"]


def test_a_suite_that_dies_tells_where(root: Path) -> None:
    part = found(root, DIE="yes")
    assert part.summary == (
        f"died of signal {int(signal.SIGKILL)} in tests/test_some.py::test_deadly"
        " after 1 failed, 1 passed"
    )
    assert not part.has_worked


def test_a_suite_that_is_not_over_in_time_is_ended(root: Path) -> None:
    part = found(root, limit_s=0.0)
    assert not part.has_worked
    assert part.summary.startswith("was cut off in ")


def test_without_pytest_it_is_said(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(suites.importlib.util, "find_spec", lambda name: None)
    assert found(root).summary == "not run: pytest is not installed"
