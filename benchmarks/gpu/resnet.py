"""Backward of ResNet-18 on a GPU, compared with PyTorch's, and the time of its Nodes.

Convolutions are in TF32, PyTorch's default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.gpu.measured import answer, is_small, seconds_of, synchronize, torch_or_none
from benchmarks.residual_network import resnet18

ROUNDS = 3


def main() -> None:
    """The same network in mpgrad, in this process, and in PyTorch."""
    mg.backends.cuda.matmul.allow_tf32 = True
    forward, backward = _seconds(mg, synchronize)
    said = f"{backward * 1e3:.1f} ms (forward {forward * 1e3:.1f} ms)"
    torch = torch_or_none()
    if torch is not None:
        their_forward, theirs = _seconds(torch, torch.cuda.synchronize)
        said += (
            f", PyTorch {theirs * 1e3:.1f} ms (forward {their_forward * 1e3:.1f} ms): "
            f"{theirs / backward:.0%} of its speed"
        )
    answer(said, text=_profile())


def _seconds(library: Any, wait: Callable[[], None]) -> tuple[float, float]:
    """The seconds of forward, and of backward alone."""
    step, forward = _step(library)
    forward_s = seconds_of(forward, rounds=ROUNDS, synchronize=wait)
    return forward_s, seconds_of(step, rounds=ROUNDS, synchronize=wait) - forward_s


def _step(library: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
    """A training step without the optimiser, and its forward."""
    images = (2, 3, 32, 32) if is_small() else (64, 3, 224, 224)
    network = resnet18(library, is_small=is_small()).to("cuda")
    random = np.random.default_rng(0)
    x = library.tensor(random.standard_normal(images, np.float32)).to("cuda")
    classes = library.tensor(random.integers(0, 10, images[0])).to("cuda")
    loss_of = library.nn.CrossEntropyLoss()

    def forward() -> Any:
        return loss_of(network(x), classes)

    def step() -> None:
        for parameter in network.parameters():
            parameter.grad = None
        forward().backward()

    return step, forward


def _profile() -> str:
    """The profile of one step, in a process that waits for its kernels: otherwise the host's clock
    would only show the time in which they are started."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.resnet", "--profile", *sys.argv[1:]],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
    )
    return found.stdout if found.returncode == 0 else found.stderr[-2000:]


def _profiled() -> None:
    mg.backends.cuda.matmul.allow_tf32 = True
    step, _ = _step(mg)
    step()
    with mg.profiler.profile() as profile:
        step()
    print(profile.key_averages().table(sort_by="cpu_time_total", row_limit=12))


if __name__ == "__main__":
    with mg.Engine("local"):
        _profiled() if "--profile" in sys.argv else main()
