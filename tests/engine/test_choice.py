"""``auto``: workers only where they are clearly faster; and what explain() says about it."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd import costs
from mpgrad.autograd.freeze import freeze
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.engine.choice import (
    MARGIN,
    ROUND_TRIP_US,
    SCALE_MAX,
    SCALE_MIN,
    SEEN_MIN,
    TRY_AGAIN_EVERY,
    WORTH_A_LOOK_US,
    Choice,
    Experience,
    HandoverCost,
    choose,
    predict_process_us,
    too_small,
)
from mpgrad.engine.session import Session
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.plan import plan
from mpgrad.tensor import gradient_edge


class Slow(mg.Function):
    """Stands for work; what it costs, the test says."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 2


def chosen(graph: FrozenGraph, workers: int, cost: HandoverCost | None = None) -> Choice:
    return too_small(graph, workers) or choose(plan(graph.spec), workers, cost)


@pytest.fixture(autouse=True)
def nothing_learned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "model", CostModel())


def branches(count: int) -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    return mg.stack([Slow.apply(x).sum() for _ in range(count)]).sum()


def chain(length: int) -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    for _ in range(length):
        x = Slow.apply(x)
    return x.sum()


def frozen(loss: mg.Tensor, each_us: float | None = None) -> FrozenGraph:
    """The graph of ``loss``, in which a Slow was measured to take ``each_us``."""

    def make() -> FrozenGraph:
        return freeze([gradient_edge(loss)], [None], keep_graph=True, cost=costs.estimate)

    if each_us is not None:
        for node in make().nodes:
            if node.name() == "SlowBackward":
                costs.observe([(node, each_us)])
    return make()


def test_a_small_graph_stays_here() -> None:
    choice = chosen(frozen(branches(4), 10.0), 8)
    assert choice.mode == "local"
    assert "of work" in choice.reason


def test_wide_heavy_work_goes_to_workers() -> None:
    choice = chosen(frozen(branches(16), 20_000.0), 2)
    assert choice.mode == "process"


def test_a_chain_stays_here_however_heavy() -> None:
    choice = chosen(frozen(chain(16), 20_000.0), 8)
    assert choice.mode == "local"
    assert "workers would take" in choice.reason


def test_one_worker_is_never_faster() -> None:
    assert chosen(frozen(branches(16), 20_000.0), 1).mode == "local"


def test_a_function_that_never_ran_counts_as_expensive() -> None:
    assert chosen(frozen(branches(16)), 2).mode == "process"


def test_the_prediction_is_between_its_bounds() -> None:
    planned = plan(frozen(branches(16), 20_000.0).spec)
    assert planned.work_us == pytest.approx(16 * 20_000, rel=0.01)
    predicted = predict_process_us(planned, 4, HandoverCost())
    assert planned.work_us / 4 < predicted < planned.work_us / 4 * MARGIN
    assert predict_process_us(planned, 1000, HandoverCost()) > planned.critical_path_us


def test_the_margin_decides_close_calls() -> None:
    work = WORTH_A_LOOK_US * 10
    two_of_unequal_length = chosen(frozen(chain(1) + chain(9), work / 10), 2)
    assert two_of_unequal_length.mode == "local"


def test_what_messages_take_here_decides() -> None:
    graph = frozen(branches(16), 600.0)
    here = HandoverCost.measured(ROUND_TRIP_US)
    assert here == HandoverCost()
    assert chosen(graph, 2, here).mode == "process"
    assert chosen(graph, 2, HandoverCost.measured(4 * ROUND_TRIP_US)).mode == "local"


def test_a_busy_start_does_not_decide_for_ever() -> None:
    assert HandoverCost.measured(1e6).task_us == SCALE_MAX * HandoverCost().task_us
    assert HandoverCost.measured(0.0).submit_us == SCALE_MIN * HandoverCost().submit_us


@pytest.mark.process
def test_an_engine_asks_how_long_messages_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "round_trip_us", lambda session: 2 * ROUND_TRIP_US)
    with mg.Engine("process", cpu_workers=1) as engine:
        assert engine._execution.sessions.handover_cost == HandoverCost.measured(2 * ROUND_TRIP_US)
    monkeypatch.undo()
    with mg.Engine("process", cpu_workers=1) as engine, engine._execution.sessions.session() as own:
        assert own.round_trip_us() > 0.0


def test_an_auto_engine_runs_small_graphs_here() -> None:
    with mg.Engine("auto", cpu_workers=2) as engine:
        x = mg.ones(3, requires_grad=True)
        (x * x).sum().backward()
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (1, 0)
        assert engine.coordinator_pid is None


# ---------------------------------------------------------------------- explain()


def hooked() -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    y = Slow.apply(x)
    y.register_hook(lambda grad: None)
    return (y * x).sum()


def test_explain_names_every_node_and_runs_nothing() -> None:
    engine = mg.Engine("process", cpu_workers=2)
    found = engine.explain(hooked())
    assert found.mode == "process"
    assert 'mode="process"' in found.reason
    where = {node.name: (node.where, node.reason) for node in found.nodes}
    assert where["MulBackward0"] == ("worker", "an operator")
    assert where["HooksBefore(SlowBackward)"] == ("client", "hooks run in the calling process")
    assert where["SlowBackward"][0] == "worker"
    assert where["AccumulateGrad"][0] == "worker"
    assert engine.coordinator_pid is None
    engine.close()


def test_explain_says_why_a_function_stays() -> None:
    class Inner(Slow):
        pass

    found = mg.Engine("process").explain(Inner.apply(mg.ones(1, requires_grad=True)))
    (reason,) = (node.reason for node in found.nodes if node.name == "InnerBackward")
    assert "defined inside a function" in reason


def test_explain_in_local_mode() -> None:
    found = mg.Engine("local").explain(hooked())
    assert found.mode == "local"
    assert {node.where for node in found.nodes} == {"client"}


def test_explain_reads_well() -> None:
    text = str(mg.Engine("local").explain(hooked()))
    head, mode, *rows = text.splitlines()
    assert "nodes in" in head
    assert "critical path" in head
    assert mode.startswith("mode: local (")
    assert len(rows) == len(mg.Engine("local").explain(hooked()).nodes)
    assert any("SlowBackward" in row and "us" in row for row in rows)


def test_explain_wants_a_graph() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        mg.Engine("local").explain(mg.ones(1))


PROCESS = Choice("process", "predicted")


def experienced(process_us: float, local_us: float | None = None) -> Experience:
    experience = Experience()
    experience.note("process", 1e6)  # the first one, in which all is made
    for _ in range(SEEN_MIN):
        experience.note("process", process_us)
    if local_us is not None:
        experience.note("local", local_us)
    return experience


def test_workers_that_were_slower_than_this_process_are_not_chosen_again() -> None:
    assert experienced(5000.0).correct(PROCESS, 4000.0).mode == "local"
    assert experienced(5000.0).correct(PROCESS, 6000.0) is PROCESS
    assert experienced(5000.0, local_us=4000.0).correct(PROCESS, 6000.0).mode == "local"
    assert experienced(5000.0, local_us=6000.0).correct(PROCESS, 4000.0) is PROCESS


def test_a_prediction_stands_while_little_is_known() -> None:
    experience = Experience()
    for _ in range(SEEN_MIN - 1):
        experience.note("process", 5000.0)
        assert experience.correct(PROCESS, 4000.0) is PROCESS
    local = Choice("local", "predicted")
    assert experienced(1.0).correct(local, 4000.0) is local


def test_workers_are_tried_again_now_and_then_and_may_have_become_faster() -> None:
    experience = experienced(5000.0)
    chosen = [experience.correct(PROCESS, 4000.0).mode for _ in range(2 * TRY_AGAIN_EVERY)]
    assert chosen.count("process") == 2
    for _ in range(20):
        experience.note("process", 1000.0)
    assert experience.correct(PROCESS, 4000.0) is PROCESS
