"""Two workers on one GPU: whether a backward of branches becomes faster, with a timeline.

The timeline shows when the workers were busy with their Nodes, by the host's clock. Kernels of two
processes share a GPU in time slices unless NVIDIA's MPS runs.
"""

from __future__ import annotations

from typing import Any

import mpgrad as mg
from benchmarks.gpu.measured import answer, is_small, seconds_of, synchronize

ROUNDS, BRANCHES, WIDTH = 10, 8, 72


def main() -> None:
    """The same graph with one and with two workers on GPU 0."""
    size, depth, branches = (32, 1, 2) if is_small() else (1024, 12, BRANCHES)

    def step() -> None:
        weights = [
            (mg.ones(size, size, device="cuda") / size).requires_grad_() for _ in range(branches)
        ]
        total = None
        for weight in weights:
            y = weight
            for _ in range(depth):
                y = mg.tanh(y @ weight)
            total = y.sum() if total is None else total + y.sum()
        assert total is not None
        total.cpu().backward()

    took = {}
    for gpus in ([0], [0, 0]):
        with mg.Engine("process", cpu_workers=1, gpus=gpus):
            took[len(gpus)] = seconds_of(step, rounds=ROUNDS, synchronize=synchronize)
            with mg.profiler.profile() as profile:
                step()
    answer(
        f"{took[1] * 1e3:.1f} ms with one worker, {took[2] * 1e3:.1f} ms with two: "
        f"{took[1] / took[2]:.2f} times as fast",
        text=_timeline(profile.events()),
    )


def _timeline(events: list[Any]) -> str:
    """One line per worker: which part of each column it was busy."""
    ran = [event for event in events if event.worker]  # worker 0 is the CPU's
    if not ran:
        return "no Node ran in a GPU worker"
    first = min(event.time_range.start for event in ran)
    length = max(event.time_range.end for event in ran) - first
    lines = []
    for worker in sorted({event.worker for event in ran}):
        busy = [False] * WIDTH
        for event in ran:
            if event.worker == worker:
                at = int((event.time_range.start - first) / length * (WIDTH - 1))
                to = int((event.time_range.end - first) / length * (WIDTH - 1))
                busy[at : to + 1] = [True] * (to + 1 - at)
        lines.append(f"worker {worker} |{''.join('#' if is_busy else '.' for is_busy in busy)}|")
    return "\n".join([*lines, f"{length / 1e3:.1f} ms from left to right"])


if __name__ == "__main__":
    main()
