"""The command line itself: what it accepts, refuses and hands on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad
from mpgrad.base.topology import bindings
from mpgrad.compat import script
from mpgrad.engine.workers_table import table_of_workers
from mpgrad.launch import cli
from tests.leftovers import is_alive, wait_until
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
        (["run", "--serve"], "an engine serves one program"),
        (["run", "--pin", "x.py"], "--pin: invalid choice: 'x.py' (choose from"),
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
    assert cli.main(["run", "-m", "absent.module"]) == 2
    assert "there is no module 'absent.module' to run" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert cli.main(["run", "--log-dir", str(tmp_path / "file" / "logs"), __file__]) == 2
    assert "logs': Not a directory" in capsys.readouterr().err


def test_run_hands_on_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def launch(path: str, arguments: list[str], **options: object) -> int:
        given.update(path=path, arguments=arguments, **options)
        return 5

    monkeypatch.setattr(script, "launch", launch)
    ours = ["run", "--cpu-workers", "2", "--gpus", "0,1", "--pin", "cores"]
    assert cli.main([*ours, "train.py", "--help", "--gpus", "x"]) == 5
    assert given.pop("debugger") is False
    assert given == {
        "path": "train.py",
        "arguments": ["--help", "--gpus", "x"],
        "cpu_workers": 2,
        "gpus": (0, 1),
        "profile": None,
        "is_module": False,
        "pin": "cores",
        "log_dir": None,
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


MODULE = """
import os, sys
import mpgrad as mg

print(__name__, __package__, sys.argv[1:], os.path.isdir("logs"), mg.current_engine().mode)
raise ValueError("here")
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_module_runs_beside_bound_workers_and_a_directory_for_logs(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__main__.py").write_text(MODULE)
    options = ["--cpu-workers", "2", "--gpus", "none", "--pin", "cores", "--log-dir", "logs"]
    done = subprocess.run(
        [sys.executable, "-m", "mpgrad", "run", *options, "-m", "training", "--fast"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path_to(Path(mpgrad.__file__).parents[1])},
    )
    assert done.stdout == "__main__ training ['--fast'] True process\n", done.stderr
    assert done.returncode == 1
    table = (tmp_path / "logs" / "workers.txt").read_text()
    assert done.stderr.startswith(table)
    first, *rows = [line.split() for line in table.splitlines()[1:]]
    assert first == ["worker", "pid", "processors", "NUMA", "node", "device"]
    bound = bindings("cores", 2)
    assert [row[2] for row in rows] == [",".join(map(str, cpus)) for cpus in bound]
    trace = done.stderr[len(table) :].splitlines()
    assert trace[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/training/__main__.py", line 6, in <module>',
    ]


#: Seconds to wait for an engine to start beside many other programs.
START_PATIENCE_S = 300.0

WAITS = """
import pathlib, sys, threading
import mpgrad as mg
pathlib.Path(sys.argv[1]).write_text(" ".join(map(str, mg.current_engine().worker_pids())))
try:
    threading.Event().wait()
finally:
    print("the end", flush=True)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "the end\n"), (signal.SIGTERM, -15, ""), (signal.SIGKILL, -9, "")],
)
def test_a_signal_ends_the_script_and_every_worker(
    tmp_path: Path, number: int, code: int, said: str
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    begun = tmp_path / "pids"
    command = ["run", "--cpu-workers", "2", "--gpus", "none", str(tmp_path / "waits.py")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mpgrad", *command, str(begun)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path_to(Path(mpgrad.__file__).parents[1])},
    )
    assert wait_until(
        lambda: begun.exists() and len(begun.read_text().split()) == 2, START_PATIENCE_S
    )
    workers = [int(pid) for pid in begun.read_text().split()]
    process.send_signal(number)
    printed, _ = process.communicate()
    assert (process.returncode, printed) == (code, said)
    assert wait_until(lambda: not any(is_alive(pid) for pid in workers))


def test_the_unit_and_the_container_file_give_a_command_line_that_is_understood() -> None:
    folder = Path(__file__).parents[2] / "examples" / "deployment"
    (started,) = re.findall(
        r"^ExecStart=\S+/mpgrad (.*)$", (folder / "mpgrad-train.service").read_text(), re.M
    )
    options = cli.command_line().parse_args(started.split())
    assert (options.pin, options.script, options.arguments) == (
        "cores", "train.py", ["--epochs", "100"],
    )  # fmt: skip
    text = (folder / "Containerfile").read_text()
    entry, arguments = (
        json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.M)
    )
    options = cli.command_line().parse_args([*entry[1:], *arguments])
    assert (options.log_dir, options.script, options.arguments) == ("/logs", "train.py", ["10"])


def test_shells_can_complete_it() -> None:
    shtab = pytest.importorskip("shtab")
    for shell in ("bash", "zsh"):
        text = shtab.complete(cli.command_line(), shell=shell)
        assert "--cpu-workers" in text
        assert "doctor" in text
        assert "--rdzv-endpoint" in text


@pytest.mark.process
def test_the_table_says_that_there_is_no_gpu_where_all_are_asked_for() -> None:
    with mpgrad.Engine("process", cpu_workers=1) as engine:
        assert "GPU" not in table_of_workers(engine, 0.1)
        assert table_of_workers(engine, 0.1, asks_for_gpus=True).endswith("\n  no GPU was found")
