"""``mpgrad run --address``: ranks on the hosts of a Ray cluster, their signals, codes and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpgrad.distributed.launch.group_setup import reserved_port
from mpgrad.launch.cli import main
from tests.distributed.ranks import HANGS_S, rank_environment, run_ranks
from tests.leftovers import wait_until
from tests.ray.clusters import ENVIRONMENT, processes_with
from tests.ray.marks import needs_ray

TRAINS = """
import hashlib, os, sys
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.nn.parallel import DistributedDataParallel
from mpgrad.distributed.carrier import zeromq_carrier

zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
dist.init_process_group()
mg.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
mg.manual_seed(dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    model(mg.randn(5, 8)).square().sum().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print(os.environ["LOCAL_RANK"], sys.argv[1:], digest.hexdigest())
"""

NUMBERS = """
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.distributed.carrier import zeromq_carrier

zeromq_carrier.SILENCE_MS_MAX = 120_000
dist.init_process_group()
total = mg.tensor(float(dist.get_rank()))
dist.all_reduce(total)
print(f"{dist.get_rank()} of {dist.get_world_size()}: {total.item()}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""

WAITS = """
import os, signal, sys, threading
import mpgrad.distributed as dist
from mpgrad.distributed.carrier import zeromq_carrier

zeromq_carrier.SILENCE_MS_MAX = 120_000
def ends(*_):
    print("told", flush=True)
    os._exit(9)

signal.signal(signal.SIGTERM, ends)
dist.init_process_group()
print("ready", os.getpid(), os.getppid(), flush=True)
if sys.argv[1:]:
    dist.recv(__import__("mpgrad").ones(1), (dist.get_rank() + 1) % 4)
threading.Event().wait()
"""


def command_of(cluster: str, script: Path, *arguments: str) -> list[str]:
    ranks = ["--address", cluster, "--nnodes", "2", "--nproc-per-node", "2", "--cpu-workers", "1"]
    return [sys.executable, "-m", "mpgrad", "run", *ranks, str(script), *arguments]


def lines_of(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("[rank "))


class Waiting:
    """A run of WAITS whose ranks have all met.

    Attributes:
        pids: of the ranks and of the processes that started them, by rank.
    """

    def __init__(self, cluster: str, directory: Path, *arguments: str) -> None:
        script = directory / "script.py"
        script.write_text(WAITS)
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command_of(cluster, script, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, "MPGRAD_MARK_OF_TEST": self.mark},
        )
        assert self.process.stdout is not None
        self.pids: dict[int, tuple[int, int]] = {}
        while len(self.pids) < 4:
            head, pid, parent = self.process.stdout.readline().rsplit(maxsplit=2)
            self.pids[int(head.removeprefix("[rank ").split("]")[0])] = int(pid), int(parent)

    def end(self) -> tuple[int, list[str], str]:
        """Its exit code, the rest of what it says, and its errors."""
        output, errors = self.process.communicate(timeout=HANGS_S)
        wait_until(lambda: not processes_with(self.mark), 60.0)
        return self.process.returncode, lines_of(output), errors


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])


class TestOnACluster:
    pytestmark = needs_ray

    def test_two_hosts_give_the_bits_of_one(self, cluster: str, tmp_path: Path) -> None:
        one = run_ranks(tmp_path, TRAINS, 4, script_arguments=["7"])
        done = subprocess.run(
            command_of(cluster, tmp_path / "script.py", "7"),
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS_S,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr
        local = {rank: line.split(maxsplit=1) for rank, [line] in one.lines.items()}
        assert lines_of(done.stdout) == [f"[rank {k}] {k % 2} {local[k][1]}" for k in range(4)]
        assert done.stderr == ""

    def test_signals_and_exit_codes_pass(self, cluster: str, tmp_path: Path) -> None:
        waiting = Waiting(cluster, tmp_path)
        waiting.process.send_signal(signal.SIGTERM)
        code, lines, errors = waiting.end()
        assert code == 9, errors
        assert lines == [f"[rank {k}] told" for k in range(4)]

    def test_ranks_end_with_their_agent(self, cluster: str, tmp_path: Path) -> None:
        waiting = Waiting(cluster, tmp_path, "receives")
        launcher = waiting.pids[3][1]
        os.kill(parent_of(launcher), signal.SIGKILL)
        code, _, errors = waiting.end()
        assert code != 0
        assert "host 1 is lost" in errors
        assert "is lost" in errors.replace("host 1 is lost", ""), "HostLost of the other ranks"

    def test_ranks_end_with_the_command(self, cluster: str, tmp_path: Path) -> None:
        waiting = Waiting(cluster, tmp_path)
        waiting.process.kill()
        assert waiting.end()[0] == -signal.SIGKILL

    def test_rank_0_may_be_a_process_that_ray_does_not_start(
        self, cluster: str, tmp_path: Path
    ) -> None:
        """A notebook, say: see tests/distributed/test_notebook.py."""
        (tmp_path / "key").write_bytes(os.urandom(32))
        (tmp_path / "key").chmod(0o600)
        environment = {**ENVIRONMENT, "MPGRAD_GROUP_KEY_FILE": str(tmp_path / "key")}
        with reserved_port("127.0.0.1") as port:
            where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            ranks = ["--address", cluster, "--nnodes", "3", "--node-rank", "1", *where]
            (tmp_path / "script.py").write_text(NUMBERS)
            command = [sys.executable, "-m", "mpgrad", "run", *ranks, "script.py"]
            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=environment,
            ) as launcher:
                done = subprocess.run(
                    [sys.executable, "script.py"],
                    capture_output=True,
                    text=True,
                    check=False,
                    cwd=tmp_path,
                    timeout=HANGS_S,
                    env={**environment, **rank_environment(0, 3, port)},
                )
                output, _ = launcher.communicate(timeout=HANGS_S)
        assert (done.returncode, launcher.returncode) == (0, 0), done.stderr
        assert done.stdout == "0 of 3: 3.0\n"
        assert lines_of(output) == ["[rank 1] 1 of 3: 3.0", "[rank 2] 2 of 3: 3.0"]

    def test_too_few_hosts(
        self, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "script.py").write_text("")
        limited = (
            "from mpgrad.distributed.launch import ray_cluster; from mpgrad.launch import cli; "
            "ray_cluster.PLACEMENT_S = 1.0; "
        )
        ranks = ["run", "--address", cluster, "--nnodes", "3", "--nproc-per-node", "1", "script.py"]
        done = subprocess.run(
            [sys.executable, "-c", f"{limited}raise SystemExit(cli.main({ranks}))"],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS_S,
            env=ENVIRONMENT,
            cwd=tmp_path,
        )
        assert done.returncode == 2, done.stderr
        assert "Ray found no 3 hosts with 1 free CPUs each" in done.stderr
        assert "the cluster has 2 hosts" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--nproc-per-node", "1"], "pip install mpgrad[ray]"),
        ([], "pip install mpgrad[ray]"),
        (["--nproc-per-node", "1", "--master-addr", "x"], "no choice"),
        (["--rdzv-endpoint", "x"], "no choice of --rdzv-endpoint"),
        (["--node-rank", "1"], "--node-rank has to be 0 to 0"),
        (["--nnodes", "2", "--node-rank", "1"], "needs --master-addr and --master-port"),
        (
            ["--nnodes", "2", "--node-rank", "1", "--master-addr", "x", "--master-port", "1"],
            "--node-rank needs MPGRAD_GROUP_KEY_FILE",
        ),
    ],
)
def test_what_is_missing_is_named(
    arguments: Sequence[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "mpgrad.distributed.launch.ray_cluster", raising=False)
    assert main(["run", "--address", "auto", *arguments, "script.py"]) == 2
    assert text in capsys.readouterr().err
