"""``python -m benchmarks.hosts.cluster_calls [NODES]``: calls on the hosts of a Ray cluster.

64 items of 20 ms forward and 20 ms backward run in an engine of two workers, on a cluster whose
nodes have two workers each, and in bare Ray actors that compute the gradients by hand. All share
this machine's cores: the processor time counts, of all processes of both, Ray's included.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.hosts.ray_calls import two_nodes

ITEMS, PASS_S, ROUNDS, CALLS = 64, 0.02, 5, 300
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def work() -> None:
    """Use a processor for one pass of one item."""
    started = time.thread_time()
    while time.thread_time() - started < PASS_S:
        pass


class Simulate(mg.Function):
    """An item in mpgrad."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        work()
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        work()
        return grad * 2


def loss_of(x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
    return (Simulate.apply(x) * w).sum()


def step_of_mpgrad() -> None:
    w = mg.randn(8, 8).requires_grad_()
    items = [mg.randn(8, 8).requires_grad_() for _ in range(ITEMS)]
    losses = mg.parallel_map(loss_of, items, shared=(w,))
    sum(losses).backward()


class Simulator:
    """An item in a bare Ray actor: the caller says which actor has which item."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}

    def forward(self, item: int, x: Any, w: Any) -> float:
        work()
        self._kept[item] = x * 2, w
        return float((x * 2 * w).sum())

    def backward(self, item: int, grad: float) -> Any:
        work()
        doubled, w = self._kept.pop(item)
        return grad * doubled, grad * w * 2

    def nothing(self, x: Any) -> Any:
        return x


def step_of_actors(actors: Sequence[Any]) -> None:
    import ray

    w = ray.put(np.random.randn(8, 8))
    items = [np.random.randn(8, 8) for _ in range(ITEMS)]
    of = [actors[k % len(actors)] for k in range(ITEMS)]
    losses = ray.get([of[k].forward.remote(k, x, w) for k, x in enumerate(items)])
    assert len(losses) == ITEMS
    grads = ray.get([of[k].backward.remote(k, 1.0) for k in range(ITEMS)])
    sum([of_w for of_w, _ in grads])


def processor_s() -> float:
    """What all processes of this program and of the cluster have used so far (s)."""
    mark, total = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}".encode(), 0
    for entry in Path("/proc").iterdir():
        try:
            is_ours = int(entry.name) == os.getpid() or mark in (entry / "environ").read_bytes()
            if is_ours:
                found = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
                total += sum(map(int, found[11:15]))
        except (OSError, ValueError):
            continue
    return total * TICK_S


def measured(step: Callable[[], None]) -> tuple[float, float]:
    """The seconds that a step takes, and those of processors."""
    step()
    started, before = time.perf_counter(), processor_s()
    step()
    return time.perf_counter() - started, processor_s() - before


def call_us(call: Callable[[], Any]) -> float:
    """The median of a call (us)."""
    found = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return statistics.median(found[20:]) * 1e6


def main() -> None:
    import ray

    nodes = int(sys.argv[1]) if sys.argv[1:] else 2
    steps: dict[str, list[tuple[float, float]]] = {}
    calls: dict[str, list[float]] = {}
    one, x = mg.ones(1), np.ones(1)

    def measure(name: str, step: Callable[[], None], call: Callable[[], Any]) -> None:
        steps.setdefault(name, []).append(measured(step))
        calls.setdefault(name, []).append(call_us(call))

    with two_nodes(nodes) as cluster:
        for _ in range(ROUNDS):
            engines = mg.Engine("process", 2), mg.Engine("process", cluster=cluster.address)
            for name, engine in zip(("one engine", "hosts"), engines, strict=True):
                with engine:
                    measure(name, step_of_mpgrad, lambda: mg.parallel_map(abs, [one]))
            ray.init(cluster.address, logging_level="ERROR")
            actors = [ray.remote(num_cpus=1)(Simulator).remote() for _ in range(2 * nodes)]
            echo = actors[-1].nothing
            measure("actors", partial(step_of_actors, actors), lambda: ray.get(echo.remote(x)))  # noqa: B023
            ray.shutdown()
    for name, found in steps.items():
        walls, used = zip(*found, strict=True)
        least, middle = min(used), statistics.median(used)
        print(
            f"{name:12} {min(walls):6.2f} s ({statistics.median(walls):.2f}), processors "
            f"{least:5.2f} s ({middle:.2f}), a call of nothing {min(calls[name]):5.0f} us"
        )


if __name__ == "__main__":
    main()
