"""What workers copy: results are born where they are published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.backends.cpu import CpuBackend
from mpgrad.graph.registry import OPERATORS

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


def biased(x: mg.Tensor, weights: list[mg.Tensor], bias: mg.Tensor) -> mg.Tensor:
    """Layers whose gradient passes through a sum on its way to a product that shares it."""
    for weight in weights:
        x = mg.relu(x @ weight + bias)
    return x.mean()


@pytest.mark.parametrize("bias_shape", [(1024,), (256, 1024)], ids=["row", "matrix"])
def test_what_a_sum_passes_on_is_not_copied(bias_shape: tuple[int, ...]) -> None:
    x, leaves = draw(256, 1024), [(draw(1024, 1024) / 32).detach() for _ in range(3)]
    leaves.append(draw(*bias_shape))
    for leaf in leaves:
        leaf.requires_grad = True

    def gradients() -> list[bytes]:
        for leaf in leaves:
            leaf.grad = None
        biased(x, leaves[:-1], leaves[-1]).backward()
        return [leaf.grad.numpy().tobytes() for leaf in leaves if leaf.grad is not None]

    with mg.Engine("local"):
        expected = gradients()
    with mg.Engine("process", cpu_workers=2) as engine:
        for _ in range(3):
            assert gradients() == expected
        tasks = sum(engine.statistics().tasks.values())
        assert tasks > 3  # the products' weights have tasks of their own
        if len(bias_shape) == 1:
            assert engine.statistics().copied_bytes <= 3 * 4096


def test_sums_pass_on_the_very_gradient() -> None:
    grad = np.ones((3, 4), np.float32)
    for name in [name for name, known in OPERATORS.items() if known.passes_on]:
        shapes = {"a_shape": grad.shape, "b_shape": grad.shape}
        given = OPERATORS[name].backward(CpuBackend(np.empty), [grad], shapes, (True, True))
        assert all(gradient is grad for gradient in given)
