"""DistributedDataParallel: the bits of one process, unused parameters, lost ranks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.data import DistributedSampler
from mpgrad.distributed.grad_bucket import buckets
from tests.distributed.ranks import run_ranks
from tests.leftovers import Leftovers, left_since

#: A model, its data, and the training of one process that runs the parts of all ranks.
TRAINING = """
import sys
import numpy as np
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.nn.functional import cross_entropy
from mpgrad.nn.parallel import DistributedDataParallel

STEPS, RANKS = 4, 4

def new_model(seed):
    mg.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 30), nn.Tanh(),
        nn.Linear(30, 10),
    )

def batches():
    numbers = np.random.default_rng(1)
    for _ in range(STEPS):
        x = numbers.standard_normal((RANKS, 8, 20)).astype("f4")
        yield mg.from_numpy(x), mg.from_numpy(numbers.integers(0, 10, (RANKS, 8)))

def train_alone(model, passes=1):
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(batches()):
        buffers = [b.clone() for b in model.buffers()]
        parts = []
        for rank in reversed(range(RANKS)):
            for buffer, before in zip(model.buffers(), buffers):
                buffer.copy_(before)
            model.zero_grad()
            for _ in range(passes):
                cross_entropy(model(x[rank]), y[rank]).backward()
            parts.append([p.grad.clone() for p in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *reversed(parts)):
            parameter.grad = dist.tree_sum(gradients) / RANKS
        optimizer.step()

def bits(model):
    return [t.detach().numpy().tobytes() for t in (*model.parameters(), *model.buffers())]

def train(model, passes=1, before_step=lambda step: None):
    rank = dist.get_rank()
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        before_step(step)
        with model.no_sync():
            for _ in range(passes - 1):
                cross_entropy(model(x[rank]), y[rank]).backward()
        cross_entropy(model(x[rank]), y[rank]).backward()
        optimizer.step()

dist.init_process_group()
rank = dist.get_rank()
"""

SAME_BITS = (
    TRAINING
    + """
alone = new_model(0)
train_alone(alone)
for megabytes in (25, 0.004):
    model = DistributedDataParallel(new_model(rank), bucket_cap_mb=megabytes)
    buckets = len(model.reducer._buckets)
    train(model)
    print(buckets, bits(model.module)[:6] == bits(alone)[:6])
twice = new_model(0)
train_alone(twice, passes=2)
model = DistributedDataParallel(new_model(rank), forward_sync_buffers=False)
train(model, passes=2)
print(bits(model.module)[:6] == bits(twice)[:6])
"""
)

UNUSED = """
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.nn.parallel import DistributedDataParallel

class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.one, self.none = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x, takes_one):
        x = self.both(x)
        return self.one(x) if takes_one else x

dist.init_process_group()
rank, x = dist.get_rank(), mg.ones(1, 2)
model = DistributedDataParallel(Choice(), find_unused_parameters=True)
for _ in range(2):
    model.zero_grad()
    model(x, rank == 0).sum().backward()
    print(*[p.grad is not None for p in model.parameters()])
print(model.module.one.bias.grad.tolist())
model = DistributedDataParallel(Choice())
model(x, True).sum().backward()
try:
    model(x, True)
except RuntimeError as error:
    print(error)
try:
    DistributedDataParallel(nn.Linear(2, 2 + rank))
except RuntimeError as error:
    print(error)
try:
    DistributedDataParallel(nn.ReLU())
except RuntimeError as error:
    print(error)
"""

KILLED = (
    TRAINING
    + """
import os, signal, time

def die(step):
    if step == 2 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

model = DistributedDataParallel(new_model(0), forward_sync_buffers=False)
before = None
try:
    train(model, before_step=die)
except mg.errors.HostLost as error:
    print(error.rank, [p.grad is None for p in model.parameters()] == [True] * 8)
    print(error)
    sys.exit(3)
"""
)


@pytest.mark.process
@pytest.mark.slow
def test_four_ranks_give_the_bits_of_one_process(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, SAME_BITS, 4)
    assert ran.code == 0, ran.errors
    assert ran.lines == {rank: ["1 True", "2 True", "True"] for rank in range(4)}


@pytest.mark.process
@pytest.mark.slow
def test_unused_parameters_and_models_that_differ(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, UNUSED, 2)
    assert ran.code == 0, ran.errors
    for rank in range(2):
        *used, gradient, unfinished, _, names, differ, nothing = ran.lines[rank]
        assert used == ["True True True True False False"] * 2
        assert gradient == "[0.5, 0.5]"
        assert unfinished.startswith("Expected to have finished reduction in the prior iteration")
        assert names.endswith(f"grad for rank {rank}: none.weight, none.bias")
        assert differ.startswith("DDP expects same model across all ranks")
        assert "DistributedDataParallel is not needed" in nothing


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_rank_is_named_by_all_others_and_nothing_is_left(tmp_path: Path) -> None:
    before = Leftovers.now()
    ran = run_ranks(tmp_path, KILLED, 4)
    assert ran.code == 128 + signal.SIGKILL, ran.errors
    assert sorted(ran.lines) == [0, 2, 3]
    for lines in ran.lines.values():
        assert lines[0] == "1 True"
        assert "rank 1 is lost" in lines[1]
    assert "rank 1 (process " in ran.errors
    assert not left_since(before)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_stopped_rank_is_named_by_all_others_and_nothing_is_left(tmp_path: Path) -> None:
    before = Leftovers.now()
    ran = run_ranks(tmp_path, KILLED.replace("SIGKILL", "SIGSTOP"), 4)
    assert ran.code == 3, ran.errors
    for rank in (0, 2, 3):
        assert ran.lines[rank][0] == "1 True"
    assert "rank 1 (process " in ran.errors
    assert "ended with signal SIGTERM" in ran.errors
    assert not left_since(before)


# ---------------------------------------------------------------------------- in one process


def test_buckets_begin_with_the_last_parameters() -> None:
    mib = 1024 * 1024
    sizes = (mib, 100, mib, mib // 2, 10)  # in float32: four bytes each
    parameters = [mg.zeros(size) for size in sizes]
    parameters[1] = mg.zeros(100, dtype=mg.float64)
    assert buckets(parameters, 8 * mib) == [[4, 3], [2, 0], [1]]


def test_a_sampler_gives_each_rank_its_part() -> None:
    parts = [list(DistributedSampler(range(10), 3, k, shuffle=False)) for k in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    short = [list(DistributedSampler(range(10), 3, k, drop_last=True)) for k in range(3)]
    assert [len(part) for part in short] == [3, 3, 3]
    assert len({index for part in short for index in part}) == 9
    sampler = DistributedSampler(range(100), 2, 0, seed=3)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert first != list(sampler)
    with pytest.raises(
        ValueError, match=r"Invalid rank 3, rank should be in the interval \[0, 2\]"
    ):
        DistributedSampler(range(10), 3, 3)
