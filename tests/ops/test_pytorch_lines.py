"""Every line of ``pytorch_lines.txt`` gives here what it gives in PyTorch."""

from __future__ import annotations

import json

import pytest

import mpgrad as mg
from tests.ops import pytorch_outcomes as outcomes

KNOWN = json.loads(outcomes.OUTCOMES.read_text())


@pytest.mark.parametrize("line", outcomes.lines())
def test_it_does_what_pytorch_does(line: str) -> None:
    here = outcomes.outcome(mg, line)
    assert outcomes.agree(here, KNOWN[line]), f"{line}\nhere    {here}\nPyTorch {KNOWN[line]}"


def test_the_outcomes_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    assert list(KNOWN) == outcomes.lines()
    for line, known in KNOWN.items():
        assert outcomes.agree(outcomes.outcome(torch, line), known), line
