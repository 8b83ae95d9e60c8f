"""The fuzz of branches passes where all is well, and fails where something is wrong."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from stress import branch_runs, branches
from stress.__main__ import main

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("library", ["mpgrad", pytest.param("torch", marks=needs_torch)])
def test_branches_passes(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--programs", "30", "--library", library, "--seed", "7"]
    assert main(["branches", *words]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith(f"branches: PASSED: 30 programs of {library}, ")
    assert " 0 as the plain loop" not in verdict
    assert "; 0 differences; " in verdict


@pytest.mark.process
@pytest.mark.slow
def test_branches_passes_while_workers_die(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--programs", "60", "--library", "mpgrad", "--kills", "3", "--seed", "7"]
    assert main(["branches", *words]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert "; 0 workers killed; " not in verdict


TENSOR = {"tensor": ["float64", True, False], "is": [1.0], "shape": [1]}
WELL = ["end", "well", ""]


def judged(local: list[Any], there: list[Any], plain: list[Any]) -> str:
    said = {"plain": plain, "local": local, "1": there, "2": there, "4": there}
    judge = branches.Judge({mode: {"said": one} for mode, one in said.items()}, False)
    return judge.difference() or judge.kind


def error(name: str) -> list[Any]:
    return [["end", name, "f of item 0"]]


def value(*elements: float, needs: bool = True, label: str = "o0") -> list[Any]:
    form = {**TENSOR, "tensor": ["float64", needs, False], "is": [*elements]}
    return [[label, form], WELL, ["printed", []]]


@pytest.mark.parametrize(
    ("local", "there", "plain", "words"),
    [
        (value(1.0), value(1.0), value(1.0), "equal"),
        (value(1.0), value(1.0), value(1.0 + 1e-15), "equal"),
        (value(1.0), value(1.0 + 1e-15), value(1.0), "local and 1: o0"),
        (value(0.0), value(-0.0), value(0.0), "local and 1: o0"),
        (value(1.0), value(1.0), value(1.1), "plain and local: o0"),
        (value(1.0), value(1.0, needs=False), value(1.0), "local and 1: o0"),
        (error("TypeError"), error("TypeError"), value(1.0), "refused"),
        (error("TypeError"), value(1.0), value(1.0), "local and 1"),
        (error("TypeError"), error("ValueError"), value(1.0), "local and 1: end"),
        (error("ValueError"), error("ValueError"), error("ValueError"), "failed"),
        (value(1.0), value(1.0), error("ValueError"), "plain and local"),
    ],
)
def test_the_judge(local: list[Any], there: list[Any], plain: list[Any], words: str) -> None:
    assert judged(local, there, plain).startswith(words)


def test_a_program_without_a_result_is_a_difference() -> None:
    results = dict.fromkeys(branches.MODES)
    assert branches.Judge(results, False).difference() == "no result of plain"


FAULTS = [
    "a_buffer_is_written_twice",
    "a_sum_in_another_order",
    "an_old_branch",
    "another_seed_after_eviction",
    "no_digest_is_compared",
    "no_seed_at_all",
]


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_branches_finds_a_planted_fault(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPGRAD_TEST_HOOK", f"tests.stress.planted_in_workers:{fault}")
    words = ["--programs", "120", "--library", "mpgrad", "--seed", "8"]
    assert main(["branches", *words]) == 1
    said = capsys.readouterr().out
    assert "program " in said  # it names one, and shows the first
    assert "def run(say):" in said
    assert "no result" not in said  # the interpreters have lived


@pytest.mark.parametrize(("library", "words"), [("torch", "failed"), ("mpgrad", "local and 1")])
def test_gradients_after_an_error_of_torch(library: str, words: str) -> None:
    before, after = (error("ValueError") + value(one, label="grads")[:1] for one in (0.0, 1.0))
    results = {"plain": before, "local": before, "1": after}
    said = {mode: {"said": one} for mode, one in results.items()}
    judge = branches.Judge(said, False, library=library)
    assert (judge.difference() or judge.kind).startswith(words)


def test_results_stand_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    print("what a thread prints late", end="")
    branch_runs._tell('{"number": 1}')
    assert '{"number": 1}' in capsys.readouterr().out.splitlines()
