"""split(): a chain of expensive Nodes whose weight gradients can run beside the chain."""

from __future__ import annotations

from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, check_spec, serial_order
from mpgrad.scheduler.plan import CAPTURE, Plan, plan
from mpgrad.scheduler.split import SPLIT_ABOVE_US, split

DEAR_US = 2.0 * SPLIT_ABOVE_US


def layers(count: int, *, cost_us: float = DEAR_US, is_splittable: bool = True) -> GraphSpec:
    """Layer k is node 2k: output 0 flows into layer k+1, output 1 into the leaf 2k+1."""
    nodes: list[NodeSpec] = []
    for at in range(count):
        below = (2 * at + 2, 0) if at + 1 < count else None
        nodes += [
            NodeSpec(
                f"Layer{at}",
                count - at,
                (below, (2 * at + 1, 0)),
                (1 << 20,),
                cost_us,
                is_splittable=is_splittable,
            ),
            NodeSpec(f"Leaf{at}", 1 << 40, (), (1 << 20,), 0.0, is_sink=True),
        ]
    seeds = ((0, 0),)
    captures = tuple((2 * at + 1, 0) for at in range(count))
    return GraphSpec(tuple(nodes), seeds, captures, serial_order(nodes, seeds))


def halves(planned: Plan) -> int:
    return sum(member.is_half for group in planned.groups for member in group)


def test_the_halves_share_the_outputs() -> None:
    halved, origin = split(layers(3))
    check_spec(halved)
    assert origin == (0, 1, 2, 3, 4, 5, 0, 2)
    assert halved.nodes[0].edges == ((2, 0), None)
    assert halved.nodes[0].passes == ((6, 0),)
    assert halved.nodes[6].edges == (None, (1, 0))
    assert halved.nodes[4].edges == (None, (5, 0))  # the last layer has one output, and stays


def test_the_critical_path_leaves_the_weights_out() -> None:
    spec = layers(8)
    assert plan(spec, workers=1).critical_path_us == 8 * DEAR_US
    planned = plan(spec, workers=2)
    assert planned.critical_path_us == 7 * DEAR_US / 2 + DEAR_US
    assert planned.work_us == 8 * DEAR_US
    assert halves(planned) == 14


def test_the_second_half_gets_the_complete_gradient_from_the_first() -> None:
    planned = plan(layers(2), workers=2)
    first, second = planned.tasks
    assert planned.groups[0][0].captures[0][0] == 0
    assert (first.outputs[0].task, first.outputs[0].slot) == (1, 0)
    assert [output.task for output in second.outputs] == [CAPTURE]
    assert planned.groups[1][0].routes == (None, 0)


def test_nothing_is_split_without_need() -> None:
    assert halves(plan(layers(4), workers=1)) == 0
    assert halves(plan(layers(4, cost_us=SPLIT_ABOVE_US / 2), workers=2)) == 0
    assert halves(plan(layers(4, is_splittable=False), workers=2)) == 0
    branches = layers(1)
    apart = GraphSpec(
        tuple(
            node._replace(edges=tuple(e and (e[0] + 2 * at, e[1]) for e in node.edges))
            for at in range(4)
            for node in branches.nodes
        ),
        tuple((2 * at, 0) for at in range(4)),
        tuple((2 * at + 1, 0) for at in range(4)),
        tuple(range(8)),
    )
    assert halves(plan(apart, workers=4)) == 0


def test_a_sum_of_both_outputs_keeps_its_order() -> None:
    """The leaf that both outputs flow into adds them in their order: such a Node stays whole."""
    leaf = NodeSpec("Leaf", 1 << 40, (), (1 << 20,), 0.0, is_sink=True)
    square = NodeSpec("Square", 1, ((1, 0), (1, 0)), (1 << 20,), DEAR_US, is_splittable=True)
    spec = GraphSpec((square, leaf), ((0, 0),), ((1, 0),), (0, 1))
    assert split(spec)[0] == spec
