"""What ``mpgrad doctor`` measures: whether cores are cores, messages, and when workers pay.

Each measurement takes the best of a few, so that one interruption does not decide.
"""

from __future__ import annotations

import subprocess
from time import perf_counter
from typing import Any, NamedTuple

import mpgrad as mg
from mpgrad.base import interpreter

#: Rounds of each measurement.
ROUNDS = 3
#: Milliseconds of a branch that are tried for the break-even, each twice the one before.
_FIRST_MS, _LAST_MS = 0.05, 25.6

#: Says how long a loop takes, once it may begin.
_LOOP = """
import sys, time
def loop():
    started, total = time.perf_counter(), 0
    for number in range(1_500_000):
        total += number
    return time.perf_counter() - started
loop()
print("ready", flush=True)
for _ in sys.stdin:
    print(loop(), flush=True)
"""


class Cores(NamedTuple):
    """Seconds of one loop in one process alone, and in two at once."""

    alone: float
    together: float

    @property
    def speed_up(self) -> float:
        """How much more two processes do than one: 2 where they do not disturb each other."""
        return 2 * self.alone / self.together


def two_cores() -> Cores:
    """Run the same loop in one process, and in two at once."""
    processes = [
        subprocess.Popen(
            [interpreter.python(), "-S", "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            _line_of(process)
        alone = min(_seconds(processes[:1]) for _ in range(ROUNDS))
        together = min(_seconds(processes) for _ in range(ROUNDS))
    finally:
        for process in processes:
            process.communicate()
    return Cores(alone, together)


def _seconds(processes: list[subprocess.Popen[str]]) -> float:
    """What the slowest of them takes."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return max(float(_line_of(process)) for process in processes)


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class Spin(mg.Function):
    """The identity; its backward loops."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, rounds: int) -> mg.Tensor:
        ctx.rounds = rounds
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[mg.Tensor, None]:
        spin(ctx.rounds)
        return grad, None


def spin(rounds: int) -> int:
    """Some work in Python."""
    total = 0
    for number in range(rounds):
        total += number
    return total


class Messages(NamedTuple):
    """Microseconds of a message, and milliseconds of a branch from which on workers are faster;
    None where they never were."""

    message_us: float
    break_even_ms: float | None
    workers: int


def messages(workers: int) -> Messages:
    """Try branches of growing length, one for each worker, here and in workers."""
    started = perf_counter()
    spin(200_000)
    rounds_per_ms = 200_000 / (perf_counter() - started) / 1e3
    with mg.Engine(mode="process", cpu_workers=workers) as engine:
        _backward_s(workers, 1)  # starts what starts with the first backward
        branch_ms, found = _FIRST_MS, None
        while branch_ms <= _LAST_MS and found is None:
            rounds = max(round(rounds_per_ms * branch_ms), 1)
            in_workers = min(_backward_s(workers, rounds) for _ in range(ROUNDS))
            with mg.Engine(mode="local"):
                here = min(_backward_s(workers, rounds) for _ in range(ROUNDS))
            if in_workers < here:
                found = branch_ms
            branch_ms *= 2
        return Messages(engine._execution.preparation.message_us, found, workers)


def _backward_s(branches: int, rounds: int) -> float:
    x = mg.ones(1, requires_grad=True)
    loss = mg.stack([Spin.apply(x, rounds).sum() for _ in range(branches)]).sum()
    started = perf_counter()
    loss.backward()
    return perf_counter() - started
