"""``mpgrad doctor``: a verdict that follows from its findings."""

from __future__ import annotations

import pytest

from mpgrad.launch import doctor


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


@pytest.mark.process
@pytest.mark.slow
def test_a_real_worker_answers() -> None:
    verdict, detail = doctor._workers()
    assert verdict == "ok", detail
