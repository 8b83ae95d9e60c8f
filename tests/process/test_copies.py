"""What workers copy: results are born where they are published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn

pytestmark = pytest.mark.process


class Residual(nn.Module):
    """Two convolutions and a sum, whose gradient flows two ways."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        """Same shape."""
        inner = self.norm(self.second(mg.relu(self.first(x))))
        return mg.relu(inner + x)


def draw(*shape: int) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def copied_share(engine: mg.Engine, model: Any, x: mg.Tensor, expected: Any) -> float:
    """Bytes that a backward copied, as a share of the bytes that it handed over."""
    before = engine.statistics()
    loss = nn.functional.mse_loss(model(x), expected)
    loss.backward()
    after = engine.statistics()
    assert after.backwards_process == before.backwards_process + 1
    handed = after.handed_bytes - before.handed_bytes
    return (after.copied_bytes - before.copied_bytes) / handed


def test_next_to_nothing_is_copied_for_a_chain_of_layers(engine: mg.Engine) -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    x = draw(128, 256)
    assert copied_share(engine, nn.Sequential(*layers), x, x) < 0.01


def test_a_gradient_that_flows_two_ways_is_copied_once(engine: mg.Engine) -> None:
    model = nn.Sequential(Residual(16), Residual(16))
    x = draw(8, 16, 24, 24)
    twice = 2 * x.detach().numpy().nbytes
    before = engine.statistics().copied_bytes
    copied_share(engine, model, x, x)
    assert engine.statistics().copied_bytes - before <= twice + 4096
