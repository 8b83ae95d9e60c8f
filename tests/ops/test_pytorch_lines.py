"""Every line of ``pytorch_lines.txt`` gives here what it gives in PyTorch."""

from __future__ import annotations

import pytest

import mpgrad as mg
from tests.ops import pytorch_lines
from tests.torch_outcomes import Of


@pytest.mark.parametrize("line", pytorch_lines.lines())
def test_it_does_what_pytorch_does(line: str, of_torch: Of) -> None:
    here = pytorch_lines.outcome(mg, line)
    for oracle, there in of_torch(lambda torch: pytorch_lines.outcome(torch, line)):
        assert pytorch_lines.agree(here, there), f"{line}\nhere: {here}\n{oracle}: {there}"
