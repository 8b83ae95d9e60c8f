"""numpy_branches and mlp_chain: matrix products, which release the GIL and have BLAS threads."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from benchmarks.rounds import Case, Target
from benchmarks.runners import ForwardPass, mpgrad_runners, torch_runners

ABOUT_BRANCHES = """\
8 branches, each a multilayer perceptron of 4 layers, 512 wide, batch 256, float32 (`x @ w + b` and
relu), joined by a sum. torch runs one branch after the other, each product on all of its threads;
mpgrad runs branches side by side with one BLAS thread each."""

ABOUT_CHAIN = """\
One perceptron of 8 layers, 512 wide, batch 256, float32: a chain. Beside the input gradient, which
the next layer waits for, only each layer's weight gradient can run."""

WIDTH = 512
BATCH = 256
PROCESS = "mpgrad process"
LOCAL = "mpgrad local"
TORCH_2 = "torch 2 threads"
#: By norm. Another order of summation moves a few of the activations nearest to 0 across relu's
#: kink, and each then adds its whole gradient or nothing.
TOLERANCE = 1e-2


def branches(quick: bool) -> Generator[Case, None, None]:
    """8 perceptrons side by side."""
    targets = (Target(PROCESS, TORCH_2, at_most=1.15), Target(PROCESS, LOCAL, at_least=1.7))
    return _cases("8 x 4 layers", 8, 4, 2 if quick else 15, targets)


def chain(quick: bool) -> Generator[Case, None, None]:
    """One deep perceptron."""
    targets = (Target(PROCESS, LOCAL, at_least=1.7), Target(PROCESS, TORCH_2, at_most=1.2))
    return _cases("8 layers", 1, 8, 5 if quick else 25, targets)


def _cases(
    name: str, count: int, layers: int, rounds: int, targets: tuple[Target, ...]
) -> Generator[Case, None, None]:
    with mpgrad_runners("process", "local", "auto") as runners:
        runners += torch_runners(1, 2)
        yield Case(
            name,
            [
                runner.contender(lambda library: _program(library, count, layers))
                for runner in runners
            ],
            (LOCAL, TORCH_2),
            rounds,
            targets=targets,
            tolerance=TOLERANCE,
        )


def _program(library: Any, count: int, layers: int) -> ForwardPass:
    """``count`` perceptrons with one batch between them; the sum of their means."""
    random = np.random.default_rng(0)
    x = library.tensor(random.standard_normal((BATCH, WIDTH), np.float32))
    models = [
        [_layer(library, random) for _ in range(layers)]
        for _ in range(count)
    ]  # fmt: skip

    def forward() -> Any:
        return library.stack([_mean_output(library, x, model) for model in models]).sum()

    leaves = [leaf for model in models for weight, bias in model for leaf in (weight, bias)]
    return ForwardPass(leaves, forward)


def _layer(library: Any, random: np.random.Generator) -> tuple[Any, Any]:
    """Weight and bias; scaled so that activations keep their size through relu (He et al. 2015)."""
    weight = random.standard_normal((WIDTH, WIDTH), np.float32) * np.float32((2 / WIDTH) ** 0.5)
    bias = random.standard_normal(WIDTH, np.float32) * np.float32(0.1)
    return library.tensor(weight, requires_grad=True), library.tensor(bias, requires_grad=True)


def _mean_output(library: Any, x: Any, model: list[tuple[Any, Any]]) -> Any:
    for weight, bias in model:
        x = library.relu(x @ weight + bias)
    return x.mean()
