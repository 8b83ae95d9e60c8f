"""Backward of a perceptron of 8 layers, 8192 wide, in TF32, compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpgrad as mg
from benchmarks.gpu.measured import answer, is_small, seconds_of, synchronize, torch_or_none

ROUNDS = 5


def main() -> None:
    """The same network in mpgrad (this process, and one GPU worker) and in PyTorch."""
    width, batch, depth = (32, 16, 8) if is_small() else (8192, 8192, 8)
    mg.backends.cuda.matmul.allow_tf32 = True
    with mg.Engine("local"):
        here = _backward_s(mg, width, batch, depth, synchronize)
    with mg.Engine("process", cpu_workers=1, gpus=[0]):
        worker = _backward_s(mg, width, batch, depth, synchronize)
    said = f"{here * 1e3:.1f} ms here, {worker * 1e3:.1f} ms in a worker"
    torch = torch_or_none()
    if torch is None:
        answer(f"{said}; PyTorch is not there to compare with")
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    theirs = _backward_s(torch, width, batch, depth, torch.cuda.synchronize)
    answer(
        f"{theirs / here:.0%} of PyTorch's speed ({said}, PyTorch {theirs * 1e3:.1f} ms; "
        f"in a worker {theirs / worker:.0%})"
    )


def _backward_s(
    library: Any, width: int, batch: int, depth: int, wait: Callable[[], None]
) -> float:
    weights = [
        (library.ones(width, width, device="cuda") / width).requires_grad_() for _ in range(depth)
    ]
    x = library.ones(batch, width, device="cuda")
    losses = []

    def forward() -> None:
        y = x
        for weight in weights:
            y = library.relu(y @ weight)
            weight.grad = None
        losses.append(y.mean())

    def forward_and_backward() -> None:
        forward()
        losses.pop().backward()

    def forward_alone() -> None:
        forward()
        losses.clear()

    both = seconds_of(forward_and_backward, rounds=ROUNDS, synchronize=wait)
    return both - seconds_of(forward_alone, rounds=ROUNDS, synchronize=wait)


if __name__ == "__main__":
    main()
