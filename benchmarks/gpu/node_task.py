"""A chain of tiny Nodes on a GPU, each a NodeTask of its own: the cost of a hand-over."""

from __future__ import annotations

from functools import partial

import mpgrad as mg
from benchmarks.gpu.measured import answer, is_small, seconds_of, synchronize
from mpgrad.engine import preparation
from mpgrad.scheduler.plan import plan

ROUNDS = 10


def main() -> None:
    """Compare a chain in one worker with the same chain in this process."""
    length = 50 if is_small() else 500
    preparation.plan = partial(plan, fuse=False)  # type: ignore[attr-defined]

    def step() -> None:
        x = mg.ones(1024, device="cuda", requires_grad=True)
        y = x
        for _ in range(length):
            y = mg.sin(y)
        y.sum().cpu().backward()

    with mg.Engine("local"):
        here = seconds_of(step, rounds=ROUNDS, synchronize=synchronize)
    with mg.Engine("process", cpu_workers=1, gpus=[0]) as engine:
        there = seconds_of(step, rounds=ROUNDS, synchronize=synchronize)
        statistics = engine.statistics()
        tasks = sum(statistics.tasks.values()) / statistics.backwards_process
    each_us = (there - here) / tasks * 1e6
    answer(
        f"{each_us:.0f} us each ({tasks:.0f} NodeTasks: {there * 1e3:.1f} ms, "
        f"in one process {here * 1e3:.1f} ms)"
    )


if __name__ == "__main__":
    main()
