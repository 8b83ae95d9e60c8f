"""Functions on workers that draw random numbers of the process without showing it in their code."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.errors import PerformanceWarning
from mpgrad.workers.draw_detection import RandomDraws

DRAWS: dict[str, list[Callable[[], Any]]] = {
    "random": [random.random, lambda: random.seed(3), lambda: random.gauss(0, 1)],
    "numpy.random": [np.random.rand, lambda: np.random.seed(3), lambda: np.random.normal(size=700)],
    "mpgrad": [lambda: mg.rand(1), lambda: mg.nn.Linear(1, 1), mg.initial_seed],
}
OTHERS: list[Callable[[], Any]] = [
    lambda: random.Random(3).random(),
    lambda: np.random.default_rng(3).random(),
    lambda: np.random.RandomState(3).rand(),
    lambda: mg.rand(1, generator=mg.Generator()),
]


@pytest.mark.parametrize("source", DRAWS)
def test_what_is_drawn_from(source: str) -> None:
    for draw in DRAWS[source]:
        draws = RandomDraws()
        assert draws.source() == ""
        draw()
        assert draws.source() == source


def test_generators_of_their_own() -> None:
    draws = RandomDraws()
    for draw in OTHERS:
        draw()
    assert draws.source() == ""


def test_modules_that_are_imported_meanwhile() -> None:
    program = """
from mpgrad.workers.draw_detection import RandomDraws
import sys
assert "numpy.random.mtrand" not in sys.modules
first = RandomDraws()
import numpy.random
assert first.source() == "", first.source()
numpy.random.rand()
assert first.source() == "numpy.random"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Initializes(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * mg.nn.Linear(1, 1).weight.item()


class Promises(Initializes):
    run_on = "worker"


@pytest.mark.process
def test_a_function_that_draws_on_a_worker(engine: mg.Engine) -> None:
    """They are those of the calling process."""
    x, before = mg.ones(1, requires_grad=True), mg.get_rng_state()
    with pytest.warns(PerformanceWarning, match="has used the random numbers of mpgrad on"):
        Initializes.apply(x).sum().backward()
    assert x.grad is not None
    mg.set_rng_state(before)
    assert x.grad.item() == mg.nn.Linear(1, 1).weight.item()
    Promises.apply(x).sum().backward()
    assert x.grad is not None
