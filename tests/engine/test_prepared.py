"""What was made of a graph's tables serves the same tables again, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd import freeze as freezing
from mpgrad.autograd.freeze import freeze
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.nodes.node import Node
from mpgrad.autograd.recurring_graphs import Memory
from mpgrad.engine import prepared
from mpgrad.engine.handover import Handover
from mpgrad.engine.prepared import PreparedGraph, PreparedGraphs
from mpgrad.engine.wiring import wiring_of
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.tuning import YOUNG_USES
from mpgrad.shm.arena import client_arena
from mpgrad.tensor import gradient_edge
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


def like(graph: FrozenGraph) -> FrozenGraph:
    """Another graph with the very same tables."""
    return graph._replace(nodes=tuple(graph.nodes))


def test_the_same_tables_are_prepared_once() -> None:
    graphs = PreparedGraphs(plan)
    graph = frozen()
    first = graphs.of(graph.spec, may_recur=True)
    assert graphs.of(like(graph).spec, may_recur=True) is first
    equal = graph.spec._replace()
    assert equal == graph.spec
    assert graphs.of(equal, may_recur=True) is not first


def test_what_cannot_come_again_is_not_kept() -> None:
    graphs = PreparedGraphs(plan)
    graph = frozen()
    first = graphs.of(graph.spec, may_recur=False)
    assert graphs.of(graph.spec, may_recur=False) is not first


def test_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "NODES_MAX", 20)
    graphs = PreparedGraphs(plan)
    graph = frozen()
    first = graphs.of(graph.spec, may_recur=True)
    others = [frozen(steps=steps) for steps in range(3, 9)]
    made = []
    for other in others:
        made.append(graphs.of(other.spec, may_recur=True))
        assert graphs.of(graph.spec, may_recur=True) is first
    assert graphs.of(others[0].spec, may_recur=True) is not made[0]


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
        handover = Handover(graph, known, {})
        places = handover.programs(range(len(known.plan.tasks)))
        programs = [client_arena().segment.buffer[at : at + size] for at, size in places]
        decoded = [decode_program(bytes(program)) for program in programs]
        handover.close()
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
    learned = [found.learns() for _ in range(YOUNG_USES + 4 * YOUNG_USES)]
    assert all(learned[:YOUNG_USES])
    assert sum(learned[YOUNG_USES:]) == 4


def test_only_a_sudden_change_is_a_surprise() -> None:
    """Not a graph whose cost was guessed wrong and cannot be learned: it would never grow old."""
    known = frozen().remembered
    far = 1e9
    assert [known.is_surprised_by(took) for took in (far, far, 1.5 * far, far)] == [False] * 4
    assert [known.is_surprised_by(took) for took in (far / 100, far / 100)] == [True, False]
    known.spec = known.spec._replace()  # its tables are renewed
    assert [known.is_surprised_by(took) for took in (far, far)] == [True, False]
    assert known.is_young
