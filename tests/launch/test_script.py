"""``mpgrad run`` ends as ``python script.py`` would, without a trace of us.

Here the script runs without an engine (``script.run``); test_cli.py goes through the command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = """
import sys
from mpgrad.compat.script import run

sys.exit(run(sys.argv[1], sys.argv[2:]))
"""


def run_script(directory: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = directory / "script.py"
    path.write_text(source)
    return subprocess.run(
        [sys.executable, "-c", RUNNER, str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit(-1)", 255),
        ("raise SystemExit(True)", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 130),
        ("this is no Python", 1),
    ],
)
def test_exit_codes(tmp_path: Path, source: str, code: int) -> None:
    assert run_script(tmp_path, source).returncode == code


def test_a_text_given_to_exit_goes_to_stderr(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import sys; sys.exit('no data')")
    assert (done.returncode, done.stderr) == (1, "no data\n")


def test_the_traceback_is_the_script_s_own(tmp_path: Path) -> None:
    source = "def f():\n    raise ValueError('wrong')\n\nf()\n"
    path = tmp_path / "script.py"
    ours = run_script(tmp_path, source).stderr
    plain = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False
    ).stderr
    assert ours == plain
    assert "ValueError: wrong" in ours


def test_the_script_sees_itself_as_main(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'\n")
    source = (
        "import sys, neighbour\n"
        "main = sys.modules['__main__']\n"
        "print(__name__, neighbour.NAME, sys.argv[1:], main.__file__ == __file__)"
    )
    done = run_script(tmp_path, source, "--epochs", "3")
    assert done.stdout == "__main__ neighbour ['--epochs', '3'] True\n", done.stderr
