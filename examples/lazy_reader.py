"""A reader that loads its files lazily, each behind a Function: what it may keep, and where.

The derivative needs the samples again. mpgrad cannot see whether a file changes between forward and
backward, so a Function that reads one would run in this process, and one line would say so.
`run_on = "worker"` is the promise that it does not: each worker reads what it needs, by the path on
ctx.

python examples/lazy_reader.py [samples per file]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000


def samples_of(path: str) -> Any:
    """The samples of a file; nothing is read before they are used."""
    return np.load(path, mmap_mode="r")


class Correlate(mg.Function):
    """The mean of a filter's response to a file's samples."""

    run_on = "worker"  # nobody changes the files

    @staticmethod
    def forward(ctx: Any, taps: mg.Tensor, path: str) -> Any:
        ctx.path = path
        return np.convolve(samples_of(path), taps.numpy(), mode="valid").mean()

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[mg.Tensor, None]:
        samples = samples_of(ctx.path)
        count = samples.size - TAPS + 1
        slopes = [samples[TAPS - 1 - k : TAPS - 1 - k + count].mean() for k in range(TAPS)]
        return grad * np.array(slopes), None


TAPS = 16

with tempfile.TemporaryDirectory() as folder:
    paths = [str(Path(folder) / f"part{k}.npy") for k in range(8)]
    for k, path in enumerate(paths):
        np.save(path, np.random.default_rng(k).normal(1.0, 0.1, SAMPLES))
    taps = mg.zeros(TAPS, dtype=mg.float64, requires_grad=True)
    with mg.Engine(mode="process", cpu_workers=2) as engine:
        loss = mg.stack([Correlate.apply(taps, path) for path in paths]).sum()
        explained = engine.explain(loss)
        loss.backward()
    places = {node.where for node in explained.nodes if node.name == "CorrelateBackward"}
    print(f"{len(paths)} files, read by: {', '.join(places)}")
    assert taps.grad is not None
    print(f"gradient {taps.grad.mean().item():.2f} for each tap")
