"""The command measures, writes both files, and leaves nothing behind; no figure is judged."""

from __future__ import annotations

import json

import psutil
import pytest

from benchmarks.cli import main
from benchmarks.comparison import changes
from benchmarks.report import Run, as_json
from benchmarks.rounds import CaseResult
from benchmarks.runners import find_torch


@pytest.mark.slow
@pytest.mark.process
def test_a_quick_run_of_one_workload(tmp_path, capsys):
    before = set(psutil.Process().children(recursive=True))
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    arguments = ["overhead", "--quick", "--rounds", "1"]
    assert main([*arguments, "--json", str(figures), "--write", str(page)]) == 0

    run = json.loads(figures.read_text())
    assert list(run["workloads"]) == ["overhead"]
    assert run["machine"]["processor"]
    case = run["workloads"]["overhead"][0]
    mpgrad, torch = {"mpgrad process", "mpgrad local"}, {"torch 1 thread"}
    assert set(case["remarks"]) == mpgrad | torch | {"HIPS autograd"}
    assert set(case["samples"]) >= (mpgrad | torch if find_torch() else mpgrad)
    assert all(len(samples) == 1 and samples[0] > 0 for samples in case["samples"].values())
    assert set(case["speed_up"]) == torch
    assert [target["wanted"] for target in case["targets"]]

    text = page.read_text()
    assert "A quick run" in text
    assert "Before and after" not in text
    assert "## overhead" in text
    assert "| mpgrad process |" in text
    assert "## Not reached yet" in text
    assert "- gil_branches: left out of this run." in text
    assert "mpgrad process" in capsys.readouterr().out
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["gil"], "'gil' is none of gil_branches, "), (["--rounds", "0"], "at least 1")],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_a_page_compares_with_an_earlier_run():
    """By the speed relative to a peer, which milliseconds of another run do not disturb."""
    samples = {"torch": [4.0, 4.0], "mpgrad local": [2.0, 2.0]}
    result = CaseResult("small", "ms", ["torch"], [], samples)
    run = Run({"commit": "new"}, "", False, results={"overhead": [result]})
    earlier = json.loads(json.dumps(as_json(run)))
    earlier["machine"]["commit"] = "old"
    earlier["workloads"]["overhead"][0]["speed_up"]["torch"]["mpgrad local"][0] = 2.5
    (change,) = changes(earlier, run)
    assert change == ("overhead, small", "mpgrad local", "torch", 2.5, 2.0)
    assert change.factor == 0.8
