"""Backward of ResNet-18 on a GPU beside PyTorch's, and which Nodes take the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.gpu.measured import answer, is_small, seconds_of, synchronize, torch_or_none
from benchmarks.residual_network import resnet18

ROUNDS = 3


def main() -> None:
    """A training step of each, without the optimiser."""
    images = (2, 3, 32, 32) if is_small() else (64, 3, 224, 224)
    with mg.Engine("local"):
        step, backward_s = _step(mg, images, synchronize)
        with mg.profiler.profile() as profile:
            step()
    table = profile.key_averages().table(sort_by="cpu_time_total", row_limit=12)
    torch = torch_or_none()
    said = f"{backward_s * 1e3:.1f} ms"
    if torch is not None:
        _, theirs = _step(torch, images, torch.cuda.synchronize)
        said += f", PyTorch {theirs * 1e3:.1f} ms: {theirs / backward_s:.0%} of its speed"
    answer(said, text=table)


def _step(
    library: Any, images: tuple[int, ...], wait: Callable[[], None]
) -> tuple[Callable[[], Any], float]:
    """A step, and how long its forward and backward take together."""
    network = resnet18(library, is_small=images[-1] == 32).to("cuda")
    random = np.random.default_rng(0)
    x = library.tensor(random.standard_normal(images, np.float32)).to("cuda")
    classes = library.tensor(random.integers(0, 10, images[0])).to("cuda")
    loss_of = library.nn.CrossEntropyLoss()

    def step() -> None:
        for parameter in network.parameters():
            parameter.grad = None
        loss_of(network(x), classes).backward()
        wait()

    return step, seconds_of(step, rounds=ROUNDS, synchronize=wait)


if __name__ == "__main__":
    main()
