"""The serial order is PyTorch's, and a malformed table is found out."""

from __future__ import annotations

from random import Random

import pytest

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, reaches, serial_order
from simulation.random_graphs import random_graph
from simulation.spec_invariants import check_spec


def node(sequence_nr: int, *targets: tuple[int, int] | None, inputs: int = 1) -> NodeSpec:
    return NodeSpec("Node", sequence_nr, targets, (8,) * inputs, 1.0)


def test_of_the_ready_nodes_the_one_recorded_last_runs_first() -> None:
    nodes = (node(9, (1, 0), (2, 0), (3, 0)), node(2), node(7), node(5))
    assert serial_order(nodes, [(0, 0)]) == (0, 2, 3, 1)


def test_a_node_waits_for_all_its_contributions() -> None:
    nodes = (node(3, (2, 0), (1, 0), (2, 0)), node(1, (2, 0)), node(9))
    assert serial_order(nodes, [(0, 0)]) == (0, 1, 2)


def test_a_seed_in_the_middle_does_not_make_its_node_ready() -> None:
    nodes = (node(1, (1, 0)), node(9))
    assert serial_order(nodes, [(1, 0), (0, 0), (0, 0)]) == (0, 1)


def test_equal_numbers_go_by_index() -> None:
    nodes = (node(5, (2, 0), (1, 0)), node(1), node(1))
    assert serial_order(nodes, [(0, 0)]) == (0, 1, 2)


def test_a_cycle_is_an_error() -> None:
    nodes = (node(3, (1, 0)), node(2, (2, 0)), node(1, (1, 0)))
    with pytest.raises(RuntimeError, match="cycle"):
        serial_order(nodes, [(0, 0)])


def test_a_long_chain_does_not_recurse() -> None:
    count = 150_000
    nodes = [node(count - at, (at + 1, 0)) for at in range(count - 1)]
    nodes.append(node(0))
    assert serial_order(nodes, [(0, 0)]) == tuple(range(count))
    assert all(reaches([n.edges for n in nodes], [count - 1]))


def test_reaches_walks_edges_backwards() -> None:
    edges = [((1, 0), (2, 0)), ((3, 0),), (None,), ()]
    assert reaches(edges, [3]) == [True, True, False, True]
    assert reaches(edges, []) == [False] * 4


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_pass(seed: int) -> None:
    check_spec(random_graph(Random(seed)).spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": (0, 0)}, "every node once"),
        ({"order": (1, 0)}, "before its producer"),
        ({"seeds": ((2, 0),)}, "node 2, which does not exist"),
        ({"captures": ((1, 1),)}, "input 1, which does not exist"),
        ({"captures": ((-1, 0),)}, "node -1, which does not exist"),
    ],
)
def test_a_malformed_table_is_found_out(change: dict, message: str) -> None:
    spec = GraphSpec((node(2, (1, 0)), node(1)), ((0, 0),), ((1, 0),), (0, 1))
    check_spec(spec)
    with pytest.raises(InvariantViolated, match=message):
        check_spec(spec._replace(**change))
