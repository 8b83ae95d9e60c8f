"""Hosts: network namespaces of this machine, with cables (veth) between them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import HANGS_S, ROOT, run_ranks
from tests.distributed.test_data_parallel import TRAINING
from tests.leftovers import wait_until
from tests.python_path import path_to

pytestmark = [pytest.mark.process, pytest.mark.slow]

#: Nobody else has this network: it exists in the two namespaces only.
ADDRESSES, PORT = ("10.77.0.1", "10.77.0.2"), "29500"
#: With a third host.
THIRD = "10.77.0.3"

DIGEST = (
    TRAINING
    + """
import hashlib
model = DistributedDataParallel(new_model(rank))
train(model)
print(rank, hashlib.sha256(b"".join(bits(model.module))).hexdigest())
"""
)

CUT = """
import os, pathlib
import mpgrad as mg
import mpgrad.distributed as dist

dist.init_process_group()
pathlib.Path(__file__).with_name(f"met {dist.get_rank()}").touch()
try:
    while True:
        dist.all_reduce(mg.ones(10))
except mg.errors.HostLost as error:
    print("lost", error.rank)
"""


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two namespaces that reach each other."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    tag = secrets.token_hex(3)
    names = (f"mpgrad-{tag}-0", f"mpgrad-{tag}-1")
    if ip("netns", "add", names[0]).returncode != 0:
        pytest.skip("network namespaces are not permitted")
    try:
        assert ip("netns", "add", names[1]).returncode == 0
        ends = (f"m{tag}0", f"m{tag}1")
        made = ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        if made.returncode != 0:
            pytest.skip(f"there is no veth: {made.stderr}")
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            for command in (
                ("link", "set", end, "netns", name),
                ("-n", name, "link", "set", end, "name", "cable"),
                ("-n", name, "addr", "add", f"{address}/24", "dev", "cable"),
                ("-n", name, "link", "set", "cable", "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ):
                done = ip(*command)
                assert done.returncode == 0, done.stderr
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.fixture
def three_hosts() -> Iterator[tuple[str, ...]]:
    """Three of them; the first one is a bridge, too."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    tag = secrets.token_hex(3)
    names = tuple(f"mpgrad-{tag}-{k}" for k in range(3))
    try:
        if any(ip("netns", "add", name).returncode != 0 for name in names):
            pytest.skip("network namespaces are not permitted")
        made = ip("-n", names[0], "link", "add", "cable", "type", "bridge")
        if made.returncode != 0:
            pytest.skip(f"there is no bridge: {made.stderr}")
        for k, address in enumerate((*ADDRESSES, THIRD)):
            if k > 0:
                ends = ("link", "add", f"port{k}", "type", "veth", "peer", "name", "cable")
                assert ip("-n", names[0], *ends, "netns", names[k]).returncode == 0
                for what in (("master", "cable"), ("up",)):
                    assert ip("-n", names[0], "link", "set", f"port{k}", *what).returncode == 0
            for command in (
                ("addr", "add", f"{address}/24", "dev", "cable"),
                ("link", "set", "cable", "up"),
                ("link", "set", "lo", "up"),
            ):
                done = ip("-n", names[k], *command)
                assert done.returncode == 0, done.stderr
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


#: What says where the ranks are: a node rank on each host, or the same on both.
MASTER = ("--nnodes", "2", "--master-addr", ADDRESSES[0], "--master-port", PORT)
RENDEZVOUS = ("--nnodes", "2", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", "job")


def start(
    directory: Path,
    source: str,
    hosts: tuple[str, ...],
    per_node: int,
    place: tuple[str, ...] = MASTER,
    script_arguments: tuple[str, ...] = (),
) -> list[subprocess.Popen[str]]:
    """``mpgrad run`` on all hosts."""
    (directory / "script.py").write_text(source)
    (directory / "key").write_bytes(secrets.token_bytes(32))
    (directory / "key").chmod(0o600)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path_to(ROOT),
        "MPGRAD_GROUP_KEY_FILE": str(directory / "key"),
    }
    launched = []
    for number, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "mpgrad", "run", *place]
        command += ["--nproc-per-node", str(per_node)]
        if place is MASTER:
            command += ["--node-rank", str(number)]
        launched.append(
            subprocess.Popen(
                [*command, str(directory / "script.py"), *script_arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return launched


def outputs(launched: list[subprocess.Popen[str]]) -> list[str]:
    """What each host printed; both have ended well."""
    found = [launcher.communicate(timeout=HANGS_S) for launcher in launched]
    assert [launcher.returncode for launcher in launched] == [0, 0], found
    return [output for output, _ in found]


@pytest.mark.parametrize("place", [MASTER, RENDEZVOUS])
def test_two_hosts_give_the_bits_of_one(
    tmp_path: Path, hosts: tuple[str, str], place: tuple[str, ...]
) -> None:
    (tmp_path / "one").mkdir()
    alone = run_ranks(tmp_path / "one", DIGEST, 4)
    assert alone.code == 0, alone.errors
    text = "".join(outputs(start(tmp_path, DIGEST, hosts, 2, place)))
    found = dict(re.findall(r"\[rank \d\] (\d) (\w+)", text))
    expected = dict(line.split() for lines in alone.lines.values() for line in lines)
    assert len(expected) == 4
    assert found == expected


@pytest.mark.long
def test_a_cut_cable_is_a_lost_host_on_both_sides(tmp_path: Path, hosts: tuple[str, str]) -> None:
    launched = start(tmp_path, CUT, hosts, 1)
    assert wait_until(lambda: all((tmp_path / f"met {rank}").exists() for rank in (0, 1)))
    assert ip("-n", hosts[1], "link", "set", "cable", "down").returncode == 0
    assert outputs(launched) == ["[rank 0] lost 1\n", "[rank 1] lost 0\n"]


#: Counts, and saves what it comes to; at step 3 it waits until the cable is cut.
OUTLIVES = """
import os, pathlib, sys
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.distributed import elastic

here, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group()

@elastic.run
def train(state):
    while state.step < 6:
        if state.step == 3:
            (here / f"met {rank}").touch()
            while not (here / "cut").exists():
                pass
        part = mg.rand(1000) + state.total * 0.1
        dist.all_reduce(part)
        state.total, state.step = part, state.step + 1
        state.commit()
    return state.total

mg.manual_seed(7)
total = train(elastic.State(step=0, total=mg.zeros(1000)))
(here / f"saved {rank}").write_bytes(total.numpy().tobytes())
"""


@pytest.mark.long
def test_the_ranks_of_a_host_that_is_cut_off_end_there_and_run_elsewhere(
    tmp_path: Path, hosts: tuple[str, str]
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    (alone / "cut").touch()
    ran = run_ranks(alone, OUTLIVES, 4, "--max-restarts", "1", script_arguments=[str(alone)])
    assert ran.code == 0, ran.errors
    place = ("--nnodes", "1:2", *RENDEZVOUS[2:], "--max-restarts", "1")
    launched = start(both, OUTLIVES, hosts, 2, place, (str(both),))
    assert wait_until(lambda: all((both / f"met {rank}").exists() for rank in range(4)))
    assert ip("-n", hosts[1], "link", "set", "cable", "down").returncode == 0
    (both / "cut").touch()
    said = [launcher.communicate(timeout=HANGS_S) for launcher in launched]
    assert [launcher.returncode for launcher in launched] == [0, 1], said
    assert "this is host 0, and runs ranks of a lost host: 2, 3" in said[0][1]
    assert "host 0 is lost: " in said[1][1]
    assert "ranks 2, 3 have 0 s to end" in said[1][1]
    saved = [[(path / f"saved {k}").read_bytes() for k in range(4)] for path in (alone, both)]
    assert saved[0] == saved[1]


#: Rank 2 ends the ``mpgrad run`` of its host, in the middle of a backward; or waits until that host
#: is cut off. Then who calls whom is given.
CALLED = """
import os, pathlib, signal, sys
import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad.distributed.rendezvous import way_to

here, how, rank = pathlib.Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
CALLS = [tuple(map(int, pair)) for pair in sys.argv[3:]]

def is_first():
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

class Dies(mg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        if rank == 2 and is_first() and how != "stays":
            (here / "met").touch()
            if how == "dies":
                os.kill(os.getppid(), signal.SIGKILL)
            while True:
                pass
        return grad * 0.5

def part(x):
    return Dies.apply(x)

def address():
    return way_to(os.environ["MASTER_ADDR"], 1)

def address_of(other):
    return rpc.rpc_sync(f"worker{other}", address, repeat=True)

rpc.init_rpc(f"worker{rank}")
if rank == 0:
    weight = mg.arange(1000.0).requires_grad_()
    with dist_autograd.context() as context_id:
        hidden = rpc.rpc_sync(f"worker{CALLS[-1][0]}", part, (weight,), repeat=True)
        hidden = rpc.rpc_sync("worker2", part, (hidden,), repeat=True)
        dist_autograd.backward(context_id, [(hidden * weight).sum()])
        found = dist_autograd.get_gradients(context_id)[weight]
        (here / "saved").write_bytes(found.numpy().tobytes())
    for caller, other in CALLS:
        print(rpc.rpc_sync(f"worker{caller}", address_of, (other,), repeat=True))
rpc.shutdown()
"""

MOVES = ("--nnodes", "1:2", *RENDEZVOUS[2:], "--max-restarts", "1")


@pytest.mark.parametrize("how", ["dies", pytest.param("is-cut-off", marks=pytest.mark.long)])
def test_ranks_that_others_call_move_to_another_host(
    tmp_path: Path, hosts: tuple[str, str], how: str
) -> None:
    stays, moves = tmp_path / "stays", tmp_path / "moves"
    stays.mkdir()
    moves.mkdir()
    calls = ("02", "13", "23", "31")
    text, _ = outputs(start(stays, CALLED, hosts, 2, MOVES, (str(stays), "stays", *calls)))
    first, other = ADDRESSES
    assert text.split("[rank 0] ")[1:] == [f"{other}\n"] * 3 + [f"{first}\n"]
    launched = start(moves, CALLED, hosts, 2, MOVES, (str(moves), how, *calls))
    if how == "is-cut-off":
        assert wait_until((moves / "met").exists)
        assert ip("-n", hosts[1], "link", "set", "cable", "down").returncode == 0
    said = [launcher.communicate(timeout=HANGS_S) for launcher in launched]
    assert launched[0].returncode == 0, said
    assert "this is host 0, and runs ranks of a lost host: 2, 3" in said[0][1]
    assert said[0][0].split("[rank 0] ")[1:] == [f"{first}\n"] * 4, said
    assert (moves / "saved").read_bytes() == (stays / "saved").read_bytes()


def test_ranks_on_other_hosts_connect_to_one_that_moves(
    tmp_path: Path, three_hosts: tuple[str, ...]
) -> None:
    place = ("--nnodes", "2:3", *MOVES[2:])
    launched = start(
        tmp_path, CALLED, three_hosts, 1, place, (str(tmp_path), "dies", "02", "12", "21")
    )
    said = [launcher.communicate(timeout=HANGS_S) for launcher in launched]
    assert sorted(launcher.returncode for launcher in launched) == [-9, 0, 0], said
    took = [k for k, (_, errors) in enumerate(said) if "runs ranks of a lost host: 2" in errors]
    new = (*ADDRESSES, THIRD)[took[0]]
    told = "".join(output for output, _ in said).split("[rank 0] ")[1:]
    assert told[:2] == [f"{new}\n"] * 2, said
    assert told[2] != told[0]
