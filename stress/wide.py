"""wide: very many Nodes that feed one Node, and one Node that feeds very many."""

from __future__ import annotations

import argparse
import time

import numpy as np

import mpgrad as mg
from stress.run import Run, Verdict, count
from tests.leftovers import Leftovers, left_since

#: The elements of each tensor: few enough for gradients inside messages.
SIZE = 4


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--branches", type=count, default=100_000, metavar="N", help="how many")
    parser.add_argument(
        "--leaves", type=count, default=20_000, metavar="N", help="of another graph"
    )


def _perform(options: argparse.Namespace) -> Verdict:
    print(f"wide: --branches {options.branches} --leaves {options.leaves}", flush=True)
    with mg.Engine("process", cpu_workers=1):
        branches(3)
    before = Leftovers.now()
    start = time.monotonic()
    with mg.Engine("process", cpu_workers=2):
        is_right = branches(options.branches)
        branched = time.monotonic()
        is_right &= leaves(options.leaves)
        ended = time.monotonic()
    left = left_since(before)
    return Verdict(
        is_right and not left,
        f"one input of {options.branches:,} Nodes that join in one in {branched - start:.1f} s "
        f"(recording included), {options.leaves:,} leaves in {ended - branched:.1f} s, gradients "
        f"{'right' if is_right else 'WRONG'}, {left or 'nothing'} left",
    )


def branches(number: int) -> bool:
    """x feeds this many products, which are stacked; whether its gradient is the sum of factors."""
    x = mg.tensor(np.ones(SIZE), requires_grad=True)
    mg.stack([x * float(factor) for factor in range(number)]).sum().backward()
    return _is(x, number * (number - 1) / 2)


def leaves(number: int) -> bool:
    """The same with a separate leaf for each product."""
    own = [mg.tensor(np.ones(SIZE), requires_grad=True) for _ in range(number)]
    mg.stack([x * float(factor) for factor, x in enumerate(own)]).sum().backward()
    return all(_is(x, factor) for factor, x in enumerate(own))


def _is(x: mg.Tensor, expected: float) -> bool:
    return x.grad is not None and bool((x.grad.numpy() == expected).all())


WIDE = Run("wide", "one input of very many Nodes, and very many leaves", _add_options, _perform)
