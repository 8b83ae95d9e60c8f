"""The program of docs/torch.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.process, pytest.mark.torch]

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_whole_program_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (whole,) = [block for block in blocks if "optimizer" in block]
    program = tmp_path / "program.py"
    program.write_text(whole + "print(net[0].weight.grad is not None)\n")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr
