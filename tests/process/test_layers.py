"""Recurrent layers, attention and convolutions: gradients in workers have the bits of `local`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn

pytestmark = pytest.mark.process

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), (5, 2, 3)),
    "GRU": (lambda: nn.GRU(3, 4), (5, 2, 3)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), (3, 2, 4)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.Mish(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(4, 2, 2, stride=2),
            nn.Upsample(scale_factor=1.5, mode="bilinear"),
        ),
        (2, 2, 6, 6),
    ),
}


def _gradients(name: str, mode: str) -> dict[str, bytes]:
    make, shape = MODELS[name]
    mg.manual_seed(0)
    model, x = make(), mg.randn(*shape)
    inputs: tuple[Any, ...] = (x, x, x) if name == "attention" else (x,)
    with mg.Engine(mode, cpu_workers=1):
        result = model(*inputs)
        out = result[0] if isinstance(result, tuple) else result
        (out * out).sum().backward()
    grads = {key: p.grad for key, p in model.named_parameters()}
    assert all(grad is not None for grad in grads.values())
    return {key: grad.numpy().tobytes() for key, grad in grads.items() if grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_workers_have_the_bits_of_local(name: str) -> None:
    assert _gradients(name, "process") == _gradients(name, "local")
