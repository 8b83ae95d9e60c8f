"""soak: very many backwards of one engine; memory, descriptors, blocks and leases stay flat."""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import psutil

import mpgrad as mg
from stress.run import Run, Verdict, count, minutes, progress_bar, seed_of
from tests.leftovers import Leftovers, left_since

#: The share of the backwards during which caches and heaps may still grow.
WARM_UP = 0.1
#: The number of samples after the warm-up; the first and the last fifth of them are compared.
LOOKS = 100
GROWTH_MAX = 0.01
#: Live blocks are counted as parts of so many: a sample sees the few of the step that it is in. Ten
#: more that stay are a growth.
BLOCKS = 1000
#: Bytes of arenas are counted as parts of so many: these programs touch 2 MB, and when more blocks
#: than ever lie in memory at once, some pages more, for good. 160 KB more are a growth.
ARENA_BYTES = 16 << 20
#: The branches in workers at any time: a step makes up to 7, and the next message releases them.
BRANCHES_MAX = 32
SIDE = 48


class Cubes(mg.Function):
    """A Function for workers that fails if ``fails`` is set."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, fails: bool) -> Any:
        ctx.save_for_backward(x)
        ctx.fails = fails
        return x.numpy() ** 3

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.fails:
            raise ArithmeticError("planned by the stress run")
        (x,) = ctx.saved_tensors
        return grad.numpy() * 3 * x.numpy() ** 2, None


class Steps(Protocol):
    """What runs."""

    wrong: int

    def step(self, number: int) -> None: ...


class Mixture:
    """Backwards of different kinds in turn; each kind always gives the same gradients."""

    def __init__(self, seed: int) -> None:
        values = np.random.default_rng(seed)
        self._weights = [
            mg.tensor(values.normal(size=(SIDE, SIDE)) / 7, requires_grad=True) for _ in range(3)
        ]
        self._kinds = (
            self._chain,
            self._wide,
            self._hooked,
            self._failing,
            self._twice,
            self._mapped,
            self._forked,
            self._map_failing,
        )
        self._first: dict[int, bytes] = {}
        self._kept: Any = None
        self.wrong = 0

    def step(self, number: int) -> None:
        """The next backward, checked against the first one of its kind."""
        kind = number % len(self._kinds)
        self._kinds[kind]()
        grads = [weight.grad for weight in self._weights]
        found = b"".join(b"-" if grad is None else grad.numpy().tobytes() for grad in grads)
        self.wrong += self._first.setdefault(kind, found) != found
        # A view of one gradient outlives its step, as in user code.
        self._kept = None if grads[0] is None else grads[0].detach()[:1]
        for weight in self._weights:
            weight.grad = None

    def _chain(self) -> None:
        a, b, c = self._weights
        (mg.tanh(mg.tanh(a @ b) @ c)).sum().backward()

    def _wide(self) -> None:
        a, b, c = self._weights
        mg.stack([(a * number + b).sum() for number in range(12)]).sum().backward()
        (c * c).sum().backward()

    def _hooked(self) -> None:
        a, b, _ = self._weights
        hidden = Cubes.apply(a @ b, False)
        hidden.register_hook(lambda grad: grad * 2)
        hidden.mean().backward()

    def _failing(self) -> None:
        a, b, _ = self._weights
        try:
            (Cubes.apply(a @ b, True).sum() + a.sum()).backward()
        except ArithmeticError:
            return
        self.wrong += 1

    def _twice(self) -> None:
        a, b, _ = self._weights
        grads = mg.grad(mg.tanh(a @ b).sum(), [a], create_graph=True)
        mg.stack([grad * grad for grad in grads if grad is not None]).sum().backward()

    def _mapped(self) -> None:
        a, b, c = self._weights
        outs = mg.parallel_map(_call, [a, b, a @ b], shared=(c,))
        mg.parallel_map(_call, [a, b], shared=(c,))  # nobody differentiates these
        mg.stack(outs[1:]).sum().backward()

    def _forked(self) -> None:
        a, b, c = self._weights
        futures = [mg.fork(_call, weight, c) for weight in (a, b, c)]
        mg.fork(_call, a, c).result()
        mg.stack([mg.wait(future) for future in futures]).sum().backward()

    def _map_failing(self) -> None:
        a, b, c = self._weights
        try:
            mg.parallel_map(_call, [a, b, None], shared=(c,))
        except ArithmeticError:
            return
        self.wrong += 1


def _call(x: mg.Tensor | None, w: mg.Tensor) -> mg.Tensor:
    """A branch; without ``x`` it fails."""
    if x is None:
        raise ArithmeticError("planned by the stress run")
    return mg.tanh(x @ w).sum()


class Look(NamedTuple):
    """A sample of the engine's memory."""

    #: Resident bytes: client, coordinator, then the workers.
    resident: tuple[int, ...]
    descriptors: tuple[int, ...]
    #: Live blocks of the client's and of the engine's arena, and bytes of both that have pages.
    blocks: tuple[int, int]
    arena_bytes: int
    #: In workers: calls that may be differentiated.
    branches: int

    @classmethod
    def at(cls, engine: mg.Engine) -> Look:
        gc.collect()
        pids = [os.getpid(), engine.coordinator_pid or 0, *engine.worker_pids()]
        figures = engine.statistics()
        arenas = [arena for arena in (figures.client_arena, figures.engine_arena) if arena]
        return cls(
            tuple(psutil.Process(pid).memory_info().rss for pid in pids),
            tuple(psutil.Process(pid).num_fds() for pid in pids),
            (arenas[0].live_blocks, arenas[-1].live_blocks),
            sum(arena.used_bytes + arena.idle_bytes for arena in arenas),
            figures.branches,
        )


#: What is compared, and its value in a sample.
_ROWS: dict[str, Callable[[Look], float]] = {
    "client": lambda look: look.resident[0],
    "coordinator": lambda look: look.resident[1],
    "workers": lambda look: sum(look.resident[2:]),
    "arenas": lambda look: ARENA_BYTES + look.arena_bytes,
    "descriptors": lambda look: sum(look.descriptors),
    "live blocks": lambda look: BLOCKS + sum(look.blocks),
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--backwards", type=count, default=100_000, metavar="N", help="how many")
    number.add_argument("--hours", type=float, metavar="H", help="for so long, however many")
    parser.add_argument("--seed", type=int, help="of the weights; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=20.0, metavar="M", help="at most")
    parser.add_argument("--workers", type=count, default=2, metavar="W", help="CPU workers")
    parser.add_argument("--torch", action="store_true", help="both passes of a PyTorch program")


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    extent = f"--hours {options.hours}" if options.hours else f"--backwards {options.backwards}"
    print(f"soak: --seed {seed} {extent}", flush=True)
    mixture = _mixture(seed, in_torch=options.torch)
    with mg.Engine("process", cpu_workers=1):
        mixture.step(0)  # opens what this process keeps open
    before = Leftovers.now()
    start = time.monotonic()
    with mg.Engine("process", cpu_workers=options.workers) as engine:
        looks, done = [], 0
        for number in _backwards(mixture, options, start):
            done = number
            looks.append(Look.at(engine))
    seconds = time.monotonic() - start
    left = left_since(before)
    growth = growths(looks)
    complete = bool(options.hours) or done == options.backwards
    branches = max(look.branches for look in looks)
    grown = [name for name, part in growth.items() if part >= GROWTH_MAX]
    for name in grown:
        print(f"soak: {name}, the median of each twentieth: {medians(looks, name, 20)}")
    is_flat = not grown and branches <= BRANCHES_MAX
    words = ", ".join(f"{name} {100 * part:+.2f} %" for name, part in growth.items())
    return Verdict(
        complete and is_flat and not (mixture.wrong or left),
        f"{done:,} backwards in {seconds:.0f} s, {mixture.wrong} wrong; growth after the first "
        f"{100 * WARM_UP:.0f} %: {words}; at most {branches} branches; {left or 'nothing'} left",
    )


def _mixture(seed: int, *, in_torch: bool) -> Steps:
    if not in_torch:
        return Mixture(seed)
    from stress.soak_torch import TorchMixture  # torch need not be installed for the others

    return TorchMixture(seed)


def _backwards(mixture: Steps, options: argparse.Namespace, start: float) -> Iterator[int]:
    """Run the backwards; yield their number when a sample is due, and at the end."""
    seconds = 3600 * options.hours if options.hours else 60 * options.minutes
    number, due = 0, WARM_UP
    with progress_bar() as progress:
        bar = progress.add_task("backwards", total=1.0)
        while True:
            mixture.step(number)
            number += 1
            spent = (time.monotonic() - start) / seconds
            done = spent if options.hours else number / options.backwards
            if max(spent, done) >= 1:
                break
            if done >= due + (1 - WARM_UP) / LOOKS:
                due += (1 - WARM_UP) / LOOKS
                progress.update(bar, completed=done)
                yield number
    yield number


def growths(looks: list[Look]) -> dict[str, float]:
    """The growth from the first to the last fifth of the samples, as a fraction.

    Medians are compared, because a sample may fall between the death of a view and its release.
    """
    found = {name: medians(looks, name, 5) for name in _ROWS}
    return {name: values[-1] / values[0] - 1 for name, values in found.items()}


def medians(looks: list[Look], name: str, parts: int) -> list[float]:
    """Those of one row, in each of so many parts of the time: a step or a trend."""
    size = max(1, len(looks) // parts)
    values = [_ROWS[name](look) for look in looks]
    starts = range(0, min(size * parts, len(values)), size)
    return [statistics.median(values[at : at + size]) for at in starts]


SOAK = Run(
    "soak",
    "very many backwards of one engine: memory, descriptors, blocks and leases stay flat",
    _add_options,
    _perform,
)
