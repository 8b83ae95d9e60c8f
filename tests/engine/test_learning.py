"""What the cost model learns from the times of tasks that hold several Nodes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd import costs
from mpgrad.autograd import freeze as freezing
from mpgrad.autograd.freeze import FrozenGraph, freeze
from mpgrad.autograd.replay import Memory
from mpgrad.engine.learning import learn
from mpgrad.scheduler.cost_model import SURPRISE_MAX, CostModel
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.scheduler.plan import plan
from mpgrad.tensor import gradient_edge


@pytest.fixture(autouse=True)
def nothing_learned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "model", CostModel())
    monkeypatch.setattr(freezing, "_memory", Memory())


def chain() -> mg.Tensor:
    x = mg.ones(128, 128)
    for _ in range(4):
        x = mg.relu(x @ mg.ones(128, 128, requires_grad=True))
    return x.sum()


def frozen(loss: mg.Tensor) -> FrozenGraph:
    return freeze([gradient_edge(loss)], [None], keep_graph=True, cost=costs.estimate)


def work_us(loss: mg.Tensor) -> float:
    return sum(node.cost_us for node in frozen(loss).spec.nodes)


def report(graph: FrozenGraph, microseconds: int) -> None:
    """As if one worker had run all in one task and reported that time."""
    planned = plan(graph.spec)
    assert [len(group) > 8 for group in planned.groups] == [True], "the chain is one task"
    ran = ((0, 0, microseconds, 0, None),)
    learn(graph, planned, CompleteGraph("c1.1", 1, (), (), ran))


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_a_task_of_several_nodes_teaches_what_they_take_together(factor: float) -> None:
    loss = chain()
    took = int(work_us(loss) * factor)
    report(frozen(loss), took)
    assert work_us(loss) == pytest.approx(took, rel=0.05)


def test_nodes_share_a_task_s_time_as_expected() -> None:
    loss = chain()
    before = frozen(loss)
    report(before, int(2 * work_us(loss)))
    after = frozen(loss)
    pairs = zip(before.spec.nodes, after.spec.nodes, strict=True)
    factors = [new.cost_us / old.cost_us for old, new in pairs if old.name == "MatmulBackward"]
    assert len(factors) == 4
    assert factors == pytest.approx([factors[0]] * 4)
    assert factors[0] > 1.5


def test_one_interruption_does_not_make_a_rule_expensive() -> None:
    """Else thousands of tiny Nodes of a kind would be planned as if each took that long."""
    loss = (mg.ones(4, requires_grad=True) * 2.0).sum()
    [product] = [node for node in frozen(loss).nodes if node.name() == "MulBackward"]
    guess = costs.estimate(product)
    for _ in range(2):
        before = costs.estimate(product)
        costs.observe(product, 60_000.0)
        assert costs.estimate(product) <= SURPRISE_MAX * before
    for _ in range(20):
        costs.observe(product, guess)
    assert costs.estimate(product) == pytest.approx(guess, rel=0.05)
    while costs.estimate(product) < 400.0:  # but what always takes long is believed soon
        before = costs.estimate(product)
        costs.observe(product, 600.0)
        assert costs.estimate(product) > 1.1 * before


def test_a_time_below_that_of_the_short_nodes_teaches_nothing() -> None:
    loss = chain()
    before = work_us(loss)
    report(frozen(loss), 1)
    assert work_us(loss) == before


@pytest.mark.process
def test_a_function_that_takes_another_time_now_is_planned_anew() -> None:
    """Its shapes are those of before, and the graph has been known for long."""

    class Busy(mg.Function):
        run_on = "worker"

        @staticmethod
        def forward(ctx: Any, x: mg.Tensor, milliseconds: float) -> mg.Tensor:
            ctx.milliseconds = milliseconds
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> tuple[mg.Tensor, None]:
            end = perf_counter() + ctx.milliseconds / 1e3
            while perf_counter() < end:
                pass
            return grad, None

    x = mg.ones(4, requires_grad=True)
    with mg.Engine("process", cpu_workers=2) as engine:

        def tasks(milliseconds: float) -> int:
            before = sum(engine.statistics().tasks.values())
            mg.stack([Busy.apply(x * 1.0, milliseconds) for _ in range(8)]).sum().backward()
            return sum(engine.statistics().tasks.values()) - before

        few = min([tasks(0.0) for _ in range(40)])
        assert max([tasks(10.0) for _ in range(4)]) > few + 2
