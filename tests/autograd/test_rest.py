"""What is left of a graph when some of its Nodes have run gives the same bits as the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.local import run_local, run_local_until
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.plan import plan
from simulation.spec_invariants import check_spec


class Undefined(mg.Function):
    """Its second argument gets no gradient, though it asks for one."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, y: mg.Tensor) -> Any:
        return x.numpy() + y.numpy()

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 3, None


def shared() -> mg.Tensor:
    """Sums of many contributions, whose order decides how they are rounded."""
    random = np.random.default_rng(0)
    x = mg.tensor(random.standard_normal(33).astype("f4"), requires_grad=True)
    y = mg.tensor(random.standard_normal(33).astype("f4"), requires_grad=True)
    parts = [(x * (y + number)).exp() / (number + 3) for number in range(7)]
    return sum(parts, mg.zeros(33)).sum() + (x @ y)


def undefined() -> mg.Tensor:
    x, y = (mg.ones(3, requires_grad=True) for _ in range(2))
    return (Undefined.apply(x * 2, y.exp()) * x).sum()


def hooked() -> mg.Tensor:
    x = mg.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: grad * 5)
    y.retain_grad()
    return (y.exp() * x).sum()


def frozen(loss: mg.Tensor) -> FrozenGraph:
    return freeze([gradient_edge(loss)], [np.float32(1)], keep_graph=True, cost=costs.estimate)


def bits(results: list[tuple[Any, bool]]) -> list[bytes | None]:
    return [None if array is None else np.asarray(array).tobytes() for array, _ in results]


@pytest.mark.parametrize("loss", [shared, undefined, hooked])
def test_wherever_it_stops_the_results_have_the_same_bits(loss: Callable[[], mg.Tensor]) -> None:
    graph = frozen(loss())
    whole = bits(run_local(graph))
    for stop_at in range(len(graph.nodes) + 1):
        asked = iter(range(len(graph.nodes) + 1))
        results, rest = run_local_until(graph, lambda: next(asked) == stop_at)  # noqa: B023
        if stop_at == len(graph.nodes):
            assert rest is None
        else:
            assert rest is not None
            check_spec(rest.graph.spec)
            assert len(rest.graph.nodes) == len(graph.nodes) - stop_at
            assert plan(rest.graph.spec, workers=2).tasks
            others = run_local(rest.graph)
            for number, result in zip(rest.results, others, strict=True):
                assert results[number] == (None, False)
                results[number] = result
        assert bits(results) == whole
