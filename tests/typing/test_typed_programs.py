"""README's program passes the strictest type checkers; ``typed_functions`` is mypy's every time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "typing" / "typed_functions.py"
#: A newcomer's programs.
EXAMPLES = [
    ROOT / "examples" / f"{name}.py"
    for name in ("mixture_of_experts", "render_tiles", "train_gan", "lazy_reader")
]


@pytest.fixture
def readmes(tmp_path: Path) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "readme.py"
    path.write_text(code)
    return path


def checked(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_mypy_passes_them(readmes: Path) -> None:
    pytest.importorskip("mypy")
    done = checked(sys.executable, "-m", "mypy", "--strict", readmes, TYPED, *EXAMPLES)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_pyright_passes_them(readmes: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    done = checked(pyright, "--pythonpath", sys.executable, readmes, TYPED, *EXAMPLES)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_mypy_refuses_what_is_wrong(tmp_path: Path) -> None:
    """So that the tests above can fail: types are seen, and are not all Any."""
    pytest.importorskip("mypy")
    path = tmp_path / "wrong.py"
    path.write_text(
        "import mpgrad as mg\n\n"
        "@mg.no_grad()\ndef double(x: mg.Tensor) -> mg.Tensor:\n    return x * 2\n\n"
        "double(3)\n"
    )
    done = checked(sys.executable, "-m", "mypy", "--strict", path)
    assert 'incompatible type "int"' in done.stdout, done.stdout
