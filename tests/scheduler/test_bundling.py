"""bundle(): groups without a path between them share a task, as few as keep the workers busy."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from mpgrad.scheduler.bundling import bundle
from mpgrad.scheduler.fusion import group
from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.scheduler.tuning import MESSAGE_US, TASK_MAX_US, worth_us
from simulation.random_graphs import random_graph


def graph(edges: dict[int, Iterable[int]], costs: list[float], **flags: set[int]) -> GraphSpec:
    """One input per Node; Node 0 is the root; ``flags`` name the Nodes that have them."""
    nodes = tuple(
        NodeSpec(
            f"Node{at}", len(costs) - at, tuple((t, 0) for t in edges.get(at, ())), (8,), cost,
            **{flag: at in which for flag, which in flags.items()},
        )
        for at, cost in enumerate(costs)
    )  # fmt: skip
    return GraphSpec(nodes, ((0, 0),), (), serial_order(nodes, ((0, 0),)))


def fan(count: int, cost: float, *, links: int = 1, **flags: set[int]) -> GraphSpec:
    """``count`` branches of ``links`` Nodes behind a cheap root."""
    edges: dict[int, Iterable[int]] = {0: range(1, count + 1)}
    for at in range(1, count * (links - 1) + 1):
        edges[at] = [at + count]
    return graph(edges, [1.0] + [cost] * count * links, **flags)


def nodes_of(planned: Plan) -> list[list[int]]:
    return [[member.node for member in members] for members in planned.groups]


# ----------------------------------------------------------------------- any graph


@pytest.mark.parametrize("seed", range(150))
def test_bundles_of_any_graph_are_sound(seed: int) -> None:
    rng = Random(seed)
    spec = random_graph(rng, client_share=0.3, devices=(0, 1) if seed % 3 == 0 else ()).spec
    gpu_workers = {0: 1, 1: rng.choice((1, 2))}
    grouping = group(spec, fuse=True, workers=rng.choice((1, 2, 8)), gpu_workers=gpu_workers)
    bundle_of, bundles, _ = bundle(spec, grouping)
    position = {node: at for at, node in enumerate(spec.order)}
    assert sorted(node for nodes in bundles for node in nodes) == list(range(len(spec.nodes)))
    on_client = []
    for number, nodes in enumerate(bundles):
        assert all(bundle_of[node] == number for node in nodes)
        assert nodes == sorted(nodes, key=position.__getitem__)
        on_client += [number for node in nodes[:1] if spec.nodes[node].on_client]
        # (Sinks are nowhere.)
        shared = [spec.nodes[node] for node in nodes if not spec.nodes[node].is_sink]
        assert len({(node.device, node.on_client) for node in shared}) <= 1
        # Parts need not be equal, and what is not worth a message may join beyond the limit.
        groups = {grouping.group_of[node] for node in nodes}
        largest = max(grouping.total_us[group] for group in groups)
        total = sum(spec.nodes[node].cost_us for node in nodes)
        assert total <= max(1.5 * TASK_MAX_US, largest) + worth_us(MESSAGE_US)
    for producer, node in enumerate(spec.nodes):
        for target in node.edges:
            # Bundles are numbered in a topological order: no cycle.
            assert target is None or bundle_of[producer] <= bundle_of[target[0]]
    # Hooks run in serial order, each after the one before: those edges make no cycle either.
    firsts = [position[bundles[number][0]] for number in on_client]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("seed", range(100))
def test_what_comes_from_outside_comes_first(seed: int) -> None:
    """In serial order, as in the task: so the sum is that of the serial engine."""
    spec = random_graph(Random(seed), client_share=0.2, devices=(0, 1)[: seed % 3]).spec
    planned = plan(spec, workers=2)
    sides: dict[tuple[int, int], list[bool]] = {}
    for producer in spec.order:
        for target in spec.nodes[producer].edges:
            if target is not None:
                is_inside = planned.task_of[producer] == planned.task_of[target[0]]
                sides.setdefault(target, []).append(is_inside)
    assert all(inside == sorted(inside) for inside in sides.values())


# ----------------------------------------------------------------------- what shares a task


def test_tiny_branches_share_as_few_tasks_as_keep_the_workers_busy() -> None:
    planned = plan(fan(16, 200.0), workers=2)
    assert [len(nodes) for nodes in nodes_of(planned)] == [1, 8, 8]
    planned = plan(fan(16, 200.0), workers=4)
    assert [len(nodes) for nodes in nodes_of(planned)] == [1, 4, 4, 4, 4]


def test_two_workers_get_one_bundle_each_where_the_second_would_come_with_it() -> None:
    """What both of a worker's bundles hold is decided at once: a second one balances nothing."""
    planned = plan(fan(8, 3000.0), workers=2)
    assert [len(nodes) for nodes in nodes_of(planned)] == [1, 4, 4]
    planned = plan(fan(32, 3000.0), workers=2)
    assert len(planned.tasks) == 1 + 3 * 2


def test_no_task_is_made_that_is_not_worth_a_message() -> None:
    planned = plan(fan(16, worth_us(MESSAGE_US) / 17), workers=8)
    assert len(planned.tasks) == 1
    planned = plan(fan(16, worth_us(MESSAGE_US) / 2), workers=64)
    assert [len(nodes) for nodes in nodes_of(planned)] == [1] + [2] * 8


def test_branches_on_a_gpu_are_shared_by_its_workers() -> None:
    """All of them: how long a Node is at work on the GPU is not in what it costs the worker."""
    spec = fan(16, 150.0, links=3)
    spec = spec._replace(nodes=tuple(node._replace(device=1) for node in spec.nodes))
    assert [len(nodes) for nodes in nodes_of(plan(spec, workers=8))] == [1, 48]
    planned = plan(spec, workers=1, gpu_workers={0: 4, 1: 2})
    assert [len(nodes) for nodes in nodes_of(planned)] == [1, 24, 24]


def test_branches_on_two_devices_share_nothing() -> None:
    spec = fan(8, 100.0)
    devices = [ON_CPU, *[0, 1] * 4]
    nodes = [node._replace(device=at) for node, at in zip(spec.nodes, devices, strict=True)]
    assert nodes_of(plan(spec._replace(nodes=tuple(nodes)), workers=2)) == [
        [0],
        [1, 3, 5, 7],
        [2, 4, 6, 8],
    ]


def test_expensive_branches_stay_apart() -> None:
    planned = plan(fan(8, 200.0 * MESSAGE_US), workers=2)
    assert [len(nodes) for nodes in nodes_of(planned)] == [1] + [1] * 8


def test_the_most_urgent_of_a_level_is_numbered_first() -> None:
    """Tasks are handed over by number: workers begin with what most depends on."""
    spec = graph({0: [1, 2, 3], 2: [4, 5]}, [1.0, *[200.0 * MESSAGE_US] * 5])
    first, *level = nodes_of(plan(spec, workers=2))
    assert (first, level[0]) == ([0], [2])
    assert [nodes[0] for nodes in level] == [2, 1, 3, 4, 5]


def test_branches_stay_whole() -> None:
    """The links of a branch follow their producer's bundle, and join it."""
    spec = fan(8, 300.0, links=2)
    # As if fusion had left each link alone.
    bundle_of, bundles, _ = bundle(spec, group(spec, fuse=False))
    assert [len(nodes) for nodes in bundles] == [1, 8, 8]
    for first in range(1, 9):
        assert bundle_of[first] == bundle_of[first + 8]


def test_a_level_waits_for_the_client_in_between() -> None:
    """1 and 4 have no path between them, but hooks 2 and 3 run in turn: 1 -> 2, then 3 -> 4.

    Were 1 and 4 one task, 2 would wait for 3, which waits for 2.
    """
    spec = graph({0: [1, 3], 1: [2], 3: [4]}, [1.0, 90.0, 1.0, 1.0, 90.0], on_client={2, 3})
    spec = spec._replace(order=(0, 1, 2, 3, 4))
    planned = plan(spec, workers=1)
    assert planned.task_of[1] != planned.task_of[4]
    assert planned.task_of[1] < planned.task_of[2] < planned.task_of[3] < planned.task_of[4]


def test_sums_of_leaves_share_a_task_unless_they_are_work() -> None:
    """Large gradients are added up by as many workers as there are."""

    def leaves(nbytes: int) -> int:
        nodes = [NodeSpec("Root", 9, tuple((at, 0) for at in range(1, 5)), (8,), 1.0)]
        nodes += [NodeSpec("Branch", 8 - at, ((5, 0), (6, 0)), (8,), 9e4) for at in range(4)]
        nodes += [NodeSpec("Leaf", 1 << 40, (), (nbytes,), 0.0, is_sink=True) for _ in range(2)]
        spec = GraphSpec(tuple(nodes), ((0, 0),), ((5, 0), (6, 0)), serial_order(nodes, ((0, 0),)))
        planned = plan(spec, workers=2)
        return len({planned.task_of[5], planned.task_of[6]})

    assert leaves(64) == 1
    assert leaves(1 << 23) == 2


# ----------------------------------------------------------------------- branches of workers


@pytest.mark.parametrize("seed", range(60))
def test_branches_that_one_task_has_recorded_share_a_task(seed: int) -> None:
    rng = Random(seed)
    spec = random_graph(rng, client_share=0.1).spec
    branches = {at for at, node in enumerate(spec.nodes) if node.is_for_cpu and rng.random() < 0.4}
    nodes = tuple(
        node._replace(is_branch=at in branches, cost_us=max(node.cost_us, MESSAGE_US))
        if at in branches
        else node
        for at, node in enumerate(spec.nodes)
    )
    spec = spec._replace(nodes=nodes)
    tasks = rng.choice((1, 3, 8))
    together = tuple([rng.randrange(tasks) if at in branches else -1 for at in range(len(nodes))])
    grouping = group(spec, fuse=True, workers=2)
    bundle_of, bundles, _ = bundle(spec, grouping, together=together)
    for nodes_of_bundle in bundles:
        recorded = {together[at] for at in nodes_of_bundle if at in branches}
        groups = {grouping.group_of[at] for at in nodes_of_bundle if at in branches}
        assert len(recorded) <= 1 or len(groups) == 1
    for producer, node in enumerate(spec.nodes):
        for target in node.edges:
            assert target is None or bundle_of[producer] <= bundle_of[target[0]]


def test_a_task_of_branches_has_a_longest_time() -> None:
    spec = fan(8, TASK_MAX_US / 3, is_branch=set(range(1, 9)))
    together = (-1, 0, 0, 0, 0, 1, 1, 2, 3)
    assert nodes_of(plan(spec, workers=2, together=together)) == [
        [0], [1, 2, 3], [4], [5, 6], [7], [8],
    ]  # fmt: skip
    assert len(plan(spec, workers=2).tasks) == 9


def test_a_branch_behind_a_branch_has_a_task_of_its_own() -> None:
    """Another worker may have recorded it, and would have to make both again."""
    spec = fan(4, 500.0, links=2, is_branch=set(range(1, 9)))
    assert nodes_of(plan(spec, workers=2)) == [[at] for at in range(9)]
    together = (-1, 0, 0, 1, 1, 2, 2, 3, 3)
    assert nodes_of(plan(spec, workers=2, together=together)) == [
        [0], [1, 2], [3, 4], [5, 6], [7, 8],
    ]  # fmt: skip
