"""A training that is killed in the middle of an epoch, and goes on, ends with the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

#: Writes its state after each step, and goes on from the one that it finds.
PROGRAM = """
import os, signal, sys
import mpgrad as mg
from mpgrad import nn, optim
from mpgrad.utils.data import DataLoader, TensorDataset

path, kind, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
mg.manual_seed(0)
data = TensorDataset(mg.randn(24, 3), mg.randn(24, 1))
model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = getattr(optim, kind)(model.parameters(), lr=0.01)
schedules = optim.lr_scheduler
scheduler = schedules.SequentialLR(
    optimizer, [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 2)], [1]
)
order = mg.Generator().manual_seed(3)
epoch = done = 0
if os.path.exists(path):
    state = mg.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    order.set_state(state["order"])
    epoch, done = state["epoch"], state["done"]
    mg.set_rng_state(state["draws"])
steps = 0
while epoch < 3:
    began = order.get_state()
    for k, (x, y) in enumerate(DataLoader(data, 4, shuffle=True, generator=order)):
        if k < done:
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        steps += 1
        state = {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(), "order": began, "draws": mg.get_rng_state(),
            "epoch": epoch, "done": k + 1,
        }
        mg.save(state, path)
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
    epoch, done = epoch + 1, 0
    scheduler.step()
"""


@pytest.mark.parametrize(
    ("kind", "engine"), [("Adam", "process"), ("Rprop", "local"), ("SGD", "process")]
)
def test_a_killed_training_ends_with_the_same_bytes(
    kind: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPGRAD_ENGINE", engine)
    whole, broken = tmp_path / "whole.mg", tmp_path / "broken.mg"
    assert _trained(whole, kind, 0) == 0
    assert _trained(broken, kind, 8) == -signal.SIGKILL
    assert _trained(broken, kind, 3) == -signal.SIGKILL
    assert _trained(broken, kind, 0) == 0
    assert whole.read_bytes() == broken.read_bytes()
    assert sorted(tmp_path.iterdir()) == [broken, whole]


def _trained(path: Path, kind: str, last: int) -> int:
    """The exit status; a run kills itself after ``last`` steps (0: never)."""
    return subprocess.run([sys.executable, "-c", PROGRAM, str(path), kind, str(last)]).returncode
