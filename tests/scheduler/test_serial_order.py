"""The order of a graph whose numbers fall along its edges is that of the serial engine's heap."""

from __future__ import annotations

from random import Random

import pytest

from mpgrad.scheduler.graph_spec import (
    GraphSpec,
    NodeSpec,
    Target,
    _falling_order,
    _order_of_ready,
    serial_order,
)

#: The number of all leaves.
TOP = 1 << 62


def random_spec(random: Random, *, recorded_once: bool) -> GraphSpec:
    """Nodes that lead to Nodes behind them, and to leaves; numbered as on one thread or not."""
    inner, leaves = random.randint(1, 12), random.randint(0, 6)
    numbers = random.sample(range(100), inner)
    if recorded_once:
        numbers.sort(reverse=True)
    else:
        numbers[random.randrange(inner)] = numbers[random.randrange(inner)]
    edges: list[list[Target | None]] = [[] for _ in range(inner + leaves)]
    for at in range(1, inner + leaves):
        for before in random.choices(range(min(at, inner)), k=random.randint(1, 3)):
            edges[before] += [None, (at, 0)] if random.random() < 0.2 else [(at, 0)]
    order = list(range(inner + leaves))
    random.shuffle(order)
    place = {at: index for index, at in enumerate(order)}
    nodes = [
        NodeSpec(
            "Node",
            TOP if at >= inner else numbers[at],
            tuple([edge and (place[edge[0]], edge[1]) for edge in edges[at]]),
            (4,),
            1.0,
        )
        for at in order
    ]
    return GraphSpec(tuple(nodes), ((place[0], 0),), (), ())


@pytest.mark.parametrize("recorded_once", [True, False])
def test_random_graphs(recorded_once: bool) -> None:
    random, fell = Random(0), 0
    for _ in range(2000):
        spec = random_spec(random, recorded_once=recorded_once)
        expected = _order_of_ready(spec.nodes, spec.seeds)
        assert serial_order(spec.nodes, spec.seeds) == expected
        fell += _falling_order(spec.nodes, spec.seeds) is not None
    assert fell > 1900 if recorded_once else fell < 1900


def test_several_seeds_and_a_leaf_that_is_one() -> None:
    nodes = (
        NodeSpec("A", 5, ((2, 0),), (4,), 1.0),
        NodeSpec("B", 7, ((2, 0), (3, 0)), (4,), 1.0),
        NodeSpec("C", 3, ((3, 0),), (4,), 1.0),
        NodeSpec("Leaf", TOP, (), (4,), 1.0),
    )
    for seeds in (((1, 0), (0, 0)), ((0, 0), (1, 0), (3, 0)), ((0, 0), (1, 0), (2, 0))):
        assert serial_order(nodes, seeds) == _order_of_ready(nodes, seeds) == (1, 0, 2, 3)
    alone = (NodeSpec("Leaf", TOP, (), (4,), 1.0),)
    assert serial_order(alone, ((0, 0),)) == (0,)


def test_a_node_that_never_becomes_ready_is_an_error() -> None:
    nodes = (NodeSpec("A", 5, (), (4,), 1.0), NodeSpec("B", 7, (), (4,), 1.0))
    with pytest.raises(RuntimeError, match="cycle"):
        serial_order(nodes, ((0, 0),))
