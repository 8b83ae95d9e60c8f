"""both_passes: forward and backward of independent items, where both hold the GIL or are NumPy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.bare_perceptrons import BarePerceptrons
from benchmarks.bare_processes import BareProcesses
from benchmarks.gil_work import branch_backward, branch_input, spin
from benchmarks.loads import ATTEMPTS, Attempts, Load, alone, in_a_sample, steps_of
from benchmarks.peers.process import PeerProcess
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.rounds import Case, Contender, Target, timed
from benchmarks.runners import (
    WORKERS,
    ForwardPass,
    Runner,
    mpgrad_runners,
    start_auto,
    torch_runners,
)
from benchmarks.workloads import perceptrons, torch_branches

ABOUT = f"""\
16 items whose forward and backward each run the loop in Python that `gil_branches` runs in its
backward; the time is that of both passes, of a step in a loop: a sample is several in a row,
after one that does not count. *mpgrad process* and *auto*: one `parallel_map`. *The
loop*: the program as first written, without it, in `Engine("local")`; torch has the same loop.
ProcessPoolExecutor, joblib and Ray (two actors), a task for each item, compute the value and, with
it, the sensitivity, and send both back: what a program does that has no autograd for such items.
*Two-process limit*: two processes that already hold 8 items each, get one byte to start, and write
their gradients into shared memory. With 4 MB, each item gets, returns and differentiates a float32
array of that size.

*A call of nothing*: `fork` and `wait`, beside a task of a ProcessPoolExecutor and a call of a Ray
actor. *A map of 16 nothings*: `parallel_map`, beside the maps of the same systems.
*numpy_branches*: the 8 perceptrons of that workload, both passes, as a map over the models.

{torch_branches.ABOUT}"""

ITEMS = 16
PASSES = 2
LIMIT, LOOP = "two-process limit", "the loop in local"
PROCESS, AUTO = "mpgrad process", "mpgrad auto"
TORCH, TORCH_2 = "torch 1 thread", "torch 2 threads"
#: Row, what has to be installed, and the name in ``benchmarks.peers.items``.
_PEERS = (
    ("ProcessPoolExecutor", "concurrent.futures", "process_pool"),
    ("joblib", "joblib", "joblib"),
    ("Ray actors", "ray", "ray"),
)
#: Samples of something so short are averaged over this many.
_SHORT_REPEATS = 50


class _Grain(NamedTuple):
    """One case: the milliseconds of each pass of an item, the elements of its array, the aims."""

    name: str
    milliseconds: float
    elements: int
    rounds: int
    against_torch: float
    against_limit: float | None = None


_GRAINS = (
    _Grain("20 + 20 ms", 20.0, 16, 9, 1.85, 0.95),
    _Grain("20 + 20 ms and 4 MB", 20.0, 1 << 20, 9, 1.75),
    _Grain("2 + 2 ms", 2.0, 16, 15, 1.6),
)
_SHAPE = Perceptrons(8, 4, 512)
#: From so long a pass on, nothing else in the loop takes noticeable time.
_LONG_MS = 2.0


class MpgradItem(mg.Function):
    """An item as mpgrad sees it."""

    @staticmethod
    def forward(ctx: Any, x: Any, loops: int) -> Any:
        """``x * spin(loops)``."""
        return _item_forward(ctx, x, loops)

    backward = staticmethod(branch_backward)


def _item_forward(ctx: Any, x: Any, loops: int) -> Any:
    ctx.save_for_backward(x)
    ctx.loops = loops
    return x * spin(loops)


def cases(quick: bool) -> Generator[Case, None, None]:
    """The grains, what calls cost, and perceptrons."""
    with mpgrad_runners("process", "auto", "local") as runners, ExitStack() as stack:
        runners += torch_runners(1)
        peers = [
            (stack.enter_context(PeerProcess(name, module)), program)
            for name, module, program in _PEERS
        ]
        for grain in _GRAINS:
            yield from _grain(grain, runners, peers, 2 if quick else grain.rounds, quick)
        yield from _nothings(runners, peers, 2 if quick else 21)
    yield from _perceptrons(2 if quick else 9)
    yield from torch_branches.cases(quick)


def _grain(
    grain: _Grain,
    runners: list[Runner],
    peers: list[tuple[PeerProcess, str]],
    rounds: int,
    quick: bool,
) -> Generator[Case, None, None]:
    # Where the arrays are large, the loop takes more time than its spinning.
    is_small = grain.elements < 1 << 16 and grain.milliseconds >= _LONG_MS
    load = Load(ITEMS * PASSES * grain.milliseconds, LOOP, is_small)
    steps = 1 if quick else steps_of(load.milliseconds)
    seconds = in_a_sample(ITEMS * PASSES, steps)
    attempts = Attempts(load, grain.milliseconds, seconds, 1 if quick else ATTEMPTS)
    for loops in attempts:
        with BareProcesses(ITEMS, loops, grain.elements, WORKERS, PASSES) as limit:
            contenders = _contenders(runners, partial(program, loops, grain.elements), steps)
            contenders += [
                peer.contender(f"items.{name}", ITEMS, loops, grain.elements, repeats=steps)
                for peer, name in peers
            ]
            contenders.append(alone(loops, ITEMS * PASSES, steps))
            run = partial(timed, limit.run, steps)
            contenders.append(Contender(LIMIT, run, limit.gradients, renew=limit.renew))
            targets = [Target(PROCESS, TORCH, at_least=grain.against_torch)]
            if grain.against_limit is not None:
                targets.append(Target(PROCESS, LIMIT, at_least=grain.against_limit))
            yield Case(
                grain.name,
                contenders,
                (LOOP, TORCH, LIMIT),
                rounds,
                targets=targets,
                fault=attempts.fault,
            )


def _contenders(
    runners: list[Runner], make: Callable[[Runner, Any], ForwardPass], repeats: int = 1
) -> list[Contender]:
    found = []
    for runner in runners:
        contender = runner.contender(partial(make, runner), repeats, is_whole=True)
        if runner.engine is not None and runner.engine.mode == "auto":
            start_auto(runner, contender)
        if _is_loop(runner):  # BLAS has all threads in its forward, and rounds otherwise
            contender = replace(contender, name=LOOP, same_bits="")
        found.append(contender)
    return found


def _is_loop(runner: Runner) -> bool:
    return runner.engine is not None and runner.engine.mode == "local"


def program(loops: int, elements: int, runner: Runner, library: Any) -> ForwardPass:
    """The items by ``parallel_map``, or in a loop for torch and for ``local``."""
    leaves = [
        library.tensor(branch_input(item, elements), requires_grad=True) for item in range(ITEMS)
    ]
    if library is mg and not _is_loop(runner):
        return ForwardPass(leaves, lambda: _sum(mg, MpgradItem.map(leaves, [loops] * ITEMS)))
    function = MpgradItem if library is mg else _torch_item(library)
    return ForwardPass(
        leaves, lambda: _sum(library, [function.apply(leaf, loops) for leaf in leaves])
    )


def _sum(library: Any, outs: list[Any]) -> Any:
    return library.stack([out.sum() for out in outs]).sum()


def _torch_item(torch: Any) -> Any:
    class TorchItem(torch.autograd.Function):
        """An item as torch sees it."""

        forward = staticmethod(_item_forward)
        backward = staticmethod(branch_backward)

    return TorchItem


# ---------------------------------------------------------------------- what calls cost


def nothing(item: Any = None) -> None:
    """A call that does nothing."""


def _nothings(
    runners: list[Runner], peers: list[tuple[PeerProcess, str]], rounds: int
) -> Generator[Case, None, None]:
    process = next(runner for runner in runners if runner.name == PROCESS)

    def fork() -> None:
        mg.wait(mg.fork(nothing))

    def parallel_map() -> None:
        mg.parallel_map(nothing, range(ITEMS))

    for name, work, count, aim in (
        ("a call of nothing", fork, 1, 0.5),
        ("a map of 16 nothings", parallel_map, ITEMS, 2.5),
    ):

        def sample(work: Callable[[], None] = work) -> float:
            process.select()
            return timed(work, _SHORT_REPEATS)

        contenders = [Contender(PROCESS, sample, renew=process.renew)]
        contenders += [
            replace(
                peer.contender(f"items.{peers_name}_nothing", count, repeats=_SHORT_REPEATS),
                gradients=None,
            )
            for peer, peers_name in peers
        ]
        targets = (Target(PROCESS, at_most=aim),)
        yield Case(name, contenders, ("ProcessPoolExecutor",), rounds, targets=targets)


# ---------------------------------------------------------------------- perceptrons


def _perceptrons(rounds: int) -> Generator[Case, None, None]:
    shape = _SHAPE
    with (
        mpgrad_runners("process", "auto", "local") as runners,
        BarePerceptrons(shape, WORKERS) as limit,
    ):
        runners += torch_runners(1, 2)
        contenders = _contenders(runners, partial(perceptron_program, shape))
        contenders.append(Contender(LIMIT, partial(timed, limit.run), renew=limit.renew))
        targets = (
            Target(PROCESS, LIMIT, at_least=0.95),
            Target(PROCESS, TORCH_2, at_least=1.0),
        )
        yield Case(
            "numpy_branches",
            contenders,
            (LOOP, TORCH_2, LIMIT),
            rounds,
            targets=targets,
            tolerance=perceptrons.TOLERANCE,
        )


def perceptron_program(shape: Perceptrons, runner: Runner, library: Any) -> ForwardPass:
    """The perceptrons by ``parallel_map``; in a loop for torch and for ``local``."""
    if library is not mg or _is_loop(runner):
        return perceptrons.program(shape, library)
    batch, arrays = shape.arrays()
    x = mg.tensor(batch)
    leaves = [mg.tensor(array, requires_grad=True) for array in arrays]
    models = shape.models(leaves)
    run = partial(mean_output, mg)
    return ForwardPass(
        leaves, lambda: mg.stack(mg.parallel_map(run, [x] * shape.branches, models)).sum(), (x,)
    )


def mean_output(library: Any, x: Any, model: list[tuple[Any, Any]]) -> Any:
    """The mean of what a perceptron gives for a batch."""
    for weight, bias in model:
        x = library.relu(x @ weight + bias)
    return x.mean()
