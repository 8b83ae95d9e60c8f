"""Elastic programs: ranks and hosts are killed in each phase of training, and no bit changes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.distributed import elastic
from mpgrad.nn.parallel import DistributedDataParallel
from tests.distributed.ranks import HANGS_S, ROOT, Ran, run_ranks
from tests.leftovers import Leftovers, left_since
from tests.python_path import path_to

#: Trains, and dies as its arguments say: phase:rank:step, each once. Rank k saves to DIRECTORY/k.
TRAINING = """
import datetime, os, signal, sys
from pathlib import Path
import numpy as np
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.data import DataLoader, TensorDataset
from mpgrad.distributed import elastic
from mpgrad.distributed.operation import Operation
from mpgrad.nn.functional import cross_entropy
from mpgrad.nn.parallel import DistributedDataParallel

engine, directory, seconds, *deaths = sys.argv[1:]
RANK, STEPS, PASS = int(os.environ["RANK"]), 8, 4
here = Path(directory)
step = 0

def die(phase):
    for death in deaths:
        what, rank, when, *victim = death.split(":")
        if (what, int(rank), int(when)) == (phase, RANK, step):
            try:
                (here / death.replace(":", "-")).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getppid() if victim == ["agent"] else os.getpid(), signal.SIGKILL)
            signal.pause()

die("start")
mg.set_engine(mg.Engine(engine, cpu_workers=1))
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
wait = datetime.timedelta(seconds=float(seconds))
dist.init_process_group(timeout=wait / 20 if again and wait.seconds < 100 else wait)
mg.manual_seed(RANK)

join = Operation.join
def joins(*arguments):
    die("reduce")
    join(*arguments)
Operation.join = joins

class Dies(nn.Module):
    def forward(self, x):
        die("forward")
        x.register_hook(lambda grad: die("backward"))
        return x

class Steps(mg.optim.Adam):
    def step(self):
        super().step()
        die("optimizer")

class Counter:
    def __init__(self):
        self.steps = 0
    def state_dict(self):
        die("commit")
        return {"steps": self.steps}
    def load_state_dict(self, state):
        global step
        self.steps = step = state["steps"]
        die("restore")

model = nn.Sequential(
    nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), Dies(), nn.Dropout(0.2), nn.Linear(40, 10)
)
optimizer = Steps(model.parameters(), lr=0.01)
numbers = np.random.default_rng(1)
xs = numbers.standard_normal((PASS * 8, 20)).astype("f4")
data = TensorDataset(mg.from_numpy(xs), mg.from_numpy(numbers.integers(0, 10, PASS * 8)))
# The order of each pass is drawn; so is a seed for workers, which are not there.
loader = DataLoader(data, batch_size=8, shuffle=True)

@elastic.run
def train(state):
    global step
    parallel = DistributedDataParallel(state.model, bucket_cap_mb=0.001)
    while state.counter.steps < STEPS:
        done = state.counter.steps % PASS
        for x, y in state.rest_of(loader, done):
            optimizer.zero_grad()
            cross_entropy(parallel(x + mg.rand(20)), y).backward()
            optimizer.step()
            state.counter.steps += 1
            state.commit()
            dist.barrier()  # who dies now takes no message with it that others need to commit
            die("committed")
            step += 1
    return [*model.parameters(), *model.buffers()]

saved = train(elastic.State(counter=Counter(), model=model, optimizer=optimizer))
(here / f"saved-{RANK}").write_bytes(b"".join(t.detach().numpy().tobytes() for t in saved))
print("ended", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""

RANKS = 3
LONG_S = "120"
PHASES = ["forward", "backward", "reduce", "optimizer", "commit", "committed", "restore"]


def arguments(directory: Path, *deaths: str, engine: str = "local") -> list[str]:
    directory.mkdir(exist_ok=True)
    return [engine, str(directory), LONG_S, *deaths]


def train(directory: Path, *deaths: str, restarts: int = 20, engine: str = "local") -> Ran:
    return run_ranks(
        directory.parent,
        TRAINING,
        RANKS,
        "--max-restarts",
        str(restarts),
        script_arguments=arguments(directory, *deaths, engine=engine),
    )


def saved(directory: Path) -> list[bytes]:
    return [(directory / f"saved-{rank}").read_bytes() for rank in range(RANKS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What is saved where nobody dies, and nobody would be started again."""
    directory = tmp_path_factory.mktemp("undisturbed") / "saved"
    ran = train(directory, restarts=0)
    assert ran.code == 0, ran.errors
    found = saved(directory)
    assert len({part[:100] for part in found}) == 1
    return found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("process", marks=pytest.mark.long)])
def test_ranks_die_in_each_phase_and_no_bit_changes(
    tmp_path: Path, undisturbed: list[bytes], engine: str
) -> None:
    before = Leftovers.now()
    deaths = [f"{phase}:{k % RANKS}:{k + 1}" for k, phase in enumerate(PHASES)]
    # One dies while the others restore, and one before it has met them.
    deaths += ["restore:0:3", "start:1:0"]
    ran = train(tmp_path / "saved", *deaths, engine=engine)
    assert ran.code == 0, ran.errors
    died = {path.name for path in (tmp_path / "saved").iterdir() if path.name[:5] != "saved"}
    assert died == {death.replace(":", "-") for death in deaths}
    assert ran.errors.count("it is started again (") == len(deaths)
    assert saved(tmp_path / "saved") == undisturbed
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", range(RANKS))
def test_one_rank_dies_in_one_phase(
    tmp_path: Path, undisturbed: list[bytes], phase: str, victim: int
) -> None:
    before = Leftovers.now()
    ran = train(tmp_path / "saved", f"forward:{(victim + 1) % RANKS}:2", f"{phase}:{victim}:3")
    assert ran.code == 0, ran.errors
    assert "(2 of 20 restarts)" in ran.errors or phase == "restore"
    assert saved(tmp_path / "saved") == undisturbed
    assert not left_since(before)


# ---------------------------------------------------------------------------- hosts


class Hosts:
    """A launcher for each rank, as on as many hosts."""

    def __init__(self, path: Path, port: int, *script_arguments: str) -> None:
        (path / "script.py").write_text(TRAINING)
        (path / "key").write_bytes(b"k" * 32)
        (path / "key").chmod(0o600)
        self._path, self._port, self._arguments = path, port, script_arguments

    def start(self, host: int, restarts: int = 3, nodes: str = "") -> subprocess.Popen[str]:
        """Start one; ``nodes`` has it meet the others, instead of being told where they are."""
        where = f"--nnodes 3 --master-addr 127.0.0.1 --master-port {self._port}"
        if nodes:
            where = f"--nnodes {nodes} --rdzv-endpoint 127.0.0.1:{self._port}"
        where += f" --node-rank {host} --nproc-per-node 1 --max-restarts {restarts}"
        command = [sys.executable, "-m", "mpgrad", "run", *where.split()]
        return subprocess.Popen(
            [*command, str(self._path / "script.py"), *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": path_to(ROOT),
                "MPGRAD_GROUP_KEY_FILE": str(self._path / "key"),
            },
        )


@pytest.fixture
def port() -> Iterator[int]:
    """A port that the system gives to nobody else."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def ended(*launchers: subprocess.Popen[str]) -> Iterator[list[tuple[str, str]]]:
    """What they have printed, once they have ended."""
    try:
        yield [launcher.communicate(timeout=HANGS_S) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 1])
def test_the_launcher_of_a_host_dies_and_is_started_again(
    tmp_path: Path, port: int, undisturbed: list[bytes], host: int
) -> None:
    before = Leftovers.now()
    directory = tmp_path / "saved"
    hosts = Hosts(tmp_path, port, *arguments(directory, f"backward:{host}:3:agent"))
    launchers = [hosts.start(number) for number in range(RANKS)]
    with ended(launchers[host]):
        assert launchers[host].returncode == -signal.SIGKILL
    again = hosts.start(host)
    with ended(*(launchers[number] for number in range(RANKS) if number != host), again) as said:
        assert again.returncode == 0, said
    assert saved(directory) == undisturbed
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["backward", pytest.param("commit", marks=pytest.mark.long)])
def test_the_ranks_of_a_lost_host_run_on_the_others(
    tmp_path: Path, port: int, undisturbed: list[bytes], phase: str
) -> None:
    before = Leftovers.now()
    directory = tmp_path / "saved"
    hosts = Hosts(tmp_path, port, *arguments(directory, f"{phase}:1:3:agent", "forward:1:5"))
    launchers = [hosts.start(number, nodes="2:3") for number in range(RANKS)]
    with ended(*launchers) as said:
        assert [launcher.returncode for launcher in launchers] == [0, -signal.SIGKILL, 0], said
    assert "this is host 0, and runs ranks of a lost host: 1" in said[0][1]
    assert "it is started again (1 of 3 restarts)" in said[0][1]
    assert "[rank 1] ended 2" in said[0][0].splitlines()
    assert saved(directory) == undisturbed
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
def test_another_host_comes_in_the_place_of_a_lost_one(
    tmp_path: Path, port: int, undisturbed: list[bytes]
) -> None:
    before = Leftovers.now()
    directory = tmp_path / "saved"
    hosts = Hosts(tmp_path, port, *arguments(directory, "optimizer:2:4:agent"))
    launchers = [hosts.start(number, nodes="3") for number in range(RANKS)]
    with ended(launchers[2]):
        assert launchers[2].returncode == -signal.SIGKILL
    again = hosts.start(2, nodes="3")
    with ended(*launchers[:2], again) as said:
        assert [one.returncode for one in (*launchers[:2], again)] == [0, 0, 0], said
    assert "this is host 2, and runs ranks of a lost host: 2" in said[2][1]
    assert saved(directory) == undisturbed
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_host_that_does_not_come_back_is_named(tmp_path: Path, port: int) -> None:
    before = Leftovers.now()
    directory = tmp_path / "saved"
    begun = arguments(directory, "backward:2:3:agent")
    begun[2] = "20"  # seconds that they wait
    hosts = Hosts(tmp_path, port, *begun)
    launchers = [hosts.start(number, restarts=1) for number in range(RANKS)]
    with ended(*launchers) as said:
        assert [launcher.returncode for launcher in launchers] == [2, 2, -signal.SIGKILL], said
    assert "RendezvousTimeout: of 3 ranks these did not come: 2" in said[0][1]
    assert "rank 0 refused rank 1: of 3 ranks these did not come: 2" in said[1][1]
    assert all("all 1 restarts are used up" in errors for _, errors in said[:2])
    assert not left_since(before)


# ---------------------------------------------------------------------------- bad input

DIES = """
import os, signal
import mpgrad.distributed as dist
from mpgrad.distributed import elastic

dist.init_process_group()

@elastic.run
def count(state):
    while state.step < 3:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        state.step += 1
        state.commit()

count(elastic.State(step=0))
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_rank_that_dies_again_and_again_uses_up_the_restarts(tmp_path: Path) -> None:
    before = Leftovers.now()
    ran = run_ranks(tmp_path, DIES, 2, "--max-restarts", "2")
    assert ran.code == 128 + signal.SIGKILL
    assert "rank 1 (process " in ran.errors
    assert "it is started again (1 of 2 restarts)" in ran.errors
    assert "it is started again (2 of 2 restarts)" in ran.errors
    assert (
        "ended with signal SIGKILL; all 2 restarts are used up: see what it has printed first, or "
        "give a larger --max-restarts; ranks 0 have 0 s to end" in ran.errors
    )
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
def test_without_restarts_a_lost_rank_is_an_error(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, DIES, 2)
    assert ran.code == 128 + signal.SIGKILL
    # What rank 1 has sent may die with it: then rank 0 still waits in the broadcast of the state.
    names = "barrier|broadcast from 0 of 64 uint8"
    assert re.search(rf"HostLost: ({names}): rank 1 is lost", ran.errors)
    assert "started again" not in ran.errors


ENDS = """
import os, signal
from pathlib import Path
import mpgrad.distributed as dist
from mpgrad.distributed import elastic

dist.init_process_group()
elastic.run(lambda state: None)(elastic.State())
dist.destroy_process_group()
if os.environ["RANK"] == "1":
    launcher = os.getppid()
    while len(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()) > 1:
        pass  # until rank 0 has ended
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_rank_is_not_started_again_once_another_has_ended(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, ENDS, 2, "--max-restarts", "3")
    assert ran.code == 128 + signal.SIGKILL
    assert "it is not started again, since rank 0 has ended" in ran.errors


RETURNS = """
import datetime, os, signal, sys, threading
from pathlib import Path
import mpgrad.distributed as dist
from mpgrad.distributed import elastic
from mpgrad.distributed.group_member import GroupMember
from mpgrad.distributed.operation import Operation

RANK, here, stays = os.environ["RANK"], Path(sys.argv[1]), sys.argv[2] == "stays"
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.exit()  # it would wait for the others in vain

def wait_for(name):
    while not (here / name).exists():
        pass

def die():
    wait_for("2")
    os.kill(os.getpid(), signal.SIGKILL)

outgoing, tell = Operation.outgoing, GroupMember.tell
sent = 0

def counts(operation, step):
    global sent
    sent += operation.is_end and step.peer == 1
    return outgoing(operation, step)

def tells(member, rank, message, frames=()):
    if sent == 2 and rank == 1:
        threading.Thread(target=die).start()
    else:
        tell(member, rank, message, frames)

if RANK == "0":  # its last message to rank 1 is never sent, and all others are
    Operation.outgoing, GroupMember.tell = counts, tells
dist.init_process_group(timeout=datetime.timedelta(seconds=20))
result = elastic.run(lambda state: state.step)(elastic.State(step=3))
(here / RANK).write_text(str(result))
if RANK == "0":
    signal.pause()
if RANK == "2" and stays:
    wait_for("1")
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("other", ["stays", "leaves"])
def test_a_rank_dies_once_the_function_has_returned_on_all(tmp_path: Path, other: str) -> None:
    before = Leftovers.now()
    ran = run_ranks(
        tmp_path, RETURNS, 3, "--max-restarts", "1", script_arguments=[str(tmp_path), other]
    )
    assert [(tmp_path / rank).read_text() for rank in "12"] == ["3", "3"], ran.errors
    assert "rank 0 (process " in ran.errors
    assert "RendezvousTimeout" not in ran.errors
    # Rank 0 is not started again where rank 2 has ended before.
    assert ran.code in ((0,) if other == "stays" else (0, 128 + signal.SIGKILL))
    assert not left_since(before)


def test_run_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    train = elastic.run(lambda state: None)
    with pytest.raises(RuntimeError, match=r"needs a launcher .* mpgrad run .* --max-restarts M"):
        train(elastic.State())
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(TypeError, match="the first argument has to be a State, not 3"):
        train(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="init_process_group"):
        train(elastic.State())


def test_what_a_state_cannot_keep() -> None:
    with pytest.raises(
        TypeError, match=r"State\(loss=\.\.\.\): a function cannot be saved \(.*\):"
    ):
        elastic.State(model=nn.Linear(1, 1), loss=lambda x: x)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    with pytest.raises(TypeError, match=r"State\(model=\.\.\.\): .* give State its \.module, and"):
        elastic.State(model=wrapped)
    with pytest.raises(ValueError, match=r"State\(commit=\.\.\.\): this name is State's own"):
        elastic.State(commit=1)
    state = elastic.State(step=3, epoch=1)
    with pytest.raises(AttributeError, match="this State has no 'batch'; it has: step, epoch"):
        _ = state.batch
    for call in (state.commit, lambda: state.rest_of([], 0)):
        with pytest.raises(RuntimeError, match=r"before State\.sync\(\)"):
            call()


def test_restore_goes_back_and_drops_gradients() -> None:
    model = nn.Linear(2, 1)
    before: list[Any] = [p.detach().clone() for p in model.parameters()]
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = elastic.State(model=model, optimizer=optimizer, seen=[1])
    model(mg.ones(3, 2)).sum().backward()
    optimizer.step()
    state.seen.append(2)
    state.restore()
    assert all(mg.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer.state_dict()["state"]
    assert state.seen == [1]
