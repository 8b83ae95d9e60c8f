"""``mpgrad run --nproc-per-node``: environment, lines, exit codes, signals, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpgrad.base.topology import share_of
from mpgrad.launch.cli import main
from tests.leftovers import Leftovers, descendants, left_since, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR OMP_NUM_THREADS"


def command(path: Path, source: str, *arguments: str) -> list[str]:
    (path / "script.py").write_text(source)
    return [sys.executable, "-m", "mpgrad", "run", *arguments, str(path / "script.py")]


def run(path: Path, source: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in NAMES.split()} | more
    return subprocess.run(
        command(path, source, *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        input="for rank 0",
    )


def test_each_rank_is_told_who_it_is_and_its_lines_carry_it(tmp_path: Path) -> None:
    source = f"""
import os, sys
print(*[os.environ[name] for name in {NAMES.split()}])
print(os.environ["MASTER_PORT"] > "0", os.path.basename(sys.argv[0]), repr(sys.stdin.read()))
sys.stderr.write("no newline")
"""
    done = run(tmp_path, source, "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] 0 0 2 2 0 127.0.0.1 1",
        "[rank 0] True script.py 'for rank 0'",
        "[rank 1] 1 1 2 2 0 127.0.0.1 1",
        "[rank 1] True script.py ''",
    ]
    assert sorted(done.stderr.splitlines()) == ["[rank 0] no newline", "[rank 1] no newline"]


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("sys.exit(rank and 7)", 7, "rank 1 (process "),
        ("rank and os.kill(os.getpid(), 9)", 137, "ended with signal SIGKILL"),
        ("rank and 1 / 0", 1, "[rank 1] ZeroDivisionError"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(
    tmp_path: Path, source: str, code: int, text: str
) -> None:
    before = "import os, sys\nrank = int(os.environ['RANK'])\n"
    done = run(tmp_path, before + source, "--nproc-per-node", "2")
    assert done.returncode == code
    assert text in done.stderr


SLEEPS = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
def end(number, frame):
    print("ended by", signal.Signals(number).name)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
pathlib.Path(__file__).with_name(os.environ["RANK"]).touch()
time.sleep(1000)
"""


@pytest.mark.parametrize("restarts", ["0", "3"])
def test_a_signal_is_passed_on_and_grandchildren_end(tmp_path: Path, restarts: str) -> None:
    before = Leftovers.now()
    arguments = ("--nproc-per-node", "2", "--max-restarts", restarts)
    launcher = subprocess.Popen(
        command(tmp_path, SLEEPS, *arguments), stdout=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"))
    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate()
    assert launcher.returncode == 5
    assert sorted(output.splitlines()) == [f"[rank {k}] ended by SIGTERM" for k in range(2)]
    assert not left_since(before)


def test_ranks_end_with_their_launcher(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        command(tmp_path, SLEEPS.replace("child =", "#"), "--nproc-per-node", "2"),
        stdout=subprocess.DEVNULL,
    )
    assert wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"))
    ranks = descendants(launcher.pid)
    assert len(ranks) == 2
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    source = """
import datetime, os
import mpgrad.distributed as dist
if os.environ["RANK"] != "1":
    dist.init_process_group(timeout=datetime.timedelta(seconds=1))
"""
    done = run(tmp_path, source, "--nproc-per-node", "3")
    assert done.returncode == 2
    assert "of 3 ranks these did not come: 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nnodes", "2"], "or --master-addr and --master-port"),
        (["--max-restarts", "1", "--pdb"], "--pdb is for one process"),
        (["--nproc-per-node", "1", "--node-rank", "1"], "--node-rank has to be 0 to 0"),
        (["--nproc-per-node", "1"], "cannot read 'no such file'"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "no such file"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--standalone"], ["--max-restarts", "1"], ["--node-rank", "0"]]
)
def test_what_asks_for_ranks_starts_one(tmp_path: Path, arguments: list[str]) -> None:
    source = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])"
    done = run(tmp_path, source, *arguments)
    assert (done.returncode, done.stdout) == (0, "[rank 0] 0 1\n"), done.stderr


def test_a_rank_that_fails_is_started_again_and_told_how_often(tmp_path: Path) -> None:
    source = """
import os, sys
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(count, os.environ["TORCHELASTIC_MAX_RESTARTS"], os.environ["TORCHELASTIC_RUN_ID"])
sys.exit(count != "2")
"""
    logs = tmp_path / "logs"
    arguments = ("--nproc-per-node", "1", "--max-restarts", "2", "--log-dir", str(logs))
    done = run(tmp_path, source, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[rank 0] {count} 2 none" for count in range(3)]
    assert "ended with exit code 1; it is started again (1 of 2 restarts)" in done.stderr
    assert (logs / "rank0.log").read_text().splitlines() == [f"{k} 2 none" for k in range(3)]


def test_ranks_are_bound_to_their_shares_and_what_they_print_is_kept(tmp_path: Path) -> None:
    source = "import os; print('cpus', *sorted(os.sched_getaffinity(0)))"
    logs = tmp_path / "logs"
    done = run(tmp_path, source, "--nproc-per-node", "2", "--pin", "cores", "--log-dir", str(logs))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        line = " ".join(["cpus", *map(str, share_of(rank, 2))])
        assert f"[rank {rank}] {line}" in done.stdout.splitlines()
        assert (logs / f"rank{rank}.log").read_text() == line + "\n"
