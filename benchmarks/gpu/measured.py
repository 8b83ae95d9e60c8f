"""The common parts of the GPU benchmarks: their option, their timing, their output."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from mpgrad.arrays.cuda.cuda_driver import driver


def is_small() -> bool:
    """Whether it is a rehearsal, in which any size will do."""
    return "--small" in sys.argv


def seconds_of(run: Callable[[], Any], *, rounds: int, synchronize: Callable[[], None]) -> float:
    """The median of ``rounds`` runs, after one more, each until the GPU has finished."""
    run()
    synchronize()
    found = []
    for _ in range(1 if is_small() else rounds):
        started = time.perf_counter()
        run()
        synchronize()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def synchronize() -> None:
    """Wait until the GPU has done all work of this process."""
    driver().synchronize()


def torch_or_none() -> Any:
    """PyTorch with a GPU, if it is installed."""
    if driver().name == "fake":
        return None  # importing it takes longer than the rest of a rehearsal
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def answer(summary: str, **figures: Any) -> None:
    """Print the result, which must be the last line."""
    print(json.dumps({"summary": summary, **figures}))
