"""Where the user's program stands must not matter to the processes that mpgrad starts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import mpgrad as mg

x = mg.tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), mg.current_engine().statistics().backwards_process)
"""


def test_files_in_the_working_directory_shadow_nothing(
    run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A script does not import from its working directory, and neither may its workers."""
    directory = tmp_path / "data"
    directory.mkdir()
    for name in ("mpgrad", "zmq", "numpy", "struct"):
        (directory / f"{name}.py").write_text('raise SystemExit("imported by mistake")')
    done = run_script(PROGRAM, cwd=directory)
    assert done.stdout == "[2.0, 4.0] 1\n", done.stderr
