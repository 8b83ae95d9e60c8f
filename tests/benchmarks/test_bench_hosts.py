"""What ``scripts/bench hosts`` says follows from its samples; its programs measure that."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks.hosts.__main__ import PAGE
from benchmarks.hosts.deaths import until_lost_s, until_training_s
from benchmarks.hosts.measurement import CALL, CURVE, HALF, PLAIN, SIZES, Figures
from benchmarks.hosts.page import replaced, tables
from benchmarks.hosts.program import Program
from tests.leftovers import wait_until


def figures() -> Figures:
    hop = {CURVE: [1.0, 2.0, 3.0], PLAIN: [0.5, 1.0, 2.0], CALL: [3.0, 4.0, 5.0], HALF: [2.0] * 3}
    return Figures(
        hops=dict.fromkeys(SIZES, hop),
        backwards={2: {"smart": [2.0, 3.0, 4.0], "fast": [1.0, 3.0, 2.0]}},
        overlap=[(2.0, 1.0, 2.1), (2.0, 1.0, 2.2)],
        buckets=[(0.5, 1.0), (1.0, 1.5), (1.5, 2.0)],
        lost={"a process is killed": [0.5, 0.25, 0.75]},
        training=[3.0, 1.0],
    )


def test_the_tables_show_medians_quartiles_and_ratios() -> None:
    text = tables(figures(), {"processor": "a fast one"}, is_quick=False)
    assert "| processor | a fast one |" in text
    middle = "2.00 (1.00 to 3.00) | 1.00 (0.50 to 2.00) | 4.00 (3.00 to 5.00)"
    assert f"| 8 | {middle} | 2.00 (2.00 to 2.00) |" in text
    assert "| 64 KiB | 0.50 | 0.25 | 1.00 |" in text
    assert "| 16 MiB | 8,389 (2.00) | 16,777 (4.00) | 4,194 (1.00) |" in text
    ratios = "2.00 (1.00 to 2.00)"
    assert f"| 2 | 3.00 (2.00 to 4.00) | 2.00 (1.00 to 3.00) | {ratios} |" in text
    assert "85 % (quartiles 77 and 92) in 2 rounds" in text
    assert "| a process is killed | 3 | 0.500 s | 0.750 s | 1 s |" in text
    assert "until it goes on | 2 | 2.000 s | 3.000 s | 10 s |" in text
    assert "quick" not in text
    assert "**A quick run" in tables(figures(), {}, is_quick=True)


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = PAGE.read_text()
    once = replaced(page, "nothing but this")
    assert once.count("nothing but this") == 1
    assert replaced(once, "nothing but this") == once
    assert once.partition("## Numbers")[0] == page.partition("## Numbers")[0]
    assert "## On paper" in page
    assert once.partition("## On paper")[2] == page.partition("## On paper")[2]
    with pytest.raises(ValueError, match="the page has no <!-- scripts/bench hosts"):
        replaced("no marks", "")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("encryption", [[], ["plain"]])
def test_ranks_measure_what_they_are_asked(encryption: list[str]) -> None:
    with Program("crossing_ranks.py", 2, encryption) as ranks:
        ranks.said("ready")
        assert ranks.answer("hop 8 1") > 0
        assert ranks.answer("hop 4194304 1") > 0
        assert ranks.answer("backward 2 smart 1") > 0


@pytest.mark.process
@pytest.mark.slow
def test_a_death_is_timed_and_nothing_is_left() -> None:
    assert until_lost_s(signal.SIGKILL) > 0
    assert until_training_s(1)[0] > 0
    with Program("dying_ranks.py", 2) as ranks:
        pids = [int(words[0]) for _, words in ranks.said("ready", 2)]
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
