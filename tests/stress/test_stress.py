"""The stress runs' own honesty: they pass where all is well and fail where something is wrong."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import pytest

from mpgrad.scheduler.replies import Replies
from mpgrad.testing import __main__ as testing
from mpgrad.testing.leftovers import Leftovers, left_since
from stress import chaos, simulation
from stress.__main__ import main
from stress.load import Training


@pytest.mark.process
@pytest.mark.slow
def test_chaos_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--kills", "2", "--seed", "7"]) == 0
    first, verdict = capsys.readouterr().out.splitlines()
    assert "--seed 7" in first
    assert verdict.startswith("chaos: PASSED: 2 kills (2 workers restarted)")
    assert "0 wrong gradients" in verdict


@pytest.mark.process
@pytest.mark.slow
def test_chaos_notices_a_wrong_gradient(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = chaos._fingerprints
    monkeypatch.setattr(chaos, "_fingerprints", lambda seed: [*real(seed)[:-1], "another"])
    assert main(["chaos", "--kills", "1", "--seed", "7"]) == 1
    assert "chaos: FAILED" in capsys.readouterr().out


@pytest.mark.slow
def test_the_load_is_the_same_every_time() -> None:
    first, second = Training(3), Training(3)
    assert [first.step() for _ in range(2)] == [second.step() for _ in range(2)]
    assert Training(4).step() != Training(3).step()


def test_what_is_left_is_named(tmp_path: object) -> None:
    before = Leftovers.now()
    with open(f"{tmp_path}/file", "w"):
        assert left_since(before, 0.0) == "1 descriptors"
    assert left_since(before, 0.0) == ""


@pytest.mark.slow
def test_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulation", "--seeds", "250", "--first", "3", "--processes", "2"]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("simulation: PASSED: 250 worlds, seeds 3 to 252, 0 violations")


def test_a_failed_world_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here(Executor):
        """Worlds run in this process, where a bug is planted."""

        def submit(self, work: Any, *arguments: Any) -> Any:
            future: Future[Any] = Future()
            future.set_result(work(*arguments))
            return future

    monkeypatch.setattr(simulation, "ProcessPoolExecutor", lambda *_: Here())
    monkeypatch.setattr(Replies, "_release_flight", lambda *_: None)
    assert main(["simulation", "--seeds", "30", "--first", "0"]) == 1
    *_, again, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("simulation: FAILED: 0 worlds")
    assert "InvariantViolated" in verdict
    command = again.removeprefix("again: python -m mpgrad.testing ").split()
    assert testing.main(command) == 1


@pytest.mark.parametrize(
    "arguments", [["chaos", "--kills", "0"], ["chaos", "--minutes", "-1"], ["storm"], []]
)
def test_bad_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: scripts/stress" in capsys.readouterr().err
