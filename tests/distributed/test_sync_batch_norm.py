"""SyncBatchNorm: two ranks with a part of a batch each do what one process does with all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.distributed.ranks import run_ranks

PARTS = """
import copy
import numpy as np
import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn

draws = np.random.default_rng(0)
images, factors = draws.standard_normal((2, 5, 3, 4, 2))
alone = nn.Sequential(nn.BatchNorm2d(3, dtype=mg.float64))
with mg.no_grad():
    for parameter in alone.parameters():
        parameter.copy_(mg.tensor(draws.standard_normal(3)))

dist.init_process_group()
mine = (slice(0, 1), slice(1, 5))[dist.get_rank()]

def trained(layers, rows):
    x = mg.tensor(images[rows], requires_grad=True)
    out = layers(x)
    (out * mg.tensor(factors[rows])).square().sum().backward()
    return out.detach().numpy(), x.grad.numpy()

for mode in ("local", "process"):
    with mg.Engine(mode):
        whole, synced = copy.deepcopy(alone), copy.deepcopy(alone)
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(synced)
        for all_rows, part in zip(trained(whole, slice(None)), trained(synced, mine), strict=True):
            np.testing.assert_allclose(part, all_rows[mine], rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(synced.parameters(), whole.parameters(), strict=True):
            dist.all_reduce(ours.grad)
            np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-9)
        for ours, theirs in zip(synced.buffers(), whole.buffers(), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)
    print(mode)
try:
    nn.SyncBatchNorm(3)(mg.ones(1 if dist.get_rank() else 0, 3))
except ValueError as error:
    print(error)
"""


@pytest.mark.process
@pytest.mark.slow
def test_two_ranks_do_what_one_process_does_with_the_whole_batch(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, PARTS, 2)
    assert ran.code == 0, ran.errors
    one_value = "Expected more than 1 value per channel when training, on all ranks"
    assert ran.lines == {rank: ["local", "process", one_value] for rank in range(2)}


def test_without_a_group_it_is_batch_norm() -> None:
    x = mg.tensor(np.random.default_rng(0).standard_normal((4, 3)))
    plain, synced = nn.BatchNorm1d(3).double(), nn.SyncBatchNorm(3).double()
    for _ in range(2):
        assert synced(x).detach().numpy().tobytes() == plain(x).detach().numpy().tobytes()
        plain.eval(), synced.eval()
    with pytest.raises(ValueError, match="expected at least 2D input"):
        synced(x[0])


def test_conversion_keeps_all_but_the_kind() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3, 0.1, None, bias=False)))
    old = model[1][0].eval()
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    new = converted[1][0]
    assert converted is model
    assert type(new) is nn.SyncBatchNorm
    assert (new.eps, new.momentum, new.training, new.bias) == (0.1, None, False, None)
    assert new.weight is old.weight
    assert new.running_var is old.running_var
    instance = nn.InstanceNorm1d(2)
    assert nn.SyncBatchNorm.convert_sync_batchnorm(instance) is instance
    untracked = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    assert not nn.SyncBatchNorm.convert_sync_batchnorm(untracked).state_dict()
