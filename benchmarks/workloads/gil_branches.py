"""gil_branches: independent branches whose backward holds the GIL; the case mpgrad exists for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.gil_work import branch_backward, branch_forward, branch_input, loops_for
from benchmarks.rounds import Case, Contender, Target, timed
from benchmarks.runners import ForwardPass, Runner, mpgrad_runners, start_auto, torch_runners
from benchmarks.two_processes import TwoProcesses

ABOUT = """\
16 independent branches joined by a sum. Each is one custom `Function` whose backward holds the GIL:
one and the same pure Python loop for all contenders, calibrated at the start of the run. With 4 MB,
each branch also saves a float32 array of that size and returns a gradient of that size. The
*two-process limit* is two processes that already hold 8 branches each, get one byte to start, and
write their gradients into shared memory."""

BRANCHES = 16
LIMIT = "two-process limit"
PROCESS = "mpgrad process"
TORCH = "torch 1 thread"


class MpgradBranch(mg.Function):
    """The branch as mpgrad sees it."""

    forward = staticmethod(branch_forward)
    backward = staticmethod(branch_backward)


class _Grain(NamedTuple):
    """One case: how long a branch takes, how large its gradient is, and what is aimed at."""

    name: str
    milliseconds: float
    elements: int
    rounds: int
    repeats: int
    against_limit: float | None
    against_torch: float


_GRAINS = (
    _Grain("20 ms", 20.0, 16, 9, 1, 0.95, 1.75),
    _Grain("20 ms and 4 MB", 20.0, 1 << 20, 9, 1, 0.93, 1.75),
    _Grain("2 ms", 2.0, 16, 15, 1, None, 1.8),
    _Grain("0.2 ms", 0.2, 16, 21, 5, None, 1.5),
    _Grain("0.02 ms", 0.02, 16, 31, 20, None, 1.0),
)


def cases(quick: bool) -> Generator[Case, None, None]:
    """All grains; ``quick`` measures few rounds of each."""
    with mpgrad_runners("process", "local", "auto") as runners:
        runners += torch_runners(1)
        for grain in _GRAINS:
            loops = loops_for(grain.milliseconds)
            with ExitStack() as stack:
                limit = stack.enter_context(TwoProcesses(BRANCHES, loops, grain.elements))
                contenders = [
                    runner.contender(_branches(loops, grain.elements), grain.repeats)
                    for runner in runners
                ]
                _warm_auto(runners, contenders)
                contenders.append(Contender(LIMIT, _sample(limit, grain.repeats), limit.gradients))
                yield Case(
                    grain.name,
                    contenders,
                    (TORCH, LIMIT),
                    2 if quick else grain.rounds,
                    targets=_targets(grain),
                )


def _sample(limit: TwoProcesses, repeats: int) -> Callable[[], float]:
    return lambda: timed(limit.run, repeats)


def _warm_auto(runners: list[Runner], contenders: list[Contender]) -> None:
    for runner, contender in zip(runners, contenders, strict=True):
        if runner.engine is not None and runner.engine.mode == "auto":
            start_auto(runner, contender)


def _targets(grain: _Grain) -> tuple[Target, ...]:
    against_torch = Target(PROCESS, TORCH, at_least=grain.against_torch)
    if grain.against_limit is None:
        return (against_torch,)
    return (Target(PROCESS, LIMIT, at_least=grain.against_limit), against_torch)


def _branches(loops: int, elements: int) -> Callable[[Any], ForwardPass]:
    return lambda library: _program(library, loops, elements)


def _program(library: Any, loops: int, elements: int) -> ForwardPass:
    function = MpgradBranch if library is mg else _torch_branch(library)
    leaves = [
        library.tensor(branch_input(branch, elements), requires_grad=True)
        for branch in range(BRANCHES)
    ]
    return ForwardPass(
        leaves, lambda: library.stack([function.apply(leaf, loops) for leaf in leaves]).sum()
    )


def _torch_branch(torch: Any) -> Any:
    class TorchBranch(torch.autograd.Function):
        """The branch as torch sees it."""

        forward = staticmethod(branch_forward)
        backward = staticmethod(branch_backward)

    return TorchBranch
