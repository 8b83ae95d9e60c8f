"""deep: chains of very many Nodes, and very many backwards inside backwards."""

from __future__ import annotations

import argparse
import time

import numpy as np

import mpgrad as mg
from stress.run import Run, Verdict, count
from tests.leftovers import Leftovers, left_since


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=count, default=200_000, metavar="N", help="of the chain")
    parser.add_argument("--levels", type=count, default=1000, metavar="L", help="of nesting")


def _perform(options: argparse.Namespace) -> Verdict:
    print(f"deep: --nodes {options.nodes} --levels {options.levels}", flush=True)
    with mg.Engine("process", cpu_workers=1):
        chain(10)
        nest(20)
    before = Leftovers.now()
    start = time.monotonic()
    with mg.Engine("process", cpu_workers=2):
        is_right = chain(options.nodes)
        chained = time.monotonic()
        is_right &= nest(options.levels)
        nested = time.monotonic()
    left = left_since(before)
    return Verdict(
        is_right and not left,
        f"a chain of {options.nodes:,} Nodes in {chained - start:.1f} s (recording included), "
        f"{options.levels:,} backwards inside each other in {nested - chained:.1f} s, gradients "
        f"{'right' if is_right else 'WRONG'}, {left or 'nothing'} left",
    )


def chain(nodes: int) -> bool:
    """Additions and negations, one after another; whether the gradient is right."""
    x = mg.tensor(np.arange(3.0), requires_grad=True)
    y = x
    for number in range(nodes):
        y = -y if number % 2 else y + x
    y.sum().backward()
    expected = 1.0
    for number in range(nodes):
        expected = -expected if number % 2 else expected + 1
    return x.grad is not None and bool((x.grad.numpy() == expected).all())


class Nested(mg.Function):
    """Its backward calls backward() on a graph that contains it again, ``levels`` times."""

    run_on = "client"

    @staticmethod
    def forward(ctx: object, x: mg.Tensor, levels: int) -> object:
        ctx.levels = levels  # type: ignore[attr-defined]
        return x.numpy() + 1.0

    @staticmethod
    def backward(ctx: object, grad: mg.Tensor) -> object:
        levels = ctx.levels  # type: ignore[attr-defined]
        if levels == 0:
            return grad, None
        with mg.enable_grad():
            inner = mg.tensor(np.ones(2), requires_grad=True)
            Nested.apply(inner, levels - 1).sum().backward()
        if inner.grad is None:
            raise RuntimeError("an inner backward left no gradient")
        return grad.numpy() + inner.grad.numpy(), None


def nest(levels: int) -> bool:
    """``levels`` backwards inside each other, each of which adds 1 to the gradient."""
    x = mg.tensor(np.ones(2), requires_grad=True)
    Nested.apply(x, levels - 1).sum().backward()
    return x.grad is not None and bool((x.grad.numpy() == levels).all())


DEEP = Run(
    "deep",
    "a chain of very many Nodes, and very many backwards inside each other",
    _add_options,
    _perform,
)
