"""scripts/stress nightly: sums are kept from night to night, and no seed comes twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import stress.nightly
from stress.__main__ import main
from stress.nightly import FIRST_SEED, KINDS, Kind, Page, Turn, run_night

TWO = (Kind("simulation", ("--seeds", "10"), "--first", 10), Kind("hostile", (), ""))
PASSED = Turn(True, ["simulation: PASSED"])


def night(path: Path, turns: int, turn: Turn = PASSED) -> list[list[str]]:
    """The commands of a night with so many turns."""
    told: list[list[str]] = []

    def perform(words: list[str]) -> Turn:
        told.append(words)
        return turn

    # One look at the clock before the first turn, then three in each.
    times = itertools.count()
    run_night(Page(path), 3 * turns, TWO, perform, lambda: next(times))
    return told


def test_no_seed_comes_twice(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    commands = night(path, 4) + night(path, 4)
    firsts = [int(words[-1]) for words in commands if words[0] == "simulation"]
    assert firsts == [FIRST_SEED + 10 * turn for turn in range(len(firsts))]
    assert len(firsts) == 4
    # They go round.
    assert [words[0] for words in commands] == ["simulation", "hostile"] * 4
    page = path.read_text()
    assert f"| simulation | 4 | 0 | {FIRST_SEED} to {FIRST_SEED + 39} | " in page
    assert "| hostile | 4 | 0 | - | " in page
    assert "What failed" not in page


def test_seeds_count_though_the_night_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    first = Page(path).begin(TWO[0])
    assert Page(path).begin(TWO[0])[-1] == str(int(first[-1]) + 10)
    assert Page(path).sums["simulation"].turns == 0


def test_what_fails_is_kept_with_its_command(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    night(path, 1, turn=Turn(False, ["Wrong: a deadlock", "again: ..."]))
    night(path, 1)
    page = path.read_text()
    assert f"| simulation | 1 | 1 | {FIRST_SEED} to {FIRST_SEED + 9} | " in page
    assert f"`scripts/stress simulation --seeds 10 --first {FIRST_SEED}`:" in page
    assert "    Wrong: a deadlock\n    again: ...\n" in page


@pytest.mark.slow
def test_a_short_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a real run in a process of its own: the first turn ends after the time is over."""
    few = Kind("files", ("--files", "100"))
    monkeypatch.setattr(stress.nightly, "KINDS", (few,))
    page = tmp_path / "page.md"
    assert main(["nightly", "--minutes", "0.001", "--page", str(page)]) == 0
    assert "files: PASSED: 100 files" in capsys.readouterr().out
    assert f"| files | 1 | 0 | {FIRST_SEED} to {FIRST_SEED} | " in page.read_text()


def test_every_turn_is_one_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        with pytest.raises(SystemExit) as ended:
            main([kind.name, *kind.words, *([kind.seed, "1"] if kind.seed else []), "--help"])
        assert ended.value.code == 0
    assert capsys.readouterr().err == ""
