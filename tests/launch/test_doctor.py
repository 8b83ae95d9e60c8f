"""``mpgrad doctor``: a verdict that follows from its findings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mpgrad.launch import doctor

ROOT = Path(__file__).parents[2]


def broken() -> tuple[doctor.Verdict, str]:
    raise OSError("no such call")


def test_the_checks_without_an_engine_pass_here() -> None:
    for subject, check in doctor._CHECKS.items():
        if subject != "a worker":
            verdict, detail = check()
            assert verdict in ("ok", "note"), (subject, detail)
            assert detail


def test_all_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", {"memory": lambda: ("note", "little [of it]")})
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert "little [of it]" in out
    assert "mpgrad is ready" in out


def test_a_check_that_raises_is_a_failure_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", {"process watching": broken})
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert "OSError: no such call" in out
    assert "cannot run workers here: process watching" in out


@pytest.mark.parametrize(("can", "verdict"), [(True, "ok"), (False, "note")])
def test_idle_threads_that_cannot_be_told_to_sleep_later(
    can: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "1", "filepath": None}
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [{**pool, "num_threads": 4}])
    monkeypatch.setattr("mpgrad.engine.blas.reads_again", lambda library: can)
    found, detail = doctor._blas()
    assert found == verdict
    assert ("OPENBLAS_THREAD_TIMEOUT" in detail) is not can


def test_what_is_not_installed_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name not in ("pyzmq", "msgspec"))
    assert doctor._packages() == ("fail", "not installed: pip install pyzmq msgspec")


def test_it_asks_for_what_an_installation_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [re.split(r"\W", requirement)[0] for requirement in project["dependencies"]]
    assert list(doctor._REQUIRED) == required
    readme = (ROOT / "README.md").read_text()
    assert f"(dependencies: {', '.join(required)})" in " ".join(readme.split())


def test_a_long_detail_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    doctor._show(doctor.Finding("GPUs", "note", "one word " * 9))
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "note  GPUs              one word one word one word one word"
    assert second == " " * 24 + "one word one word one word one word"
    assert third == " " * 24 + "one word"


@pytest.mark.process
@pytest.mark.slow
def test_a_real_worker_answers() -> None:
    verdict, detail = doctor._workers()
    assert verdict == "ok", detail
