"""Large products that several workers share: the bits are those of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.nn import functional as F
from mpgrad.scheduler import tuning
from mpgrad.scheduler.cost_model import CostModel
from tests.leftovers import wait_until
from tests.process.conftest import plans_of_shapes_alone
from tests.process.kill_points import kill_at

pytestmark = pytest.mark.process

#: Four parts, two for each of two workers.
ROWS, WIDTH, WORKERS = 256, 1024, 4
LAYERS = 3


@pytest.fixture(autouse=True)
def costs_of_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine is fast enough for is cut all the same, and nothing is learned elsewhere."""
    monkeypatch.setattr(costs, "model", CostModel())
    monkeypatch.setattr(tuning, "WORTH_MESSAGES", 0.01)


def tensors(dtype: type) -> tuple[mg.Tensor, list[mg.Tensor]]:
    random = np.random.default_rng(0)
    x = mg.tensor(random.standard_normal((2, ROWS // 2, WIDTH)).astype(dtype))
    weights = [random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(LAYERS)]
    return x, [mg.tensor(weight.astype(dtype), requires_grad=True) for weight in weights]


def linear(x: mg.Tensor, weight: mg.Tensor) -> mg.Tensor:
    return F.linear(x, weight, mg.ones(WIDTH, dtype=x.dtype))


def bits(apply: Callable[[mg.Tensor, mg.Tensor], mg.Tensor], dtype: type) -> list[bytes]:
    """The gradients of a chain of layers."""
    x, weights = tensors(dtype)
    for weight in weights:
        x = mg.tanh(apply(x, weight))
    x.sum().backward()
    return [weight.grad.numpy().tobytes() for weight in weights if weight.grad is not None]


@pytest.fixture
def engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=WORKERS) as made:
        yield made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("apply", [mg.matmul, linear])
def test_a_chain_of_layers(
    engine: mg.Engine, apply: Callable[[mg.Tensor, mg.Tensor], mg.Tensor], dtype: type
) -> None:
    with mg.Engine("local"):
        expected = bits(apply, dtype)
    assert bits(apply, dtype) == expected
    # Each layer but the first is shared by two, and has its weights' gradient.
    assert sum(engine.statistics().tasks.values()) >= 3 * (LAYERS - 1)
    assert bits(apply, dtype) == expected


#: The first tasks: one that passes its gradient on and computes a part, another part, the weights'
#: gradient, and one that joins the parts.
PASSES_ON, COMPUTES, JOINS = 1, 2, 4
PHASES = ("summed", "ran", "published")
POINTS = [f"worker:{phase}:{task}" for phase in PHASES for task in (PASSES_ON, COMPUTES, JOINS)]


def test_workers_die_around_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plans_of_shapes_alone(monkeypatch)
    with mg.Engine("local"):
        expected = bits(mg.matmul, np.float32)
    with monkeypatch.context() as patch:
        kill_at(patch, ",".join(POINTS))
        engine = mg.Engine("process", cpu_workers=WORKERS)
        engine.__enter__()
    try:
        for number in range(len(POINTS)):
            assert bits(mg.matmul, np.float32) == expected, POINTS[number]
        assert wait_until(lambda: engine.statistics().restarts == len(POINTS))
        assert engine.statistics().failed == 0
    finally:
        engine.__exit__()
