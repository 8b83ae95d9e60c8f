"""``mpgrad run --rdzv-endpoint``: launchers of one machine, each in the place of a host."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpgrad.launch.cli import main
from tests.leftovers import Leftovers, left_since, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

SHOWS = """
import os
import mpgrad as mg
import mpgrad.distributed as dist

dist.init_process_group()
total = mg.ones(1) * dist.get_rank()
dist.all_reduce(total)
ranks = "RANK LOCAL_RANK GROUP_RANK"
sizes = "WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE TORCHELASTIC_RUN_ID"
print(*[os.environ[name] for name in f"{ranks} {sizes}".split()], int(total))
"""

HANGS_S = 120.0


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An address with a port that the system gives to nobody else."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


class Launchers:
    """As many as there are hosts; none outlives the test."""

    def __init__(self, directory: Path, endpoint: str, source: str) -> None:
        (directory / "script.py").write_text(source)
        (directory / "key").write_bytes(secrets.token_bytes(32))
        (directory / "key").chmod(0o600)
        self._directory, self._endpoint = directory, endpoint
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, key: str = "key") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mpgrad", "run", "--rdzv-endpoint", self._endpoint]
        process = subprocess.Popen(
            [*command, *arguments, str(self._directory / "script.py")],
            env={**os.environ, "MPGRAD_GROUP_KEY_FILE": str(self._directory / key)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def outputs(self) -> list[tuple[int, str, str]]:
        """Exit code, lines and errors of each."""
        said = [process.communicate(timeout=HANGS_S) for process in self.processes]
        codes = [process.returncode for process in self.processes]
        return [(code, *texts) for code, texts in zip(codes, said, strict=True)]


@pytest.fixture
def launchers(tmp_path: Path, endpoint: str) -> Iterator[Launchers]:
    before = Leftovers.now()
    made = Launchers(tmp_path, endpoint, SHOWS)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.communicate()
    assert not left_since(before)


def test_hosts_with_the_same_command_line_share_the_ranks(launchers: Launchers) -> None:
    for _ in range(2):
        launchers.start("--nnodes=2", "--nproc_per_node=2", "--rdzv_id=job", "--rdzv_backend=c10d")
    found = launchers.outputs()
    assert [code for code, _, _ in found] == [0, 0], found
    lines = sorted(line for _, text, _ in found for line in text.splitlines())
    assert lines == [f"[rank {k}] {k} {k % 2} {k // 2} 4 2 2 job 6" for k in range(4)]
    said = sorted(errors for _, _, errors in found)
    assert said == [
        f"mpgrad run: this is host {k}, and runs ranks: {2 * k}, {2 * k + 1}\n" for k in range(2)
    ]


def test_a_node_rank_is_kept(launchers: Launchers) -> None:
    arguments = ("--nnodes", "3", "--nproc-per-node", "1")
    launchers.start(*arguments, "--node-rank", "2")
    launchers.start(*arguments, "--node-rank", "1")
    launchers.start(*arguments)
    found = launchers.outputs()
    assert [text for _, text, _ in found] == [
        f"[rank {k}] {k} 0 {k} 3 1 3 none 3\n" for k in (2, 1, 0)
    ], found


def test_a_static_endpoint_is_the_address_of_rank_0(launchers: Launchers) -> None:
    for k in range(2):
        arguments = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "static")
        launchers.start(*arguments, "--node-rank", str(k))
    found = launchers.outputs()
    assert [text for _, text, _ in found] == [
        f"[rank {k}] {k} 0 {k} 2 1 2 none 1\n" for k in range(2)
    ], found


def test_fewer_hosts_run_all_ranks(launchers: Launchers) -> None:
    arguments = ("--nnodes", "2:3", "--nproc-per-node", "1", "--rdzv-conf", "last_call_timeout=0.1")
    for _ in range(2):
        launchers.start(*arguments)
    found = launchers.outputs()
    lines = sorted(line for _, text, _ in found for line in text.splitlines())
    assert lines == [
        "[rank 0] 0 0 0 3 1 2 none 3",
        "[rank 1] 1 0 1 3 2 2 none 3",
        "[rank 2] 2 1 1 3 2 2 none 3",
    ], found


def test_a_host_that_does_not_come_is_named(launchers: Launchers) -> None:
    arguments = ("--nnodes", "3", "--nproc-per-node", "1", "--rdzv-conf", "join_timeout=6")
    launchers.start(*arguments, "--node-rank", "0")
    launchers.start(*arguments, "--node-rank", "2")
    (first, _, said), (other, _, heard) = launchers.outputs()
    assert (first, other) == (2, 2), (said, heard)
    assert "mpgrad run: RendezvousTimeout: of 3 hosts these did not come: 1; there is" in said
    assert "RendezvousTimeout: host 0 refused this host: of 3 hosts these did not" in heard


def test_host_0_that_does_not_come_is_named(launchers: Launchers) -> None:
    arguments = ("--nnodes", "2", "--nproc-per-node", "1", "--node-rank", "1")
    launchers.start(*arguments, "--rdzv-conf", "join_timeout=0.1")
    ((code, _, said),) = launchers.outputs()
    assert code == 2
    assert "RendezvousTimeout: host 0 did not answer at tcp://127.0.0.1:" in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--rdzv-id", "mine"), "has --rdzv-id none, but host 0 has --rdzv-id mine"),
        (("--nproc-per-node", "2"), "has --nproc-per-node 1, but host 0 has --nproc-per-node 2"),
        (("--nnodes", "2:3"), "has --nnodes 2, but host 0 has --nnodes 2:3"),
    ],
)
def test_a_host_of_another_job_is_refused(
    launchers: Launchers, arguments: tuple[str, ...], text: str
) -> None:
    usual = ("--nnodes", "2", "--nproc-per-node", "1")
    first = launchers.start(*usual, *arguments, "--node-rank", "0")
    other = launchers.start(*usual, "--node-rank", "1")
    _, errors = other.communicate(timeout=HANGS_S)
    assert other.returncode == 2
    assert text in errors
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=HANGS_S)
    assert first.returncode == 128 + signal.SIGTERM


def test_a_host_with_another_key_is_not_heard(launchers: Launchers, tmp_path: Path) -> None:
    (tmp_path / "other key").write_bytes(secrets.token_bytes(32))
    (tmp_path / "other key").chmod(0o600)
    arguments = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-conf", "join_timeout=2")
    launchers.start(*arguments, "--node-rank", "0")
    launchers.start(*arguments, "--node-rank", "1", key="other key")
    (first, _, said), (other, _, heard) = launchers.outputs()
    assert (first, other) == (2, 2)
    assert "of 2 hosts these did not come: 1" in said
    assert "it did not come, or it has another key" in heard


FAILS = """
import os, pathlib, signal, sys
here = pathlib.Path(__file__)
here.with_name(os.environ["RANK"]).touch()
if os.environ["RANK"] == "1":
    while not here.with_name("0").exists():
        pass
    os.kill(os.getppid(), signal.SIGKILL)
signal.pause()
"""


def test_ranks_end_with_host_0(tmp_path: Path, endpoint: str) -> None:
    before = Leftovers.now()
    source = FAILS.replace('"RANK"] == "1"', '"RANK"] == "0"').replace('"0").exists', '"1").exists')
    launchers = Launchers(tmp_path, endpoint, source)
    arguments = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1")
    for k in range(2):
        launchers.start(*arguments, "--node-rank", str(k))
    (first, _, _), (other, _, errors) = launchers.outputs()
    assert (first, other) == (-signal.SIGKILL, 1)
    assert "host 0 is lost: " in errors
    assert "ranks 1 have 0 s to end" in errors
    assert not left_since(before)


def test_a_host_that_is_lost_and_not_replaced_ends_the_job(tmp_path: Path, endpoint: str) -> None:
    before = Leftovers.now()
    launchers = Launchers(tmp_path, endpoint, FAILS)
    arguments = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1")
    for k in range(2):
        launchers.start(*arguments, "--node-rank", str(k), "--rdzv-conf", "join_timeout=6")
    (first, _, errors), (other, _, _) = launchers.outputs()
    assert (first, other) == (2, -signal.SIGKILL)
    assert "RendezvousTimeout: host 1 (tcp://127.0.0.1:" in errors
    assert "was lost, and no other host came instead; ranks 0 have 0 s to end" in errors
    assert not left_since(before)


def test_without_restarts_ranks_say_how_they_end(tmp_path: Path, endpoint: str) -> None:
    before = Leftovers.now()
    source = """
import os, pathlib, sys
if os.environ["RANK"] == "0":
    sys.exit(7)
while not pathlib.Path(__file__).with_name("lost").exists():
    pass
sys.exit(9)
"""
    launchers = Launchers(tmp_path, endpoint, source)
    arguments = ("--nnodes", "2", "--nproc-per-node", "1")
    first, other = (launchers.start(*arguments, "--node-rank", str(k)) for k in range(2))
    assert other.stderr is not None
    assert next(line for line in other.stderr if "host 0 is lost: " in line).endswith(
        "; ranks 1 have 15 s to end\n"
    )
    (tmp_path / "lost").touch()
    launchers.outputs()
    assert (first.returncode, other.returncode) == (7, 9)
    assert not left_since(before)


def test_a_signal_ends_a_host_that_waits(launchers: Launchers) -> None:
    process = launchers.start("--nnodes", "2", "--nproc-per-node", "1")
    status = Path(f"/proc/{process.pid}/status")

    def catches() -> bool:
        line = next(text for text in status.read_text().splitlines() if text.startswith("SigCgt"))
        return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))

    assert wait_until(catches)
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANGS_S) == 128 + signal.SIGTERM


# ---------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nproc-per-node", "1", "--nnodes", "1:4"], "needs --rdzv-endpoint, or --master-addr"),
        (
            ["--nproc-per-node", "1", "--nnodes", "1:2", "--master-addr", "h", "--master-port=1"],
            "--nnodes MIN:MAX needs --rdzv-endpoint",
        ),
        (
            ["--nproc-per-node", "1", "--rdzv-endpoint", "h", "--master-addr", "h"],
            "leaves no choice of --master-addr",
        ),
        (["--nproc-per-node", "1", "--standalone", "--nnodes", "2"], "--standalone is for one"),
        (["--nproc-per-node", "gpu", "--address", "auto"], "--address needs numbers"),
        (["--nproc-per-node", "1", "--nnodes", "1:2", "--address", "auto"], "needs numbers"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPGRAD_GROUP_KEY_FILE", "key")
    assert main(["run", *arguments, "no such file"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nproc-per-node", "few"], "expected a whole number of at least 1, or auto, cpu, gpu"),
        (["--nnodes", "4:2"], "'4:2': expected MIN:MAX, and MAX is less than MIN"),
        (["--rdzv-endpoint", "tcp://h"], "'tcp://h': expected HOST or HOST:PORT"),
        (["--rdzv-conf", "is_host=1"], "'is_host' is none of join_timeout, timeout, last_call"),
        (["--rdzv-backend", "etcd"], "invalid choice: 'etcd' (choose from"),
    ],
)
def test_what_cannot_be_understood_is_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"), contextlib.suppress(OSError):
        main(["run", *arguments, "script.py"])
    assert text in capsys.readouterr().err


def test_no_gpu_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpgrad.arrays.cuda.cuda_driver.device_count", lambda: 0)
    assert main(["run", "--nproc-per-node", "gpu", "script.py"]) == 2
    assert "--nproc-per-node gpu: this host has no GPU" in capsys.readouterr().err
