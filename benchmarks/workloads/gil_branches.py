"""gil_branches: independent branches whose backward holds the GIL; the case mpgrad exists for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.bare_processes import BareProcesses
from benchmarks.gil_work import branch_backward, branch_forward, branch_input
from benchmarks.loads import ATTEMPTS, Attempts, Load, alone, in_a_sample
from benchmarks.peers.process import PeerProcess
from benchmarks.rounds import Case, Contender, Point, Target, timed
from benchmarks.runners import (
    ForwardPass,
    Runner,
    mpgrad_runners,
    other_work,
    start_auto,
    torch_runners,
)

ABOUT = """\
16 independent branches joined by a sum. Each is one custom `Function` whose backward holds the GIL:
one and the same pure Python loop for all contenders. How many loops take the time that a case is
named by is counted before it; *the loops alone* are all of them, one after another, in each round,
and a case in which these or `mpgrad local` took another time (by more than a tenth) is measured
again with other loops; its figures are not published if they never fit. *In a training loop*: the
client does 20 ms of other work before each forward pass. With 4 MB, each branch also saves a
float32 array of that size and returns a gradient of that size. The *two-process limit* is two
processes that already hold 8 branches each, get one byte to start, and write their gradients into
shared memory.

HIPS autograd runs them as primitives. joblib (loky), Ray and Dask (two actors each) and
ProcessPoolExecutor know no gradients: they run the branches' backward functions, in two tasks of 8
whose workers hold the saved arrays already, and bring the 16 results. jax and TensorFlow compile
their backward, and have none in Python that could hold the GIL."""

BRANCHES = 16
LIMIT = "two-process limit"
PROCESS, AUTO = "mpgrad process", "mpgrad auto"
LOCAL = "mpgrad local"
TORCH = "torch 1 thread"
#: Row, what has to be installed, and the program in ``benchmarks.peers``.
_TASK_SYSTEMS = (
    ("ProcessPoolExecutor", "concurrent.futures", "task_systems.process_pool"),
    ("joblib", "joblib", "task_systems.joblib"),
    ("Ray actors", "ray", "task_systems.ray"),
    ("Dask actors", "distributed", "task_systems.dask"),
)
_TASK_SYSTEM_ROUNDS = 7


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

    @property
    def is_in_a_loop(self) -> bool:
        """Whether it is measured in a training loop, too: where a message's time is noticeable."""
        return 0.1 < self.milliseconds < 10.0


_SMALL = 16
#: From so long a branch on, nothing else in `local` takes noticeable time.
_LONG_MS = 2.0
_GRAINS = (
    _Grain("20 ms", 20.0, _SMALL, 9, 1, 0.95, 1.75),
    _Grain("20 ms and 4 MB", 20.0, 1 << 20, 9, 1, 0.93, 1.75),
    _Grain("2 ms", 2.0, _SMALL, 15, 1, None, 1.8),
    _Grain("0.2 ms", 0.2, _SMALL, 21, 5, None, 1.5),
    _Grain("0.02 ms", 0.02, _SMALL, 31, 20, None, 1.0),
)
#: Backwards per sample in a training loop.
_LOOP_REPEATS = 5


def cases(quick: bool) -> Generator[Case, None, None]:
    """All grains, beside what computes gradients, then beside what runs tasks.

    Apart, because Ray and Dask need some CPU time while they wait (3 and 8 % of a core when
    tried). ``quick`` measures few rounds of each.
    """
    with mpgrad_runners("process", "local", "auto") as runners, _hips() as hips:
        runners += torch_runners(1)
        for grain in _GRAINS:
            rounds = 2 if quick else grain.rounds
            attempts = _attempts(grain, quick)
            for loops in attempts:
                with BareProcesses(BRANCHES, loops, grain.elements) as limit:
                    work = (BRANCHES, loops, grain.elements)
                    contenders = [
                        *_contenders(runners, grain, loops),
                        hips.contender("hips_autograd.gil_branches", *work, repeats=grain.repeats),
                        _limit(limit, grain.repeats),
                    ]
                    yield _case(grain, grain.name, contenders, (TORCH, LIMIT), rounds, attempts)
            if grain.is_in_a_loop:
                in_loop = grain._replace(repeats=_LOOP_REPEATS)
                attempts = _attempts(in_loop, quick)
                for loops in attempts:
                    contenders = _contenders(runners, in_loop, loops, other_work)
                    name = f"{grain.name}, in a training loop"
                    case = _case(grain, name, contenders, (TORCH,), rounds, attempts)
                    yield replace(case, point=None)
    with mpgrad_runners("process") as runners, ExitStack() as stack:
        runners += torch_runners(1)
        peers = [
            (stack.enter_context(PeerProcess(name, module)), program)
            for name, module, program in _TASK_SYSTEMS
        ]
        rounds = 2 if quick else _TASK_SYSTEM_ROUNDS
        # Back from the shortest: mpgrad goes by what such a Function took last, and needs some
        # backwards to find out that it takes 1,000 times as long now.
        for grain in reversed(_GRAINS):
            attempts = _attempts(grain, quick, local="")
            for loops in attempts:
                work = (BRANCHES, loops, grain.elements)
                contenders = _contenders(runners, grain, loops)
                contenders += [
                    peer.contender(program, *work, repeats=grain.repeats) for peer, program in peers
                ]
                name = f"{grain.name}, task systems"
                yield _case(grain, name, contenders, (TORCH,), rounds, attempts)


def _attempts(grain: _Grain, quick: bool, local: str = LOCAL) -> Attempts:
    # Where a gradient is large or a branch short, `local` takes more time than its loops.
    has_little_else = grain.elements == _SMALL and grain.milliseconds >= _LONG_MS
    load = Load(BRANCHES * grain.milliseconds, local, has_little_else)
    seconds = in_a_sample(BRANCHES, grain.repeats)
    return Attempts(load, grain.milliseconds, seconds, 1 if quick else ATTEMPTS)


def _hips() -> PeerProcess:
    return PeerProcess("HIPS autograd", "autograd")


def _contenders(
    runners: list[Runner], grain: _Grain, loops: int, after: Callable[[], object] = bool
) -> list[Contender]:
    contenders = [
        runner.contender(_branches(loops, grain.elements), grain.repeats, after=after)
        for runner in runners
    ]
    _warm_auto(runners, contenders)
    return [*contenders, alone(loops, BRANCHES, grain.repeats)]


def _case(
    grain: _Grain,
    name: str,
    contenders: list[Contender],
    baselines: tuple[str, ...],
    rounds: int,
    attempts: Attempts,
) -> Case:
    return Case(
        name,
        contenders,
        baselines,
        rounds,
        targets=_targets(grain) if LIMIT in baselines else (),
        point=Point("small gradients", grain.milliseconds) if grain.elements == _SMALL else None,
        fault=attempts.fault,
    )


def _limit(limit: BareProcesses, repeats: int) -> Contender:
    return Contender(LIMIT, lambda: timed(limit.run, repeats), limit.gradients, renew=limit.renew)


def _warm_auto(runners: list[Runner], contenders: list[Contender]) -> None:
    for runner, contender in zip(runners, contenders, strict=True):
        if runner.engine is not None and runner.engine.mode == "auto":
            start_auto(runner, contender)


def _targets(grain: _Grain) -> tuple[Target, ...]:
    if grain.against_limit is None:  # what is short is for `auto`: the calling thread takes part
        return (Target(AUTO, TORCH, at_least=grain.against_torch),)
    against_torch = Target(PROCESS, TORCH, at_least=grain.against_torch)
    return (Target(PROCESS, LIMIT, at_least=grain.against_limit), against_torch)


def _branches(loops: int, elements: int) -> Callable[[Any], ForwardPass]:
    return lambda library: program(library, loops, elements)


def program(library: Any, loops: int, elements: int) -> ForwardPass:
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
