"""Loads are what a case's name says, or its figures are not published; no time is judged."""

from __future__ import annotations

import json

import pytest

from benchmarks import cli, loads
from benchmarks.comparison import changes
from benchmarks.document import document
from benchmarks.gil_work import spin
from benchmarks.loads import ALONE, Attempts, Load, alone, in_a_sample, loops_for
from benchmarks.plots import speed_up_lines
from benchmarks.report import Run, as_json
from benchmarks.rounds import Case, CaseResult, Contender, Effort, Point, Target, measure

LOCAL, TORCH = "mpgrad local", "torch 1 thread"
#: 16 branches of 2 ms.
LOAD = Load(32.0, LOCAL, has_little_else=True)


class Processor:
    """What loops take on one that is slowed down for its first ``slow`` tries."""

    def __init__(self, slow: int = 0, microseconds: float = 0.04) -> None:
        self.slow, self.microseconds = slow, microseconds

    def seconds(self, loops: int) -> float:
        self.slow -= 1
        return loops * self.microseconds * (2.1 if self.slow >= 0 else 1.0) / 1e6


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(loads, "_PAUSE_S", 0.0)


def result(**samples):
    samples = {name.replace("_", " "): [value] * 3 for name, value in samples.items()}
    return CaseResult("2 ms", "ms", [TORCH], [], samples, dict.fromkeys(samples, ""))


@pytest.mark.parametrize("slow", [0, 3, loads._TRIES, loads._TRIES + 3])
def test_loops_are_counted_again_if_they_were_counted_in_a_slow_moment(slow):
    assert loops_for(2.0, Processor(slow).seconds) == 50_000


@pytest.mark.parametrize(
    ("in_a_case", "measured"), [([1.0, 1.0], 1), ([1.3, 1.3, 1.0], 2), ([1.3, 0.9, 1.3, 0.9, 1], 4)]
)
def test_a_case_is_measured_again_until_its_loops_fit_its_name(in_a_case, measured):
    """Loops that take ``in_a_case`` times as long there as where they were counted."""
    attempts = Attempts(Load(32.0, "", has_little_else=False), 2.0, Processor().seconds, most=4)
    faults = [
        attempts.fault(result(the_loops_alone=16 * loops * 0.04e-3 * slower))
        for loops, slower in zip(attempts, in_a_case, strict=False)
    ]
    assert len(faults) == measured
    assert all(faults[:-1])


def test_counting_ends_on_a_processor_whose_speed_changes_for_ever():
    class Restless(Processor):
        def seconds(self, loops):
            self.slow = (self.slow + 1) % (2 * loads._TRIES)
            return loops * (1.0 if self.slow < loads._TRIES else 2.0) / 1e6

    assert loops_for(2.0, Restless().seconds) > 0


def test_the_row_of_the_loops_runs_those_of_all_branches(monkeypatch):
    ran = []
    monkeypatch.setattr(loads, "spin", lambda loops: ran.append(loops) or spin(1))
    row = alone(loops=7, branches=4, repeats=1)
    assert row.name == ALONE
    assert row.sample() >= 0.0
    assert ran == [7] * 4


def test_loops_are_counted_as_a_sample_runs_them(monkeypatch):
    ran = []
    monkeypatch.setattr(loads, "spin", lambda loops: ran.append(loops) or spin(1))
    assert in_a_sample(branches=4, repeats=2)(7) >= 0.0
    assert ran == [7] * 4 * 3  # one sample is averaged over two runs, after one that is not counted


def test_a_count_that_is_nearly_right_is_refined():
    class Cold(Processor):
        """The first loops take 8 % less time than all later ones."""

        def seconds(self, loops):
            return super().seconds(loops) * (0.92 if self.slow > -1 - loads._TRIES else 1.0)

    assert loops_for(2.0, Cold().seconds) == 50_000


@pytest.mark.parametrize(
    ("alone_ms", "local_ms", "fault"),
    [
        (32.0, 33.0, ""),
        (29.5, 29.5, ""),
        (15.0, 15.0, "the loops alone took 15 ms, and by the name of the case it is 32 ms (-53%)"),
        (36.0, 33.0, "the loops alone took 36 ms, and by the name of the case it is 32 ms (+12%)"),
        (32.0, 15.0, "mpgrad local took 15 ms, and by the name of the case it is 32 ms (-53%)"),
        (32.0, 40.0, "mpgrad local took 40 ms, and by the name of the case it is 32 ms (+25%)"),
    ],
)
def test_a_load_is_held_against_its_rows(alone_ms, local_ms, fault):
    found = result(the_loops_alone=alone_ms, mpgrad_local=local_ms)
    assert LOAD.fault(found) == fault


def test_short_branches_may_have_much_else_but_no_less():
    load = Load(32.0, LOCAL, has_little_else=False)
    assert load.fault(result(the_loops_alone=32.0, mpgrad_local=60.0)) == ""
    assert load.fault(result(the_loops_alone=32.0, mpgrad_local=20.0)) != ""
    assert Load(32.0, "", has_little_else=False).fault(result(the_loops_alone=32.0)) == ""
    assert LOAD.fault(result(the_loops_alone=32.0)) == "mpgrad local was not measured"


def test_a_case_says_what_is_wrong_with_it():
    rows = [Contender(name, lambda: 0.015) for name in (ALONE, LOCAL)]
    case = Case("2 ms", rows, (), 2, fault=LOAD.fault)
    assert "took 15 ms" in measure(case, Effort(warm_up_rounds=0)).fault


# --------------------------------------------------------------------------- what is published


@pytest.fixture
def run():
    """One case of gil_branches whose loops are off, and one whose loops are right."""
    right, wrong = (
        result(the_loops_alone=32.0, mpgrad_local=32.0, torch_1_thread=31.0) for _ in range(2)
    )
    right.name, wrong.fault = "20 ms", "the loops alone took 15 ms"
    for number, one in enumerate((right, wrong)):
        one.targets, one.point = [Target(LOCAL, TORCH, at_least=9.0)], Point("small", number)
    machine = {"commit": "new", "processor": "one"}
    return Run(machine, "", False, results={"gil_branches": [right, wrong]})


def test_the_page_has_no_figures_of_a_wrong_load(run):
    text = document(run)
    table = text.partition("### gil_branches: 2 ms\n\n")[2].partition("\n")[0]
    assert table == "Not published: the loops alone took 15 ms."
    assert "- gil_branches, 2 ms: the loops alone took 15 ms." in text
    assert "| 20 ms | mpgrad local >= 9x" in text
    assert "| 2 ms | mpgrad local >= 9x" not in text
    assert "- gil_branches, 2 ms: mpgrad local >= 9x" not in text
    assert list(speed_up_lines(run.results["gil_branches"])[LOCAL]) == [0]


def test_the_figures_have_none_either_but_all_samples_keep_them(run):
    committed = as_json(run, has_samples=False)["workloads"]["gil_branches"]
    assert [case["case"] for case in committed] == ["20 ms"]
    everything = as_json(run)["workloads"]["gil_branches"]
    assert [case["fault"] for case in everything] == ["", "the loops alone took 15 ms"]
    assert {change.case for change in changes(as_json(run), run)} == {"gil_branches, 20 ms"}


def test_the_command_names_them_and_fails(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_run", lambda *_, **__: run)
    page = tmp_path / "page.md"
    assert cli.main(["gil_branches", "--write", str(page)]) == 3
    assert "not published: gil_branches, 2 ms: the loops alone took" in capsys.readouterr().out
    assert len(json.loads(page.with_suffix(".json").read_text())["workloads"]["gil_branches"]) == 1
    run.results["gil_branches"].pop()
    assert cli.main(["gil_branches"]) == 0
