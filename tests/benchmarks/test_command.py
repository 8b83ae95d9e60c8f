"""The command measures, writes both files, and leaves nothing behind; no figure is judged."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import cli
from benchmarks.cli import main
from benchmarks.comparison import changes
from benchmarks.document import document
from benchmarks.report import Run, as_json
from benchmarks.rounds import CaseResult, Point
from benchmarks.runners import find_torch
from tests.leftovers import descendants, wait_until

MPGRAD, TORCH = {"mpgrad process", "mpgrad local"}, "torch 1 thread"


class QuickRun(NamedTuple):
    """What a quick run of ``overhead`` has left."""

    figures: Path
    page: Path
    printed: str
    processes: frozenset[int]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    before = descendants(os.getpid())
    directory = tmp_path_factory.mktemp("quick")
    figures, page = directory / "figures.json", directory / "page.md"
    arguments = ["overhead", "--quick", "--rounds", "1"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*arguments, "--json", str(figures), "--write", str(page)]) == 0
    wait_until(lambda: descendants(os.getpid()) <= before)
    left = descendants(os.getpid()) - before
    return QuickRun(figures, page, printed.getvalue(), left)


@pytest.mark.slow
@pytest.mark.process
def test_a_quick_run_of_one_workload(quick_run):
    run = json.loads(quick_run.figures.read_text())
    assert list(run["workloads"]) == ["overhead"]
    assert run["machine"]["processor"]
    case = run["workloads"]["overhead"][0]
    assert set(case["remarks"]) == MPGRAD | {TORCH, "HIPS autograd"}
    assert set(case["samples"]) >= MPGRAD
    assert all(len(samples) == 1 and samples[0] > 0 for samples in case["samples"].values())
    assert [target["wanted"] for target in case["targets"]]

    page = quick_run.page
    text = page.read_text()
    assert "A quick run" in text
    assert "Before and after" not in text
    assert "## overhead" in text
    assert "| mpgrad process |" in text
    assert "## Not reached yet" in text
    assert "- gil_branches: left out of this run." in text
    assert "mpgrad process" in quick_run.printed
    assert quick_run.processes == set()

    committed = json.loads(page.with_suffix(".json").read_text())
    assert "samples" not in committed["workloads"]["overhead"][0]
    has_plots = importlib.util.find_spec("matplotlib") is not None
    assert page.with_name("page-time-per-node.png").exists() == has_plots
    assert ("![Time per node against graph size](page-time-per-node.png)" in text) == has_plots


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.torch
def test_a_quick_run_gives_the_speed_beside_torch(quick_run):
    pytest.importorskip("torch")
    case = json.loads(quick_run.figures.read_text())["workloads"]["overhead"][0]
    assert case["samples"][TORCH][0] > 0
    assert set(case["speed_up"]) == {TORCH}
    assert set(case["speed_up"][TORCH]) >= MPGRAD


@pytest.mark.slow
@pytest.mark.process
def test_a_quick_run_without_torch_gives_no_speed_beside_it(quick_run):
    if find_torch():
        pytest.skip("PyTorch is installed")
    case = json.loads(quick_run.figures.read_text())["workloads"]["overhead"][0]
    assert case["remarks"][TORCH] == "not installed"
    assert case["speed_up"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["gil"], "'gil' is none of gil_branches, "), (["--rounds", "0"], "at least 1")],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def small_run(samples, **remarks):
    """A run of one case of ``overhead``."""
    remarks = {**dict.fromkeys(samples, ""), **remarks}
    result = CaseResult("small", "ms", ["torch"], [], samples, remarks, Point("chain", 100))
    machine = {"commit": "new", "processor": "one"}
    return Run(machine, "", False, results={"overhead": [result]})


def test_a_page_compares_with_an_earlier_run():
    """By the speed relative to a peer, which milliseconds of another run do not disturb."""
    run = small_run({"torch": [4.0, 4.0], "mpgrad local": [2.0, 2.0]})
    earlier = json.loads(json.dumps(as_json(run)))
    earlier["machine"]["commit"] = "old"
    earlier["workloads"]["overhead"][0]["speed_up"]["torch"]["mpgrad local"][0] = 2.5
    (change,) = changes(earlier, run)
    assert change == ("overhead, small", "mpgrad local", "torch", 2.5, 2.0)
    assert change.factor == 0.8


@pytest.mark.parametrize(
    ("now", "code", "said"),
    [
        ({"torch": [4.0], "mpgrad local": [2.4]}, 0, "0 of 1 have lost"),
        ({"torch": [4.0], "mpgrad local": [2.6]}, 1, "1 of 1 have lost"),
        ({"torch": [8.0], "mpgrad local": [5.2]}, 1, "1 of 1 have lost"),
        ({"torch": [4.0]}, 1, "1 of 1 have lost"),
        ({"mpgrad local": [2.0]}, 2, "Nothing to compare"),
    ],
    ids=["within a fifth", "slower", "slower on a slower day", "no figure any more", "no peer"],
)
def test_a_regression_is_an_exit_code(now, code, said, tmp_path, monkeypatch, capsys):
    before = tmp_path / "before.json"
    committed = small_run({"torch": [4.0], "mpgrad local": [2.0]})
    before.write_text(json.dumps(as_json(committed, has_samples=False)))
    run = small_run(now, **{"mpgrad local": "left out"})
    monkeypatch.setattr(cli, "_run", lambda *_, **__: run)
    assert main(["overhead", "--compare", "--against", str(before)]) == code
    assert said in capsys.readouterr().out


def test_figures_that_are_not_there_are_found_out_before_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_run", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(SystemExit, match="cannot read"):
        main(["--compare", "--against", str(tmp_path / "none.json")])


def test_the_page_names_peers_that_are_not_there():
    text = document(small_run({"torch": [4.0], "mpgrad local": [2.0]}, jax="not installed"))
    assert "- jax: not installed." in text
