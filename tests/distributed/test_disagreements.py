"""Ranks that do not mean the same are told so, and a key that others know is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpgrad.distributed.group_key import group_key
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.process

ROOTS = """
import os, sys
import mpgrad as mg
import mpgrad.distributed as dist
dist.init_process_group()
rank, ranks, kind = dist.get_rank(), dist.get_world_size(), sys.argv[1]
t = mg.ones(3) * (rank + 1)
parts = [mg.ones(3)] * ranks
try:
    {
        "broadcast": lambda: dist.broadcast(t, src=rank),
        "two roots": lambda: dist.broadcast(t, src=rank % 2),
        "reduce": lambda: dist.reduce(t, dst=rank),
        "scatter": lambda: dist.scatter(t, parts, src=rank),
        "objects": lambda: dist.broadcast_object_list([rank], src=rank),
    }[kind]()
except RuntimeError as error:
    print("error", "but rank" in str(error))
else:
    print("no error", t.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["broadcast", "two roots", "reduce", "scatter", "objects"])
def test_ranks_that_name_different_roots(tmp_path: Path, kind: str) -> None:
    ranks = 3 if kind == "two roots" else 2
    ran = run_ranks(tmp_path, ROOTS, ranks, script_arguments=[kind])
    # Rank 2 of three agrees with rank 0, and may have got its elements before the others disagree.
    disagree = [0, 1] if kind == "two roots" else range(ranks)
    assert [ran.lines[rank] for rank in disagree] == [["error True"]] * len(disagree), ran.errors


ROUND = """
import mpgrad as mg
import mpgrad.distributed as dist
dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
for root in range(ranks):
    t = mg.ones(3) * (rank + 1)
    dist.broadcast(t, src=root)
    part = mg.zeros(2)
    dist.scatter(part, [mg.ones(2) * k for k in range(ranks)] if rank == root else None, src=root)
    total = mg.ones(1) * (rank + 1)
    dist.reduce(total, dst=root)
    found = [rank]
    dist.broadcast_object_list(found, src=root)
    work = dist.broadcast(later := mg.ones(1) * rank, src=root, async_op=True)
    work.wait()
    wanted = ranks * (ranks + 1) / 2 if rank == root else rank + 1
    assert (t.tolist(), part.tolist(), found) == ([root + 1] * 3, [rank] * 2, [root])
    assert (total.item(), later.item()) == (wanted, root)
print("done")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_rank_may_be_the_root(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, ROUND, 3)
    assert ran.lines == {rank: ["done"] for rank in range(3)}, ran.errors


CAUGHT = """
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.nn.parallel import DistributedDataParallel
dist.init_process_group()
rank = dist.get_rank()
model = DistributedDataParallel(mg.nn.Linear(1, 1, bias=False))

class Raises(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach() * 1

    @staticmethod
    def backward(ctx, grad):
        if rank == 1:
            raise ValueError("only here")
        return grad

loss = Raises.apply(model(mg.ones(1, 1))).sum()
try:
    loss.backward()
    print("no error")
except ValueError:
    metric = mg.ones(1) * 100  # of the size of the gradient
    try:
        dist.all_reduce(metric)
        print("taken for a gradient", metric.tolist())
    except RuntimeError as error:
        print("gradients of bucket 0" in str(error))
except RuntimeError as error:
    print("gradients of bucket 0" in str(error))
"""


@pytest.mark.slow
def test_a_collective_after_an_exception_in_one_backward(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, CAUGHT, 2)
    assert ran.lines == {0: ["True"], 1: ["True"]}, ran.errors


FORKS = """
import os
import mpgrad.distributed.rpc as rpc
rank = int(os.environ["RANK"])
rpc.init_rpc(f"w{rank}")
if rank == 0:
    pid = os.fork()
    if pid == 0:
        try:
            rpc.rpc_sync("w1", max, args=(1, 2), timeout=3)
        except RuntimeError as error:
            os.write(1, f"{str(error)[:28]}\\n".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(rpc.rpc_sync("w1", max, args=(1, 2)))
rpc.shutdown()
"""


@pytest.mark.slow
def test_a_remote_call_in_a_forked_child(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, FORKS, 2)
    assert ran.lines == {0: ["RPC has not been initialized", "2"]}, ran.errors


def test_a_key_file_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    monkeypatch.setenv("MPGRAD_GROUP_KEY_FILE", str(path))
    for mode in (0o644, 0o640, 0o602, 0o606):
        path.chmod(mode)
        with pytest.raises(ValueError, match=f"mode {mode:04o}.*chmod 600"):
            group_key(encrypt=True)
    for mode in (0o600, 0o400):
        path.chmod(mode)
        assert len(group_key(encrypt=True)) == 32
    descriptor = os.memfd_create("key")  # as `mpgrad run` gives it
    os.write(descriptor, b"k" * 32)
    monkeypatch.setenv("MPGRAD_GROUP_KEY_FILE", f"/proc/self/fd/{descriptor}")
    assert len(group_key(encrypt=True)) == 32
    os.close(descriptor)
