"""The workload of both passes computes what it says, with every contender; nothing is timed."""

from __future__ import annotations

import psutil
import pytest

from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.rounds import Effort, measure
from benchmarks.workloads import both_passes, torch_branches


@pytest.mark.slow
@pytest.mark.process
def test_all_contenders_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    grain = both_passes._GRAINS[-1]._replace(milliseconds=0.02)
    monkeypatch.setattr(
        both_passes, "_GRAINS", (grain, grain._replace(name="large", elements=9999))
    )
    monkeypatch.setattr(both_passes, "_SHAPE", Perceptrons(2, 2, 8))
    monkeypatch.setattr(both_passes, "_SHORT_REPEATS", 2)
    monkeypatch.setattr(both_passes, "start_auto", lambda *_: None)
    monkeypatch.setattr(torch_branches, "find_torch", lambda: None)
    before = set(psutil.Process().children())
    found = {case.name: measure(case, Effort(1, 1)) for case in both_passes.cases(True)}
    assert list(found) == [
        "2 + 2 ms", "large", "a call of nothing", "a map of 16 nothings", "numpy_branches"
    ]  # fmt: skip
    rows = {"mpgrad process", "mpgrad auto", both_passes.LOOP, both_passes.LIMIT}
    for name in ("2 + 2 ms", "large", "numpy_branches"):
        assert rows <= set(found[name].samples)
    for name in ("2 + 2 ms", "a call of nothing", "a map of 16 nothings"):
        assert {"mpgrad process", "ProcessPoolExecutor"} <= set(found[name].samples)
    assert not [child for child in psutil.Process().children() if child not in before]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.torch
def test_all_contenders_of_a_torch_program_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    grain = torch_branches._GRAINS[-1]._replace(milliseconds=0.02)
    monkeypatch.setattr(torch_branches, "_GRAINS", (grain,))
    monkeypatch.setattr(torch_branches, "_UNCHANGED_MS", 0.02)
    monkeypatch.setattr(torch_branches, "_WIDTH", 8)
    monkeypatch.setattr(torch_branches, "_SHORT_REPEATS", 2)
    before = set(psutil.Process().children())
    found = {case.name: measure(case, Effort(1, 1)) for case in torch_branches.cases(True)}
    ways = {torch_branches.MAP, torch_branches.FORK, torch_branches.JIT, torch_branches.TORCH_2}
    for name in ("torch: 1 + 1 ms", "torch: 16 perceptrons"):
        assert ways <= set(found[name].samples)
    assert {"ProcessPoolExecutor", torch_branches.LIMIT} <= set(found["torch: 1 + 1 ms"].samples)
    functions = found["torch: backward of 16 Functions"].samples
    assert {torch_branches.PARALLELIZE, torch_branches.TORCH} <= set(functions)
    assert found["torch: a fork of nothing"].samples
    assert not [child for child in psutil.Process().children() if child not in before]
