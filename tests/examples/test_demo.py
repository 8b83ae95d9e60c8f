"""The demo: its parts, and the whole of it with a small size."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from examples.demo import branches, digits
from examples.demo.large_letters import in_large_letters


def test_without_scikit_learn_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert demo.main() == 1
    said = capsys.readouterr().out
    assert said == "The demo needs scikit-learn: pip install scikit-learn\n"


@pytest.mark.slow
def test_the_network_learns() -> None:
    pytest.importorskip("sklearn")
    losses: list[float] = []
    training = digits.train("local", digits.load(), losses.append, epochs=3)
    assert training.steps == len(losses) == digits.steps(digits.load(), epochs=3)
    assert training.accuracy > 0.9
    assert training.tasks == {}


@pytest.mark.process
@pytest.mark.slow
def test_the_whole_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(demo, "BRANCH_MS", 0.5)
    assert demo.main() == 0
    said = capsys.readouterr().out
    assert said.count("identical bit for bit") == 2
    assert said.index("16 branches") < said.index("handwritten digits") < said.index("Now try")
    assert "mpgrad auto" in said
    (page,) = re.findall(r"xdg-open (\S+)", said)
    assert "TimesPiBackward" in Path(page).read_text()
    shutil.rmtree(Path(page).parent)
    assert "\x1b" not in said  # no terminal, no colours
    accuracies = [word for word in said.split() if word.endswith("%")]
    assert len(accuracies) == 2
    assert all(float(word[:-1]) >= 97 for word in accuracies)


def test_slow_branches_have_the_gradient_they_claim() -> None:
    sixteen = branches.branches(terms=1000)
    assert sixteen.step_seconds() > 0
    for leaf in sixteen.leaves:
        assert leaf.grad.tolist() == pytest.approx([3.14159] * branches.ELEMENTS, abs=2e-3)


def test_calibrate_scales_with_the_time() -> None:
    assert branches.calibrate(1e-3) > 0
    assert branches.calibrate(0.0) == 1


def test_large_letters() -> None:
    lines = in_large_letters("1.9x", ink="@").splitlines()
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1
    assert lines[4] == " @@@   @@  @@@@@  @   @"
    with pytest.raises(KeyError):
        in_large_letters("y")
