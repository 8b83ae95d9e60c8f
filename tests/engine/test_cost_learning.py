"""What the cost model learns from the times of tasks that hold several Nodes."""

from __future__ import annotations

import math
import os
from time import perf_counter
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs import freeze as freezing
from mpgrad.autograd.frozen_graphs.cached_graphs import Memory
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.profiling.task_times import pack_times
from mpgrad.engine.cost_learning import learn, teach, that_ran, wants_times
from mpgrad.nn.functional import conv2d
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Member
from mpgrad.scheduler.tuning import FLOPS_PER_US, SURPRISE_MAX


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


def report(graph: FrozenGraph, rule_us: float, task_us: float) -> None:
    """As if one worker had run all in one task, in which each rule took so long."""
    planned = plan(graph.spec)
    assert len(planned.groups) == 1
    times: list[float] = []
    for _ in that_ran(graph.runs, planned.groups[0]):
        start = times[-1] if times else 0.0
        times += [start, start + rule_us / 1e6]
    ran = ((0, 0, round(task_us), 0, pack_times(times)),)
    learn(graph, planned, CompleteGraph("c1.1", 1, (), (), ran))


def test_the_time_between_rules_is_no_node_s() -> None:
    """It belongs to the task: in another plan there are fewer tasks, or more."""
    loss = chain()
    count = sum(frozen(loss).runs)
    for _ in range(8):
        report(frozen(loss), 50.0, 20_000.0)
    assert work_us(loss) == pytest.approx(50.0 * count, rel=0.15)


def test_a_task_of_one_node_is_no_exception() -> None:
    loss = mg.relu(mg.ones(4, requires_grad=True))
    graph = frozen(loss)
    planned = plan(graph.spec, fuse=False)
    assert wants_times(planned.groups[0][:1])
    for _ in range(3):
        ran = ((0, 0, 5_000, 0, pack_times([0.0, 40e-6])),)
        learn(graph, planned, CompleteGraph("c1.1", 1, (), (), ran))
    assert costs.estimate(graph.nodes[0]) <= 40.0


def test_what_ran_for_the_first_time_in_a_worker_is_forgotten() -> None:
    """The sum of four numbers took 65 us in a new process, and 4 us ever after."""
    loss = mg.ones(4, requires_grad=True).sum()
    [sum_] = [node for node in frozen(loss).nodes if node.name() == "SumBackward0"]
    costs.observe([(sum_, 65.0)])
    assert costs.estimate(sum_) > 10.0
    costs.observe([(sum_, 4.0)])
    assert costs.estimate(sum_) == 4.0


def test_times_of_nodes_tell_those_of_one_task_apart() -> None:
    # One Node's shapes differ from those of the others, so that it has an entry of its own.
    other = (mg.relu(mg.ones(64, 128) @ mg.ones(128, 32, requires_grad=True))).sum()
    graph = frozen(other + chain())
    planned = plan(graph.spec)
    assert len(planned.groups) == 1
    assert wants_times(planned.groups[0])
    long = [
        at
        for at, node in enumerate(graph.nodes)
        if node.name() == "MmBackward0" and node.input_metadata[0].shape == (64, 32)
    ]
    assert len(long) == 1
    times: list[float] = []
    for member in that_ran(graph.runs, planned.groups[0]):
        start = times[-1] if times else 0.0
        times += [start, start + (4e-4 if member.node in long else 1e-5)]
    took = int(times[-1] * 1e6)
    for _ in range(30):
        ran = ((0, 0, took, 0, pack_times(times)),)
        learn(graph, planned, CompleteGraph("c1.1", 1, (), (), ran))
    after = frozen(other + chain())
    learned = {
        node.input_metadata[0].shape: spec.cost_us
        for node, spec in zip(after.nodes, after.spec.nodes, strict=True)
        if spec.name == "MmBackward0"
    }
    assert learned[64, 32] == pytest.approx(400.0, rel=0.05)
    assert learned[128, 128] == pytest.approx(10.0, rel=0.1)


def test_each_half_of_a_node_is_learned_by_itself() -> None:
    x = mg.ones(256, 512)
    for _ in range(4):
        x = x @ mg.ones(512, 512, requires_grad=True)
    loss = x.sum()
    graph = frozen(loss)
    planned = plan(graph.spec, workers=2)
    halved = [member for group in planned.groups for member in group if member.is_half]
    assert len(halved) == 6

    def took_us(member: Member) -> int:
        """The gradient that goes on 900 us, that of the weights 300 us, anything else nothing."""
        edges = graph.spec.nodes[member.node].edges
        return 300 if member.is_half and member.routes[1] is not None else 900 if any(edges) else 0

    def report_all() -> None:
        ran = []
        for task, members in enumerate(planned.groups):
            times: list[float] = []
            for member in that_ran(graph.runs, members):
                start = times[-1] if times else 0.0
                times += [start, start + took_us(member) / 1e6]
            total = int(sum(times[1::2]) * 1e6 - sum(times[::2]) * 1e6)
            ran.append((task, 0, total, 0, pack_times(times)))
        learn(graph, planned, CompleteGraph("c1.1", 1, (), (), tuple(ran)))

    for _ in range(30):
        report_all()
    for spec in frozen(loss).spec.nodes:
        if spec.name == "MmBackward0" and spec.edges[0] is not None:
            assert spec.cost_us == pytest.approx(1200.0, rel=0.02)
            assert spec.second_half_share == pytest.approx(0.25, rel=0.02)


def product(m: int, k: int, n: int, **needs: bool) -> float:
    a = mg.ones(m, k, requires_grad=needs.get("a", True))
    b = mg.ones(k, n, requires_grad=needs.get("b", True))
    [node] = [node for node in frozen((a @ b).sum()).nodes if node.name() == "MmBackward0"]
    return costs.estimate(node)


def test_a_product_is_expected_to_take_as_long_as_it_has_multiplications() -> None:
    """Each gradient of an (m, k) @ (k, n) takes m k n of them, whatever their order."""
    both = product(64, 1024, 512)
    assert product(512, 64, 1024) == pytest.approx(both, rel=0.5)
    assert product(1024, 512, 64) == pytest.approx(both, rel=0.5)
    for only in ("a", "b"):
        other = {"a": "b", "b": "a"}[only]
        assert product(512, 512, 512, **{other: False}) == pytest.approx(
            product(512, 512, 512) / 2, rel=0.2
        )


def test_the_gradient_of_an_image_takes_as_long_as_forward() -> None:
    """Its sums run over the kernel, not over the image."""
    image, kernel = mg.ones(2, 16, 64, 64, requires_grad=True), mg.ones(16, 16, 3, 3)
    [node] = [n for n in frozen(conv2d(image, kernel).sum()).nodes if "Convolution" in n.name()]
    flops = 2 * math.prod(node.input_metadata[0].shape) * 16 * 9
    assert costs.estimate(node) < 3 * flops / FLOPS_PER_US


def test_one_interruption_does_not_make_a_rule_expensive() -> None:
    """Else thousands of tiny Nodes of a kind would be planned as if each took that long."""
    loss = (mg.ones(4, requires_grad=True) * 2.0).sum()
    [product] = [node for node in frozen(loss).nodes if node.name() == "MulBackward0"]
    guess = costs.estimate(product)
    for _ in range(2):
        before = costs.estimate(product)
        costs.observe([(product, 60_000.0)])
        assert costs.estimate(product) <= SURPRISE_MAX * before
    for _ in range(20):
        costs.observe([(product, guess)])
    assert costs.estimate(product) == pytest.approx(guess, rel=0.05)
    while costs.estimate(product) < 400.0:  # but what always takes long is believed soon
        before = costs.estimate(product)
        costs.observe([(product, 600.0)])
        assert costs.estimate(product) > 1.1 * before


def test_nodes_of_a_kind_count_by_their_mean() -> None:
    """Whichever of them was interrupted, and although most are too short to matter."""
    x = mg.ones(4, requires_grad=True)
    for _ in range(100):
        x = x * 2.0
    graph = frozen(x.sum())
    alike = [at for at, node in enumerate(graph.nodes) if node.name() == "MulBackward0"]
    assert len(alike) == 100
    usual = costs.estimate(graph.nodes[alike[0]])
    for interrupted in (alike[0], alike[-1]):
        teach(graph, [(at, 60_000.0 if at == interrupted else usual) for at in alike])
        assert costs.estimate(graph.nodes[alike[0]]) == pytest.approx(usual, rel=0.1)


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
            return grad * os.getpid(), None

    def workers(milliseconds: float) -> int:
        x = mg.ones(8, dtype=mg.float64, requires_grad=True)
        mg.stack([Busy.apply(part, milliseconds) for part in x]).sum().backward()
        return len(set(x.grad.tolist()))

    with mg.Engine("process", cpu_workers=2):
        for _ in range(40):
            workers(0.0)
        # A time counts as at most four times what was expected, so it takes a few.
        assert 2 in [workers(10.0) for _ in range(6)]


def test_the_parts_of_a_product_teach_what_it_takes() -> None:
    x = mg.ones(256, 1024)
    for _ in range(3):
        x = mg.relu(x @ mg.ones(1024, 1024, requires_grad=True))
    loss = x.sum()
    graph = frozen(loss)
    planned = plan(graph.spec, workers=8)
    nodes = {m.node for group in planned.groups for m in group if m.parts}
    assert len(nodes) == 2  # nobody wants the gradient of the first layer's input

    def took_us(member: Member) -> float:
        if member.parts is not None:
            return 5000.0 + 1000.0 * member.parts[0]
        return 34_000.0 if member.is_half else 1.0

    def all_but(missing: int) -> tuple[Any, ...]:
        rows = []
        for task, members in enumerate(planned.groups):
            times, now = [], 0.0
            for member in that_ran(graph.runs, members):
                times += [now, now + took_us(member) / 1e6]
                now = times[-1]
            reported = pack_times(times) if wants_times(members) else None
            if task != missing:
                rows.append((task, 0, round(now * 1e6), 0, reported))
        return tuple(rows)

    parts = [at for at, group in enumerate(planned.groups) if [m.parts for m in group] == [(1, 2)]]
    before = [graph.spec.nodes[node].cost_us for node in nodes]
    learn(graph, planned, CompleteGraph("c1.1", 1, (), (), all_but(parts[0])))
    learn(graph, planned, CompleteGraph("c1.1", 1, (), (), all_but(-1)))
    specs = [frozen(loss).spec.nodes[node] for node in nodes]
    # 5 + 6 + 7 + 8 ms of parts, and 34 of weights' gradients.
    assert before != [60_000.0] * 2
    for spec in specs:
        assert spec.cost_us == pytest.approx(60_000.0, rel=0.1)
        assert spec.second_half_share == pytest.approx(34 / 60, rel=0.05)
