"""Collectives of real processes: their values, bits, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.base import machine
from mpgrad.distributed.group_key import group_key
from tests.distributed.ranks import run_ranks

#: Prints a line for each thing that is right; an assertion names what is not.
COLLECTIVES = """
import numpy as np
import mpgrad as mg
import mpgrad.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
mine = mg.arange(6, dtype=mg.float64).reshape(2, 3) + 10 * rank
all_of = [mg.arange(6, dtype=mg.float64).reshape(2, 3) + 10 * k for k in range(ranks)]

for op, expected in {
    "SUM": sum(all_of), "AVG": sum(all_of) / ranks, "MIN": all_of[0], "MAX": all_of[-1],
    "PRODUCT": np.prod([t.numpy() for t in all_of], axis=0),
}.items():
    x = mine.clone()
    assert dist.all_reduce(x, dist.ReduceOp[op]) is None
    assert np.array_equal(x, expected), op

x = mine.T.clone().T  # another layout
work = dist.all_reduce(x, async_op=True)
assert work.wait() and work.is_completed() and work.is_success()
assert np.array_equal(x, sum(all_of))

x = mine.clone()
dist.reduce(x, 1)
assert np.array_equal(x, sum(all_of) if rank == 1 else mine)
x = mine.clone()
dist.broadcast(x, 2)
assert np.array_equal(x, all_of[2])
parts = [mg.zeros(2, 3, dtype=mg.float64) for _ in range(ranks)]
dist.all_gather(parts, mine)
assert all(np.array_equal(a, b) for a, b in zip(parts, all_of))
whole = mg.zeros(2 * ranks, 3, dtype=mg.float64)
dist.all_gather_into_tensor(whole, mine)
assert np.array_equal(whole, np.concatenate([t.numpy() for t in all_of]))
parts = [mg.zeros(2, 3, dtype=mg.float64) for _ in range(ranks)]
dist.gather(mine, parts if rank == 0 else None, 0)
assert rank or all(np.array_equal(a, b) for a, b in zip(parts, all_of))
x = mg.zeros(2, 3, dtype=mg.float64)
dist.scatter(x, all_of if rank == 1 else None, 1)
assert np.array_equal(x, mine)
dist.all_to_all(parts, [mine + k for k in range(ranks)])
assert all(np.array_equal(part, all_of[k] + rank) for k, part in enumerate(parts))
x = mg.zeros(ranks, 3)
dist.all_to_all_single(x, mg.full((ranks, 3), float(rank)))
assert np.array_equal(x, np.repeat(np.arange(ranks), 3).reshape(ranks, 3))

def noise(k):
    return mg.from_numpy(np.random.default_rng(k).standard_normal((ranks, 5)).astype("f4"))

x = noise(rank)
dist.all_reduce(x)
expected = dist.tree_sum([noise(k) for k in range(ranks)])
assert x.numpy().tobytes() == expected.numpy().tobytes()
y = mg.zeros(5)
dist.reduce_scatter_tensor(y, noise(rank))
assert y.numpy().tobytes() == expected[rank].numpy().tobytes()
y = mg.zeros(5)
dist.reduce_scatter(y, list(noise(rank)))
assert y.numpy().tobytes() == expected[rank].numpy().tobytes()

group = dist.new_group([0, 2])
assert dist.get_rank(group) == {0: 0, 2: 1}.get(rank, -1)
assert dist.get_world_size(group) == (2 if rank in (0, 2) else -1)
x = mine.clone()
dist.all_reduce(x, group=group)
assert np.array_equal(x, all_of[0] + all_of[2] if rank in (0, 2) else mine)

if rank == 0:
    dist.send(mine, 2, tag=7)
    dist.isend(mine + 1, 2).wait()
if rank == 2:
    x, y = mine.clone(), mine.clone()
    assert dist.recv(x, 0) == 0
    dist.irecv(y, 0, tag=7).wait()
    assert np.array_equal(x, all_of[0] + 1) and np.array_equal(y, all_of[0])

big = mg.full((3_000_000,), 1.0 + rank)  # several frames
dist.all_reduce(big)
assert big.min() == big.max() == ranks * (ranks + 1) / 2
big = mg.full((3_000_000,), 1.0 + rank)
dist.broadcast(big, 1)
assert big.min() == big.max() == 2.0
if rank == 0:
    dist.isend(big, 1)
    big.fill_(3.0)  # what was sent does not change
    dist.isend(big[:0], 1)
    dist.send(big, 1)
if rank == 1:
    parts = mg.zeros(3_000_000, 2)
    dist.recv(parts[:, 0], 0)  # not in one piece
    dist.recv(big[:0], 0)
    dist.recv(big, 0)
    assert parts[:, 0].min() == parts[:, 0].max() == 2.0 and parts[:, 1].max() == 0.0
    assert big.min() == big.max() == 3.0
dist.barrier()
print("all right", dist.get_backend(), dist.is_initialized())
dist.destroy_process_group()
print(dist.is_initialized())
"""

DIFFERENT = """
import mpgrad as mg
import mpgrad.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
try:
    if rank == 2:
        dist.broadcast(mg.ones(4), 0)
    else:
        dist.all_reduce(mg.ones(5))
except RuntimeError as error:
    print(error)
try:
    dist.barrier()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.process
@pytest.mark.slow
def test_what_collectives_give(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, COLLECTIVES, 3)
    assert ran.code == 0, ran.errors
    assert ran.lines == {rank: ["all right lanes True", "False"] for rank in range(3)}
    assert ran.errors == ""


@pytest.mark.process
@pytest.mark.slow
def test_ranks_that_do_different_things_are_told_so(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, DIFFERENT, 3)
    assert ran.code == 0, ran.errors
    for rank in range(3):
        first, second = ran.lines[rank]
        assert "broadcast from 0 of 4 float32" in first
        assert "in all_reduce sum of 5 float32" in first
        assert second.startswith("barrier: ")
        assert "all ranks have to call the same collectives in the same order" in second


def test_without_a_group() -> None:
    assert dist.is_available()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.get_rank()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.all_reduce(mg.ones(1))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "smoke"}, "Unknown backend 'smoke'"),
        ({"init_method": "file:///tmp/x"}, "only env:// and tcp://host:port are here"),
        ({"init_method": "tcp://localhost:1", "rank": 0}, "world_size parameter missing"),
        ({"init_method": "tcp://localhost:1", "world_size": 2}, "rank parameter missing"),
        ({"init_method": "tcp://localhost", "rank": 0, "world_size": 2}, "tcp://host:port"),
        (
            {"init_method": "tcp://localhost:1", "rank": 2, "world_size": 2},
            "rank 2 is not below the world size, 2",
        ),
        ({}, "environment variable RANK expected, but not set; `mpgrad run"),
        (
            {"init_method": "tcp://192.0.2.1:1", "rank": 0, "world_size": 1},
            "MPGRAD_GROUP_KEY_FILE to a file of at least 16 random bytes",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    arguments: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MPGRAD_GROUP_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        dist.init_process_group(**arguments)
    assert text in str(caught.value)


def test_the_key_of_a_user_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPGRAD_GROUP_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert group_key(encrypt=True, host="localhost") == group_key(encrypt=True, host="127.0.0.1")
    file = tmp_path / "mpgrad" / "group-key"
    assert len(file.read_bytes()) == 32
    file.chmod(0o640)
    with pytest.raises(ValueError, match=r"group-key' is not this user's alone: remove it"):
        group_key(encrypt=True, host="localhost")
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    with pytest.raises(ValueError, match="cannot be kept in '/proc/none/mpgrad/group-key'"):
        group_key(encrypt=True, host="localhost")


def test_a_key_is_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(b"short")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("MPGRAD_GROUP_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ValueError, match="has 5 bytes; a key has at least 16"):
        dist.init_process_group("lanes", "tcp://localhost:1", rank=0, world_size=1)


def test_the_sum_of_a_tree() -> None:
    parts = [mg.tensor([1e8]), mg.tensor([1.0]), mg.tensor([-1e8]), mg.tensor([1.0])]
    assert dist.tree_sum(parts).item() == 0.0
    assert dist.tree_sum(parts[:1]).item() == 1e8


DIFFERS = """
import os, sys
assert "numpy" not in sys.modules
if os.environ["RANK"] == "1":
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy
numpy.__version__ += os.environ["RANK"].replace("0", "")
import mpgrad.distributed as dist
dist.init_process_group()
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.slow
def test_ranks_that_compute_otherwise_are_named_in_one_line(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, DIFFERS, 2)
    assert ran.code == 0, ran.errors
    (line,) = ran.errors.splitlines()
    version = np.__version__
    text = "[rank 0] mpgrad: bits may differ between ranks: the NumPy of rank 1 is "
    assert line.startswith(f"{text}{version}1, but that of rank 0 {version}"), line
    if machine.available_cpus() > 1:
        assert "the number of BLAS threads of rank 1 is 2, but that of rank 0 1" in line
    ran = run_ranks(tmp_path, "import mpgrad.distributed as d\nd.init_process_group()", 2)
    assert (ran.code, ran.errors) == (0, "")
