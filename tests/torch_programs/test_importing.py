"""Who imports torch: `import mpgrad.torch`, and nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def output_of(program: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *(command or ("-c",)), program],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_mpgrad_does_not_import_torch() -> None:
    program = """
import sys, mpgrad as mg
with mg.Engine("local"):
    (out,) = mg.parallel_map(lambda x: x * 2, [mg.ones(2, requires_grad=True)])
    out.sum().backward()
print("torch" in sys.modules)
"""
    assert output_of(program) == "False\n"


def test_without_torch_the_error_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['torch'] = None\nimport mpgrad.torch"
    assert "pip install 'mpgrad[torch]'" in output_of(program)


def test_under_compat_the_error_says_what_to_use(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nimport mpgrad.torch\n")
    found = output_of(str(program), "-m", "mpgrad", "compat", "run")
    assert "ImportError" in found
    assert "use mpgrad.parallel_map" in found
