"""The demo's first part: a step of many branches whose passes are slow, pure Python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpgrad as mg

BRANCHES = 16
ELEMENTS = 1_000
ROUNDS = 9
#: The first rounds, which still load modules and touch memory for the first time, do not count.
WARM_UP_ROUNDS = 2
#: In the order of a round.
MODES = ("process", "auto", "local")


@dataclass(frozen=True)
class Branches:
    """The same 16 branches in one library.

    Attributes:
        leaves: the tensors that they start from; their ``.grad`` is the result.
        make_loss: runs all branches forward and returns a scalar.
    """

    leaves: Sequence[Any]
    make_loss: Callable[[], Any]

    def step_seconds(self) -> float:
        """Run forward and backward."""
        for leaf in self.leaves:
            leaf.grad = None
        start = time.perf_counter()
        self.make_loss().backward()
        return time.perf_counter() - start

    def gradients(self) -> bytes:
        """Of all leaves."""
        return b"".join(leaf.grad.numpy().tobytes() for leaf in self.leaves)


@dataclass(frozen=True)
class Result:
    """What one runner of the race reached.

    Attributes:
        median_s: seconds of one step, the median of all rounds.
        gradients: their bytes.
    """

    median_s: float
    gradients: bytes


@dataclass(frozen=True)
class Race:
    """The results of all runners; ``torch`` is None where it did not run."""

    process: Result
    auto: Result
    local: Result
    torch: Result | None
    workers: int


def slope_by_leibniz(terms: int) -> float:
    """Pi as 4 - 4/3 + 4/5 - ...: stands for any pass that is a Python loop."""
    total, numerator = 0.0, 4.0
    for k in range(terms):
        total += numerator / (2 * k + 1)
        numerator = -numerator
    return total


class TimesPi(mg.Function):
    """``x * pi``; both passes find pi the slow way."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, terms: int) -> mg.Tensor:
        ctx.terms = terms
        return x * slope_by_leibniz(terms)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[mg.Tensor, None]:
        return grad * slope_by_leibniz(ctx.terms), None


def calibrate(seconds: float) -> int:
    """The number of terms that take ``seconds`` on this machine."""
    probe = 20_000
    times = []
    for _ in range(5):
        start = time.perf_counter()
        slope_by_leibniz(probe)
        times.append(time.perf_counter() - start)
    return max(1, round(probe * seconds / min(times)))


def branches(terms: int) -> Branches:
    """The branches in mpgrad."""
    leaves = [mg.full((ELEMENTS,), k + 1.0, requires_grad=True) for k in range(BRANCHES)]
    return Branches(leaves, lambda: mg.cat(TimesPi.map(leaves, [terms] * BRANCHES)).sum())


def race(
    terms: int, in_torch: Branches | None, after_round: Callable[[], None], page: str | None = None
) -> Race:
    """Time the step in all modes, and in PyTorch.

    All run in turn in each round, so that whatever else this machine does slows all of them.

    Args:
        terms: work of one branch.
        in_torch: the branches in PyTorch, where it is installed.
        after_round: called after each round.
        page: the file for the report of the profiler about one more step in workers.
    """
    engines = {mode: mg.Engine(mode=mode) for mode in MODES}
    runners = {mode: branches(terms) for mode in MODES}
    times: dict[str, list[float]] = {mode: [] for mode in (*MODES, "torch")}
    try:
        for _ in range(ROUNDS):
            for mode in MODES:
                mg.set_engine(engines[mode])
                times[mode].append(runners[mode].step_seconds())
            if in_torch is not None:
                times["torch"].append(in_torch.step_seconds())
            after_round()
        workers = len(engines["process"].worker_pids())
        if page is not None:
            mg.set_engine(engines["process"])
            with mg.profiler.profile():
                branches(terms).step_seconds()
            mg.profiler.report(page)
    finally:
        mg.set_engine(None)
        for engine in engines.values():
            engine.close()

    def result(name: str, runner: Branches) -> Result:
        return Result(statistics.median(times[name][WARM_UP_ROUNDS:]), runner.gradients())

    return Race(
        **{mode: result(mode, runner) for mode, runner in runners.items()},
        torch=None if in_torch is None else result("torch", in_torch),
        workers=workers,
    )
