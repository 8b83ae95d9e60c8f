"""The cases of both_passes inside of a PyTorch program: ``mpgrad.torch`` beside plain torch."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.bare_processes import BareProcesses
from benchmarks.gil_work import branch_backward, branch_input, spin
from benchmarks.loads import ATTEMPTS, Attempts, Load, alone, in_a_sample, steps_of
from benchmarks.peers.process import PeerProcess
from benchmarks.rounds import Case, Contender, Target, timed
from benchmarks.runners import WORKERS, ForwardPass, Runner, find_torch, torch_runners

ABOUT = """\
*torch: ...*: the same items in a PyTorch program. *mpgrad.torch map* is one `mt.parallel_map`,
*fork* is `mt.fork` for each item and then `mt.wait` for each. `torch.jit.fork` gets each item.
*torch: backward of 16 Functions*: `loss = loss + F.apply(x).sum()`, the class with and without
`mt.parallelize`; only `backward()` is timed. *torch: 16 perceptrons*: 2 layers of 1,024, batch 256,
each a Module of its own."""

ITEMS, PASSES = 16, 2
TORCH, TORCH_2, LIMIT = "torch 1 thread", "torch 2 threads", "two-process limit"
PARALLELIZE = "mpgrad.torch parallelize"
MAP, FORK, JIT = "mpgrad.torch map", "mpgrad.torch fork", "torch.jit.fork"
#: Samples of something so short are averaged over this many.
_SHORT_REPEATS = 50
_LAYERS, _BATCH = 2, 256


class _Grain(NamedTuple):
    """One case: the milliseconds of each pass of an item, the elements of its array, the aims."""

    name: str
    milliseconds: float
    elements: int
    rounds: int
    against_torch: float
    against_limit: float | None = None


_GRAINS = (
    _Grain("torch: 20 + 20 ms", 20.0, 16, 9, 1.85, 0.92),
    _Grain("torch: 20 + 20 ms and 4 MB", 20.0, 1 << 20, 9, 1.75),
    _Grain("torch: 5 + 5 ms", 5.0, 16, 15, 1.69),
    _Grain("torch: 1 + 1 ms", 1.0, 16, 15, 1.44),
)
#: The milliseconds of a Function's backward.
_UNCHANGED_MS = 20.0
#: The width of the perceptrons.
_WIDTH = 1024


def cases(quick: bool) -> Generator[Case, None, None]:
    """The grains, perceptrons, and a fork of nothing; none without PyTorch."""
    torch = find_torch()
    if torch is None:
        return
    with mg.Engine("process", cpu_workers=WORKERS) as engine, ExitStack() as stack:
        runners = [Runner(name, torch, engine=engine) for name in (MAP, FORK)]
        runners += [*torch_runners(1, 2), Runner(JIT, torch)]
        peer = stack.enter_context(PeerProcess("ProcessPoolExecutor", "concurrent.futures"))
        for grain in _GRAINS:
            yield from _grain(grain, runners, peer, 2 if quick else grain.rounds, quick)
        yield from _unchanged(runners, 2 if quick else 9, quick)
        yield _perceptrons(runners, 2 if quick else 9)
        yield _nothing(runners[0], 2 if quick else 21)
    mg.set_engine(None)


def _grain(
    grain: _Grain, runners: list[Runner], peer: PeerProcess, rounds: int, quick: bool
) -> Generator[Case, None, None]:
    is_small = grain.elements < 1 << 16
    load = Load(ITEMS * PASSES * grain.milliseconds, TORCH, is_small)
    steps = 1 if quick else steps_of(load.milliseconds)
    seconds = in_a_sample(ITEMS * PASSES, steps)
    for_loops = Attempts(load, grain.milliseconds, seconds, 1 if quick else ATTEMPTS)
    for loops in for_loops:
        with BareProcesses(ITEMS, loops, grain.elements, WORKERS, PASSES) as limit:
            contenders = _contenders(runners, partial(program, loops, grain.elements), steps)
            run = partial(timed, limit.run, steps)
            contenders += [
                peer.contender("items.process_pool", ITEMS, loops, grain.elements, repeats=steps),
                alone(loops, ITEMS * PASSES, steps),
                Contender(LIMIT, run, limit.gradients, renew=limit.renew),
            ]
            targets = [Target(MAP, TORCH, at_least=grain.against_torch)]
            if grain.against_limit is not None:
                targets.append(Target(MAP, LIMIT, at_least=grain.against_limit))
            yield Case(
                grain.name,
                contenders,
                (TORCH, TORCH_2, LIMIT),
                rounds,
                targets=targets,
                fault=for_loops.fault,
            )


def _contenders(
    runners: list[Runner], make: Callable[[Runner], ForwardPass], steps: int = 1
) -> list[Contender]:
    # Several share an engine, which is not started anew between rounds.
    return [
        replace(runner.contender(partial(_made, make, runner), steps, is_whole=True), renew=None)
        for runner in runners
    ]


def _made(make: Callable[[Runner], ForwardPass], runner: Runner, _: Any) -> ForwardPass:
    return make(runner)


def program(loops: int, elements: int, runner: Runner) -> ForwardPass:
    """The items as ``runner`` calls them."""
    torch = runner.library
    leaves = [
        torch.tensor(branch_input(item, elements), requires_grad=True) for item in range(ITEMS)
    ]
    call = _item_function().apply
    return ForwardPass(leaves, lambda: _sum(torch, called(runner, call, leaves, [loops] * ITEMS)))


def called(runner: Runner, fn: Callable[..., Any], *iterables: list[Any]) -> list[Any]:
    """``[fn(*item) for item in zip(*iterables)]`` as ``runner`` does it."""
    items = list(zip(*iterables, strict=True))
    if runner.name == MAP:
        outs: list[Any] = _parallel().parallel_map(fn, *iterables)
        return outs
    if runner.name == FORK:
        futures = [_parallel().fork(fn, *item) for item in items]
        return [_parallel().wait(one) for one in futures]
    if runner.name == JIT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            futures = [runner.library.jit.fork(fn, *item) for item in items]
            return [runner.library.jit.wait(one) for one in futures]
    return [fn(*item) for item in items]


def _parallel() -> Any:
    return importlib.import_module("mpgrad.torch")


def _sum(torch: Any, outs: list[Any]) -> Any:
    return torch.stack([out.sum() for out in outs]).sum()


@functools.cache
def _item_function(parallel: bool = False) -> Any:
    torch: Any = find_torch()

    class TorchItem(torch.autograd.Function):
        """An item as torch sees it."""

        @staticmethod
        def forward(ctx: Any, x: Any, loops: int) -> Any:
            ctx.save_for_backward(x)
            ctx.loops = loops
            return x * spin(loops)

        backward = staticmethod(branch_backward)

    if parallel:
        _parallel().parallelize(TorchItem)
    return TorchItem


# ---------------------------------------------------------------------- an unchanged program


def _unchanged(runners: list[Runner], rounds: int, quick: bool) -> Generator[Case, None, None]:
    load = Load(ITEMS * _UNCHANGED_MS, TORCH, True)
    for_loops = Attempts(load, _UNCHANGED_MS, in_a_sample(ITEMS, 1), 1 if quick else ATTEMPTS)
    plain = next(one for one in runners if one.name == TORCH)
    ways = [(plain, False), (replace(runners[0], name=PARALLELIZE), True)]
    for loops in for_loops:
        yield Case(
            "torch: backward of 16 Functions",
            [
                *[
                    replace(way.contender(partial(unchanged, loops, parallel)), renew=None)
                    for way, parallel in ways
                ],
                alone(loops, ITEMS, 1),
            ],
            (TORCH,),
            rounds,
            targets=[Target(PARALLELIZE, TORCH, at_least=1.85)],
            fault=for_loops.fault,
        )


def unchanged(loops: int, parallel: bool, torch: Any) -> ForwardPass:
    """A program that calls a Function 16 times, one after another."""
    leaves = [torch.tensor(branch_input(item, 16), requires_grad=True) for item in range(ITEMS)]
    call = _item_function(parallel).apply

    def forward() -> Any:
        loss = torch.zeros(())
        for leaf in leaves:
            loss = loss + call(leaf, loops).sum()
        return loss

    return ForwardPass(leaves, forward)


# ---------------------------------------------------------------------- perceptrons


def _perceptrons(runners: list[Runner], rounds: int) -> Case:
    return Case(
        "torch: 16 perceptrons",
        _contenders(runners, perceptrons),
        (TORCH, TORCH_2),
        rounds,
        targets=(Target(MAP, TORCH, at_least=1.6),),
        tolerance=1e-4,
    )


def perceptrons(runner: Runner) -> ForwardPass:
    """16 models of their own, each on one batch."""
    torch = runner.library
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(ITEMS):
        layers = []
        for _ in range(_LAYERS):
            layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Tanh()]
        models.append(torch.nn.Sequential(*layers))
    leaves = [parameter for model in models for parameter in model.parameters()]
    with torch.no_grad():
        for leaf in leaves:
            leaf.uniform_(-(_WIDTH**-0.5), _WIDTH**-0.5, generator=generator)
    x = torch.randn(_BATCH, _WIDTH, generator=generator)
    return ForwardPass(
        leaves, lambda: _sum(torch, called(runner, _model_mean, models, [x] * ITEMS)), (x,)
    )


def _model_mean(model: Any, x: Any) -> Any:
    return model(x).mean()


# ---------------------------------------------------------------------- a call of nothing


def _nothing(runner: Runner, rounds: int) -> Case:
    def sample() -> float:
        runner.select()
        return timed(lambda: called(replace(runner, name=FORK), nothing, [None]), _SHORT_REPEATS)

    return Case(
        "torch: a fork of nothing",
        [Contender(FORK, sample)],
        (),
        rounds,
        targets=(Target(FORK, at_most=0.5),),
    )


def nothing(item: Any) -> None:
    """A call that does nothing."""
