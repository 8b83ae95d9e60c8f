"""What was made of a graph's tables serves the same tables again, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import freeze as freezing
from mpgrad.autograd.frozen_graphs.cached_graphs import ENGINES_MAX, Memory
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.preparation import Preparation, PreparedGraph, wiring_of
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.tuning import SAMPLES
from mpgrad.wire.programs import (
    InlineArray,
    OperatorRule,
    Rule,
    TaskProgram,
    decode_program,
    decode_wiring,
    encode_wiring,
)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_memory", Memory())


def frozen(size: int = 3, steps: int = 2) -> FrozenGraph:
    x = mg.ones(size, requires_grad=True)
    for _ in range(steps):
        x = mg.relu(x)
    return frozen_of(x.sum())


def frozen_of(root: mg.Tensor) -> FrozenGraph:
    return freeze([gradient_edge(root)], [None], keep_graph=True, cost=_one)


def _one(_: Node) -> float:
    return 1.0


def preparation(cpu_workers: int = 2, mode: str = "process") -> Preparation:
    return Preparation(
        EngineOptions.checked(mode, cpu_workers, "none", None, 1, "worker", None, None)
    )


def like(graph: FrozenGraph) -> FrozenGraph:
    """Another graph with the very same tables."""
    return graph._replace(nodes=tuple(graph.nodes))


def test_the_same_tables_are_prepared_once() -> None:
    made = preparation()
    first = made.plan_of(frozen())
    again = frozen()
    assert made.plan_of(again) is first
    assert preparation(cpu_workers=3).plan_of(again) is not first
    assert made.plan_of(frozen(size=4)) is not first


def test_what_cannot_come_again_is_not_kept() -> None:
    made, graph = preparation(), frozen()._replace(remembered=None)
    assert made.plan_of(graph) is not made.plan_of(graph)
    assert made.plan_of(graph).plan is made.plan_of(graph).plan


def test_few_engines_keep_what_they_made_of_a_graph() -> None:
    graph = frozen()
    for workers in range(1, 2 * ENGINES_MAX):
        preparation(cpu_workers=workers).plan_of(graph)
    assert graph.remembered is not None
    assert len(graph.remembered.prepared) == ENGINES_MAX


def test_a_graph_whose_nodes_move_to_the_client_is_planned_anew() -> None:
    made, graph = preparation(), frozen()
    first = made.plan_of(graph)
    nodes = list(graph.spec.nodes)
    nodes[1] = nodes[1]._replace(on_client=True)
    moved = graph._replace(spec=graph.spec._replace(nodes=tuple(nodes)))
    assert any(task.on_client for task in made.plan_of(moved).plan.tasks)
    assert not any(task.on_client for task in first.plan.tasks)


def test_a_plan_serves_until_costs_have_changed_in_earnest() -> None:
    made, graph = preparation(), frozen()

    def planned(factor: float) -> PreparedGraph:
        nodes = [node._replace(cost_us=factor * node.cost_us) for node in graph.spec.nodes]
        return made.plan_of(graph._replace(spec=graph.spec._replace(nodes=tuple(nodes))))

    first = planned(1.0)
    assert planned(1.1) is first
    assert planned(10.0) is not first
    assert planned(10.0) is planned(11.0)


@pytest.mark.parametrize("mode", ["process", "auto"])
def test_rules_that_take_less_than_what_surrounds_them_are_not_planned_anew(mode: str) -> None:
    made, graph = preparation(mode=mode), frozen()
    first = made.plan_of(graph)
    for factor in (0.2, 4.0):
        nodes = [node._replace(cost_us=factor * node.cost_us) for node in graph.spec.nodes]
        spec = graph.spec._replace(nodes=tuple(nodes))
        assert (made.plan_of(graph._replace(spec=spec)) is first) == (mode == "process")


def test_programs_are_those_of_the_graph() -> None:
    small, large = frozen(3), frozen(5)
    for graph in (small, large):
        found = PreparedGraph(graph.spec, plan(graph.spec))
        for task, members in enumerate(found.plan.groups):
            expected = tuple(encode_wiring(wiring_of(graph, member)) for member in members)
            programs = found.programs(graph, task)
            wirings = [p if isinstance(p, bytes) else p.wiring for p in programs]
            assert tuple(wirings) == expected
            assert found.programs(like(graph), task) is programs
            for wiring, member in zip(expected, members, strict=True):
                shapes = [meta.shape for meta in decode_wiring(wiring).inputs]
                assert shapes == [m.shape for m in graph.nodes[member.node].input_metadata]


#: Operators of which the graph does not say everything: what differs is no shape.
OTHERWISE: dict[str, Callable[[mg.Tensor, int], mg.Tensor]] = {
    "a scalar": lambda x, step: x * (2.0 + step),
    "an exponent": lambda x, step: x ** (2 + step),
    "bounds": lambda x, step: x.clamp(0.0, 1.0 + step),
    "an index": lambda x, step: x[step : step + 2],
    "a saved tensor": lambda x, step: x * mg.full((4, 4), 1.0 + step),
    "a dimension": lambda x, step: x.flip(step),
    "the sizes beside it": lambda x, step: mg.cat([mg.ones(1 + step, 4), x, mg.ones(2 - step, 4)]),
    "nothing but sums": lambda x, step: (x + step) + x.sum(),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_differs_between_two_steps_is_never_taken_from_the_first(name: str) -> None:
    def packed(graph: FrozenGraph, known: PreparedGraph) -> list[TaskProgram]:
        submission = GraphSubmission(graph, known, {})
        programs = submission.programs(range(len(known.plan.tasks)))
        decoded = [decode_program(program) for _, program in programs]
        submission.close()
        return decoded

    first, second = (
        frozen_of(OTHERWISE[name](mg.ones(4, 4, requires_grad=True), step).sum())
        for step in range(2)
    )
    assert second.spec is first.spec
    known = PreparedGraph(first.spec, plan(first.spec))
    packed(first, known)
    fresh = PreparedGraph(second.spec, known.plan)
    assert without_places(packed(second, known)) == without_places(packed(second, fresh))


def without_places(programs: list[TaskProgram]) -> list[Any]:
    """What is packed, wherever it was put."""
    return [
        [(node.wiring, getattr(node.rule, "plain", None), contents(node.rule)) for node in p.nodes]
        for p in programs
    ]


def contents(rule: Rule) -> Any:
    if not isinstance(rule, OperatorRule):
        return None
    return {
        name: packed.data if isinstance(packed, InlineArray) else packed.handle
        for name, packed in rule.saved.items()
    }


def test_every_use_teaches_at_first_and_then_now_and_then() -> None:
    graph = frozen()
    found = PreparedGraph(graph.spec, plan(graph.spec))
    learned = [found.count_use() for _ in range(SAMPLES + 4 * SAMPLES)]
    assert all(learned[:SAMPLES])
    assert sum(learned[SAMPLES:]) == 4


def test_only_a_sudden_change_is_a_surprise() -> None:
    """Not a graph whose cost was guessed wrong and cannot be learned: it would never grow old."""
    known = frozen().remembered
    far = 1e9
    assert [known.is_surprised_by(took) for took in (far, far, 1.5 * far, far)] == [False] * 4
    assert [known.is_surprised_by(took) for took in (far / 100, far / 100)] == [True, False]
    known.spec = known.spec._replace()  # its tables are renewed
    assert [known.is_surprised_by(took) for took in (far, far)] == [True, False]
    assert known.uses == 0
