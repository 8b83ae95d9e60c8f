"""Every line of ``pytorch_lines.txt`` gives here what it gives in PyTorch."""

from __future__ import annotations

import pytest

import mpgrad as mg
from stress.operator_calls import BARE
from tests.ops import pytorch_lines
from tests.torch_outcomes import Of


@pytest.mark.parametrize("line", pytorch_lines.lines())
def test_it_does_what_pytorch_does(line: str, of_torch: Of) -> None:
    here = pytorch_lines.outcome(mg, line)
    for oracle, there in of_torch(lambda torch: pytorch_lines.outcome(torch, line)):
        assert pytorch_lines.agree(here, there), f"{line}\nhere: {here}\n{oracle}: {there}"


def test_no_message_is_numpys() -> None:
    found = [(line, pytorch_lines.result(mg, line)) for line in pytorch_lines.lines()]
    messages = [(line, str(error)) for line, error in found if isinstance(error, Exception)]
    assert messages
    assert not [message for message in messages if any(text in message[1] for text in BARE)]
