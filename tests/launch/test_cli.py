"""The command line itself: what it accepts, refuses and hands on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad
from mpgrad.launch import cli, script
from tests.python_path import path_to


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"mpgrad {mpgrad.__version__}\n"


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: mpgrad")
    assert "doctor" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "required: script"),
        (["run", "--cpu-workers", "0", "x.py"], "'0': expected a whole number of at least 1"),
        (["run", "--gpus", "first", "x.py"], "'first': expected auto, all, none"),
    ],
)
def test_misuse_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert said in capsys.readouterr().err


def test_a_missing_script_is_named_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["run", str(tmp_path / "absent.py")]) == 2
    assert "absent.py': No such file or directory" in capsys.readouterr().err


def test_run_hands_on_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def launch(path: str, arguments: list[str], **options: object) -> int:
        given.update(path=path, arguments=arguments, **options)
        return 5

    monkeypatch.setattr(script, "launch", launch)
    command = ["run", "--cpu-workers", "2", "--gpus", "0,1", "train.py", "--help", "--gpus", "x"]
    assert cli.main(command) == 5
    assert given.pop("debugger") is False
    assert given == {
        "path": "train.py",
        "arguments": ["--help", "--gpus", "x"],
        "cpu_workers": 2,
        "gpus": (0, 1),
        "profile": None,
    }


# A Function defined in the script, no `if __name__ == "__main__"`: the newcomer's first program.
SCRIPT = """
import os, sys
import mpgrad as mg

class Double(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

x = mg.tensor([1.0, 2.0], requires_grad=True)
Double.apply(x).sum().backward()
print(x.grad.numpy().tolist(), mg.current_engine().mode, sys.argv[1:])
sys.exit(3)
"""


@pytest.mark.process
@pytest.mark.slow
def test_run_through_worker_processes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "run", "--cpu-workers", "1", str(path), "--fast"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path_to(Path(mpgrad.__file__).parents[1])},
    )
    assert done.stdout == "[2.0, 2.0] process ['--fast']\n", done.stderr
    assert done.returncode == 3
