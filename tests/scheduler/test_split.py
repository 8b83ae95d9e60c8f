"""split(): a chain of expensive Nodes whose weight gradients can run beside the chain."""

from __future__ import annotations

from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import CAPTURE, Plan
from mpgrad.scheduler.split import parts_of, split, split_above_us
from mpgrad.scheduler.tuning import MESSAGE_US, worth_us
from simulation.spec_invariants import check_spec

SPLIT_ABOVE_US = split_above_us(MESSAGE_US)
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
    assert halved.nodes[0].passes == (6,)
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


def side_by_side(count: int) -> GraphSpec:
    """So many chains of two layers with no edge between them."""
    one = layers(2)
    size = len(one.nodes)
    nodes = tuple(
        node._replace(edges=tuple((to + at * size, nr) for to, nr in filter(None, node.edges)))
        for at in range(count)
        for node in one.nodes
    )
    seeds = tuple((at * size, 0) for at in range(count))
    captures = tuple((node + at * size, nr) for at in range(count) for node, nr in one.captures)
    return GraphSpec(nodes, seeds, captures, serial_order(nodes, seeds))


def test_many_workers_fill_the_end_of_a_wide_graph_with_second_halves() -> None:
    spec = side_by_side(16)
    assert halves(plan(spec, workers=2)) == 0
    planned = plan(spec, workers=4)
    # The first layer of each chain; the second has nothing but weights.
    assert halves(planned) == 2 * 16


def test_a_sum_of_both_outputs_keeps_its_order() -> None:
    """The leaf that both outputs flow into adds them in their order: such a Node stays whole."""
    leaf = NodeSpec("Leaf", 1 << 40, (), (1 << 20,), 0.0, is_sink=True)
    square = NodeSpec("Square", 1, ((1, 0), (1, 0)), (1 << 20,), DEAR_US, is_splittable=True)
    spec = GraphSpec((square, leaf), ((0, 0),), ((1, 0),), (0, 1))
    assert split(spec)[0] == spec


def cuttable(count: int, parts: int = 4) -> GraphSpec:
    """Layers whose first output can be computed in parts; these end with a cheap Node each.

    (The input of a layer is where its own halves and parts get their gradient from.)
    """
    spec = layers(count, cost_us=2 * worth_us(MESSAGE_US) * parts)
    nodes = tuple(
        node if node.is_sink else node._replace(part_nbytes=((1 << 20) // parts,) * parts)
        for node in spec.nodes
    )
    return spec._replace(nodes=nodes)


def shares(planned: Plan) -> list[tuple[int, tuple[int, int]]]:
    return [(m.node, m.parts) for group in planned.groups for m in group if m.parts is not None]


def test_more_than_two_workers_share_the_product_that_others_wait_for() -> None:
    spec = cuttable(3)
    assert shares(plan(spec, workers=2)) == []
    planned = plan(spec, workers=4)
    in_parts = [(node, parts) for node in (0, 2) for parts in ((0, 2), (2, 4))]
    assert sorted(shares(planned)) == in_parts
    many = shares(plan(spec, workers=64))
    assert sorted(many) == [(node, (at, at + 1)) for node in (0, 2) for at in range(4)]
    assert planned.work_us == plan(spec, workers=1).work_us
    assert planned.critical_path_us < plan(spec, workers=2).critical_path_us / 1.3
    assert planned.groups[0][0].publishes  # the others get the gradient before the first part runs
    assert sum(m.is_half for group in planned.groups for m in group) == 2 * 3


def test_parts_are_joined_where_they_flow_into() -> None:
    planned = plan(cuttable(2, parts=5), workers=4)
    (consumer,) = [task for task, slots in enumerate(planned.joins) if slots]
    assert planned.joins[consumer] == ((0, 5),)
    assert planned.tasks[consumer].places == (3,)
    outputs = [output for task in planned.tasks for output in task.outputs]
    parts = [output for output in outputs if (output.task, output.slot) == (consumer, 0)]
    assert [(output.place, output.nbytes) for output in parts] == [
        (place, (1 << 20) // 5 * parts) for place, parts in enumerate((1, 2, 2))
    ]
    assert [parts for _, parts in shares(planned)] == [(0, 1), (1, 3), (3, 5)]
    assert [parts_of(share, 3, 5) for share in range(3)] == [(0, 1), (1, 3), (3, 5)]


def test_a_product_is_cut_only_where_its_gradient_arrives_alone_on_a_worker() -> None:
    spec = cuttable(2)

    def with_second(**changes: object) -> GraphSpec:
        nodes = [
            node._replace(**changes) if at == 2 else node for at, node in enumerate(spec.nodes)
        ]
        return spec._replace(nodes=tuple(nodes))

    assert shares(plan(spec, workers=4))
    assert shares(plan(with_second(on_client=True), workers=4)) == []
    assert shares(plan(with_second(device=0), workers=4)) == []
    seeded = spec._replace(seeds=((0, 0), (2, 0)))
    assert shares(plan(seeded, workers=4)) == []
    cheap = [node._replace(cost_us=node.cost_us / 2.1) for node in cuttable(2, parts=2).nodes]
    assert shares(plan(spec._replace(nodes=tuple(cheap)), workers=4)) == []


def test_a_product_without_weights_is_cut_as_well() -> None:
    product, _, last, leaf = cuttable(2).nodes
    nodes = (
        product._replace(edges=((1, 0), None)),
        last._replace(edges=(None, (2, 0))),
        leaf,
    )
    spec = GraphSpec(nodes, ((0, 0),), ((2, 0),), (0, 1, 2))
    planned = plan(spec, workers=4)
    assert shares(planned) == [(0, (0, 2)), (0, (2, 4))]


def test_no_more_workers_share_a_product_than_its_largest_share_asks_for() -> None:
    widths = {
        (workers, parts): [stop - first for _, (first, stop) in shares(planned)]
        for workers, parts in ((3, 8), (8, 8), (8, 6), (64, 8))
        for planned in [plan(cuttable(2, parts), workers=workers)]
    }
    assert widths == {(3, 8): [4, 4], (8, 8): [2] * 4, (8, 6): [2] * 3, (64, 8): [1] * 8}
