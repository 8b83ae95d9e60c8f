"""plan(): NodeTasks compute what the serial engine computes, in any order of readiness."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise
from random import Random

import pytest

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler.fusion import chain_limit_us, group
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.graph_task import InputBuffer
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import CAPTURE, InnerTarget, Plan
from mpgrad.scheduler.tuning import BACKWARD_MESSAGES, MESSAGE_US, TASK_MAX_US, worth_us
from simulation.path_counts import TracedGraph, Value, add, join, run_members, run_serially
from simulation.random_graphs import random_graph

#: What a cut of a chain costs.
CUT_US = BACKWARD_MESSAGES * MESSAGE_US


def node(*targets: int, cost: float = 1.0, nbytes: int = 8, **flags: bool) -> NodeSpec:
    """A Node of one input whose outputs flow into input 0 of ``targets``."""
    return NodeSpec("Node", 0, tuple((t, 0) for t in targets), (nbytes,), cost, **flags)


def graph(*nodes: NodeSpec, captures: tuple[int, ...] = ()) -> GraphSpec:
    """Node 0 is the root; higher indices were recorded earlier."""
    numbered = tuple(n._replace(sequence_nr=len(nodes) - at) for at, n in enumerate(nodes))
    seeds = ((0, 0),)
    return GraphSpec(
        numbered, seeds, tuple((n, 0) for n in captures), serial_order(numbered, seeds)
    )


def groups(planned: Plan) -> list[list[int]]:
    """The nodes that each task runs; a piece of a wide sum runs none."""
    return [[m.node for m in members if m.piece_of is None] for members in planned.groups]


# ----------------------------------------------------------------------- any graph, any order


def run_in_any_order(traced: TracedGraph, planned: Plan, rng: Random) -> list[Value | None]:
    """Execute the tasks as they become ready, each time a random one."""
    tasks = planned.tasks
    buffers = [InputBuffer.empty(task.places) for task in tasks]
    waits = [task.dependencies for task in tasks]
    captures: list[Value | None] = [None] * len(traced.spec.captures)
    ready = []

    def arrive(task: int) -> None:
        waits[task] -= 1
        if waits[task] == 0:
            ready.append(task)

    for (task, slot, place), value in zip(planned.seeds, traced.seeds, strict=True):
        buffers[task].fill(slot, place, value)
        arrive(task)
    done = 0
    while ready:
        task = ready.pop(rng.randrange(len(ready)))
        done += 1
        sums: list[Value | None] = []
        for slot, contributions in enumerate(buffers[task].inputs()):
            count = dict(planned.joins[task]).get(slot)
            whole = (
                reduce(add, contributions, None) if count is None else join(contributions, count)
            )
            sums.append(whole)
        outputs = tasks[task].outputs
        values = run_members(traced, planned.groups[task], planned.slots[task], sums, len(outputs))
        for output, value in zip(outputs, values, strict=True):
            if output.task == CAPTURE:
                captures[output.slot] = value
            else:
                buffers[output.task].fill(output.slot, output.place, value)
                arrive(output.task)
        for successor in tasks[task].unlocks:
            arrive(successor)
    assert done == len(tasks), "some task never became ready: the contracted graph has a cycle"
    return captures


@pytest.mark.parametrize("seed", range(60))
def test_any_ready_order_gives_the_serial_sums(seed: int) -> None:
    rng = Random(seed)
    traced = random_graph(rng, client_share=0.3, devices=(0, 1) if seed % 3 == 0 else ())
    expected = run_serially(traced)
    for fuse, workers in ((True, 1), (False, 1), (True, 3), (True, 64)):
        planned = plan(traced.spec, fuse=fuse, workers=workers)
        for _ in range(3):
            assert run_in_any_order(traced, planned, rng) == expected


@pytest.mark.parametrize("seed", range(60))
def test_every_plan_is_sound(seed: int) -> None:
    spec = random_graph(Random(seed), client_share=0.2).spec
    planned = plan(spec)
    for index, spec_node in enumerate(spec.nodes):
        homes = [number for number, members in enumerate(groups(planned)) if index in members]
        # A sink whose producer captures in its stead is in no task.
        assert homes == [planned.task_of[index]] or (homes == [] and spec_node.is_sink)
    for number, (task, members) in enumerate(zip(planned.tasks, groups(planned), strict=True)):
        # (How long a task may be: see test_bundling.)
        shared = [spec.nodes[n] for n in members if not spec.nodes[n].is_sink]
        if any(s.on_client for s in shared[:1]):
            assert len(shared) == 1 or all(s.on_client and s.unpacks for s in shared)
        else:
            assert not any(s.on_client for s in shared)
        # Consumers come later: numbering the tasks is a topological order.
        behind = [output.task for output in task.outputs if output.task != CAPTURE]
        assert all(later > number for later in [*behind, *task.unlocks]) or not members
        assert task.priority >= max((planned.tasks[t].priority for t in behind), default=0.0)
        for output in task.outputs:
            assert output.nbytes == 0 or output.nbytes > INLINE_LIMIT_BYTES


def test_without_fusing_every_node_is_a_task() -> None:
    spec = random_graph(Random(1)).spec
    assert groups(plan(spec, fuse=False)) == [[n] for n in spec.order]


# ----------------------------------------------------------------------- what is fused


def test_a_chain_of_cheap_nodes_is_one_task() -> None:
    planned = plan(graph(node(1), node(2), node(3), node(), captures=(3,)))
    assert groups(planned) == [[0, 1, 2, 3]]
    assert planned.groups[0][0].routes == (InnerTarget(1, 0),)
    assert [output.task for output in planned.tasks[0].outputs] == [CAPTURE]


def test_nothing_is_fused_around_a_node() -> None:
    """0 -> 1 -> 3 and 0 -> 3, where 1 and 2 are too expensive to be fused."""
    planned = plan(graph(node(1, 2, 3), node(3, cost=500.0), node(cost=500.0), node()), workers=4)
    assert groups(planned) == [[0], [1, 3], [2]]  # 1 waits for 0 anyway


def test_a_node_waits_for_no_task_that_its_own_could_run_beside() -> None:
    """0 -> 1 -> 3 and 0 -> 2 -> 3: if 3 joined 1 or 2, that one would wait for the other."""
    dear = node(3, cost=500.0)
    assert groups(plan(graph(node(1, 2), dear, dear, node()), workers=4)) == [[0], [1], [2], [3]]


def cells(steps: int, product_us: float = 400.0, gate_us: float = 40.0) -> GraphSpec:
    """The backward of a loop of LSTM cells: each step has two products, and passes on h and c.

    Nodes of a step: h, c, three gates, their join, the product for h and its weight, and that of
    the step's input alone, which needs no gradient.
    """
    nodes: list[NodeSpec] = []
    weights = (8 * steps, 8 * steps + 1)
    for step in range(steps):
        h, c, i, f, o, joined, product, of_input = range(8 * step, 8 * step + 8)
        after = step + 1 < steps
        nodes += [
            node(c, o, cost=gate_us),
            node(i, f, *([c + 8] if after else []), cost=gate_us),
            *(node(joined, cost=gate_us) for _ in (i, f, o)),
            node(product, of_input, cost=gate_us),
            node(*([h + 8] if after else []), weights[0], cost=2 * product_us, is_splittable=True),
            node(weights[1], cost=product_us, is_splittable=True),
        ]
    return graph(*nodes, *(node(is_sink=True) for _ in weights), captures=weights)


def test_a_loop_of_cells_is_cut_where_a_task_becomes_too_long() -> None:
    """Not between h and c: a task goes on with both, although the one before it gave a part."""
    spec = cells(100)
    planned = plan(spec, workers=2)
    chain = {planned.task_of[8 * step + at] for step in range(100) for at in range(6)}
    chain_us = sum(planned.tasks[task].cost_us for task in chain)
    assert len(chain) <= math.ceil(2 * chain_us / TASK_MAX_US)
    assert planned.critical_path_us < 0.6 * planned.work_us


def test_what_only_weights_need_runs_beside_a_loop_of_cells() -> None:
    planned = plan(cells(4), workers=2)
    assert {planned.task_of[8 * step + 7] for step in range(3)}.isdisjoint({planned.task_of[0]})
    assert len({planned.task_of[8 * step + at] for step in range(4) for at in range(6)}) == 1


def test_a_diamond_of_cheap_nodes_is_one_task() -> None:
    assert groups(plan(graph(node(1, 2), node(3), node(3), node()))) == [[0, 1, 2, 3]]


def test_an_expensive_node_begins_a_task_and_cheap_ones_join_it() -> None:
    planned = plan(graph(node(1, 3), node(2, cost=500.0), node(), node(cost=500.0)), workers=4)
    assert groups(planned) == [[0], [1, 2], [3]]


def test_a_cheap_node_stays_with_the_long_branch_that_it_begins() -> None:
    """In the task before the fork all branches would wait for it."""
    branch = (node(3, cost=90.0), node(4, cost=90.0))
    long = plan(graph(node(1, 2), *branch, node(cost=500.0), node(cost=500.0)), workers=4)
    assert groups(long) == [[0], [1, 3], [2, 4]]
    short = plan(graph(node(1, 2), *branch, node(cost=5.0), node(cost=5.0)))
    assert groups(short) == [[0, 1, 2, 3, 4]]


def test_a_branch_goes_on_where_all_beside_it_are_cheap() -> None:
    """They are told before it runs, and it costs no message of its own."""
    root, long = node(1, 2, cost=120.0), node(3, cost=500.0)
    planned = plan(graph(root, node(3), long, node(cost=120.0)), workers=4)
    assert groups(planned) == [[0, 1, 2, 3]]
    another = plan(graph(root, long, long, node(cost=120.0)), workers=4)
    assert groups(another) == [[0], [1], [2], [3]]
    # Nothing is published before a short Node.
    begin, rest = node(4, cost=90.0), node(cost=500.0)
    short = plan(graph(root, node(3), begin, node(cost=120.0), rest), workers=4)
    assert groups(short)[0] == [0]


def test_a_cheap_node_begins_the_branch_of_its_expensive_consumer() -> None:
    """What is cheap beside that makes no fork of it."""
    branch = (node(5, 3, cost=90.0), node(5, 4, cost=90.0))
    ends = (node(cost=500.0), node(cost=500.0), node())
    planned = plan(graph(node(1, 2), *branch, *ends), workers=4)
    assert groups(planned) == [[0], [1, 3], [2, 4], [5]]


def added_up(branches: int, addition_us: float = 3.0, each_us: float = 2000.0) -> GraphSpec:
    """The graph of ``loss = f(0)``, then ``loss = loss + f(i)``: additions, then what is added."""
    last = branches - 1
    additions = [node(at + 1, last + at, cost=addition_us) for at in range(last - 1)]
    additions.append(node(2 * last - 1, 2 * last, cost=addition_us))
    return graph(*additions, *(node(cost=each_us) for _ in range(branches)))


@pytest.mark.parametrize("addition_us", [3.0, 22.0, 65.0])
@pytest.mark.parametrize("each_us", [200.0, 2000.0])
def test_a_chain_of_additions_is_as_parallel_as_a_stack(addition_us: float, each_us: float) -> None:
    """Whatever an addition was measured to take: one short task, and one for each worker."""
    planned = plan(added_up(16, addition_us, each_us), workers=2)
    assert [len(nodes) for nodes in groups(planned)] == [15, 8, 8]
    consumers = {output.task for output in planned.tasks[0].outputs}
    assert consumers == {1, 2}
    assert not any(output.task >= 0 for task in planned.tasks[1:] for output in task.outputs)


def test_of_a_tree_of_cheap_nodes_only_one_path_goes_on() -> None:
    """A chain of cheap Nodes has no parallel parts; a tree has."""
    nodes = [node(2 * at + 1, 2 * at + 2, cost=60.0) for at in range(63)]
    planned = plan(graph(*nodes, *(node(cost=500.0) for _ in range(64))), workers=8)
    assert len(groups(planned)[0]) < 12


def test_the_links_of_a_chain_are_one_task() -> None:
    """Nothing could run beside them; a sink on the way does not change that."""
    sink = node(is_sink=True)
    planned = plan(graph(node(1, cost=120.0), node(2, 3, cost=120.0), node(cost=120.0), sink))
    assert groups(planned) == [[0, 1, 2, 3]]


def test_a_chain_has_a_bound() -> None:
    cost = 2.0 * CUT_US
    spec = graph(*(node(at + 1, cost=cost) for at in range(3)), node(cost=cost))
    limit = chain_limit_us(spec, 2, MESSAGE_US)  # sqrt(2 * 8 m * m) = 4 m, two links
    assert limit == pytest.approx(2.0 * cost)
    assert groups(plan(spec)) == [[0, 1], [2, 3]]
    four_times = spec._replace(nodes=tuple(n._replace(cost_us=4 * cost) for n in spec.nodes))
    assert chain_limit_us(four_times, 2, MESSAGE_US) == pytest.approx(2.0 * limit)


def test_what_is_not_worth_a_message_is_not_cut_off() -> None:
    cost = 20.0 * CUT_US
    assert chain_limit_us(graph(node(1), node(cost=cost)), 2, MESSAGE_US) < cost
    assert groups(plan(graph(node(1), node(cost=cost)))) == [[0, 1]]
    assert groups(plan(graph(node(1, cost=worth_us(MESSAGE_US)), node(cost=cost)))) == [[0], [1]]


def test_a_group_has_a_bound() -> None:
    cost = 90.0
    root = node(*range(1, 21))
    spec = graph(root, *(node(cost=cost) for _ in range(20)))
    assert len(group(spec, fuse=True).groups[0]) == 1 + worth_us(MESSAGE_US) // cost


def test_the_seeds_of_a_node_come_before_what_its_own_task_adds() -> None:
    spec = graph(node(1), node())._replace(seeds=((0, 0), (1, 0)))
    planned = plan(spec)
    assert groups(planned) == [[0, 1]]
    assert planned.slots == ((InnerTarget(0, 0), InnerTarget(1, 0)),)
    assert planned.groups[0][0].routes == (InnerTarget(1, 0),)
    assert planned.seeds == ((0, 0, 0), (0, 1, 0))


def test_client_nodes_stand_alone_and_in_serial_order() -> None:
    planned = plan(
        graph(node(1, 2, 3), node(4, on_client=True), node(4), node(4, on_client=True), node())
    )
    by_node = {members[0]: number for number, members in enumerate(groups(planned))}
    assert groups(planned)[by_node[1]] == [1]
    assert groups(planned)[by_node[3]] == [3]
    assert planned.tasks[by_node[1]].unlocks == (by_node[3],)
    assert planned.tasks[by_node[3]].dependencies == 2


def test_client_nodes_that_only_unpack_share_a_task() -> None:
    def client(*targets: int, unpacks: bool = True) -> NodeSpec:
        return node(*targets, on_client=True, unpacks=unpacks)

    def links(*nodes: NodeSpec) -> list[list[int]]:
        return groups(plan(graph(*nodes)))

    assert links(client(1), client(2), client()) == [[0, 1, 2]]
    assert links(client(1), client(2, unpacks=False), client()) == [[0], [1], [2]]
    assert links(client(1), node(2), client()) == [[0], [1], [2]]
    assert links(client(1, 2), client(3), client(), client()) == [[0, 1, 2, 3]]


def test_client_nodes_that_share_a_task_leave_none_between_them() -> None:
    # 2 and 3 run between 1 and 4, so that 4 may not join its producer.
    between = node(on_client=True)
    planned = plan(
        graph(
            node(1, 2, 3),
            node(4, on_client=True, unpacks=True),
            between,
            node(on_client=True, unpacks=True),
            node(on_client=True, unpacks=True),
        )
    )
    homes = groups(planned)
    assert [1] in homes
    assert [4] in homes
    assert [2] in homes
    assert [3] in homes


def test_sinks_stay_with_a_producer_on_the_client() -> None:
    spec = graph(node(1, on_client=True), node(is_sink=True), captures=(1,))
    [task] = plan(spec).tasks
    assert task.on_client
    assert [(output.task, output.slot) for output in task.outputs] == [(CAPTURE, 0)]


def test_a_producer_captures_for_a_fused_sink() -> None:
    """So that the gradient is born in its block: no member, one output straight to the caller."""
    large = 2 * INLINE_LIMIT_BYTES
    spec = graph(node(1, 2), node(nbytes=large, is_sink=True), node(is_sink=True), captures=(1, 2))
    [task] = plan(spec).tasks
    assert groups(plan(spec)) == [[0]]
    leaving = [(output.nbytes, output.task, output.slot) for output in task.outputs]
    assert leaving == [(large, CAPTURE, 0), (0, CAPTURE, 1)]


def test_a_sink_that_sums_stays_a_member() -> None:
    spec = graph(node(1, 1), node(is_sink=True), captures=(1,))
    assert groups(plan(spec)) == [[0, 1]]


# ----------------------------------------------------------------------- what is wired


def test_places_follow_the_serial_order_of_producers() -> None:
    """Two branches meet in node 3; the one recorded later (1) is added first."""
    spec = graph(node(2, 1), node(3), node(3), node())
    planned = plan(spec, fuse=False)
    places = {
        groups(planned)[number][0]: output.place
        for number, task in enumerate(planned.tasks)
        for output in task.outputs
        if output.task == 3
    }
    assert places == {1: 0, 2: 1}
    assert planned.tasks[3].places == (2,)


def test_seeds_come_before_all_producers() -> None:
    spec = graph(node(1), node())._replace(seeds=((1, 0), (0, 0), (1, 0)))
    planned = plan(spec, fuse=False)
    assert planned.seeds == ((1, 0, 0), (0, 0, 0), (1, 0, 1))
    assert planned.tasks[0].outputs[0].place == 2


def test_only_large_outputs_get_blocks() -> None:
    limit = INLINE_LIMIT_BYTES
    spec = graph(node(1, 2), node(nbytes=limit), node(nbytes=limit + 1))
    assert [o.nbytes for o in plan(spec, fuse=False).tasks[0].outputs] == [0, limit + 1]


def test_priority_is_the_length_of_the_path_that_is_left() -> None:
    planned = plan(graph(node(1, 2, cost=10.0), node(cost=300.0), node(cost=200.0)), fuse=False)
    assert [task.priority for task in planned.tasks] == [310.0, 300.0, 200.0]
    assert (planned.critical_path_us, planned.work_us) == (310.0, 510.0)


# ----------------------------------------------------------------------- the local share


def forked(branches: int, cost: float, first: float = 1.0, **flags: bool) -> Plan:
    """So many branches behind a Node."""
    opening = node(*range(1, branches + 1), cost=first, **flags)
    nodes = [opening, *[node(cost=cost)] * branches]
    return plan(graph(*nodes), workers=2, client_takes_part=True)


def test_the_calling_thread_works_as_long_as_a_worker_and_its_messages() -> None:
    planned = forked(16, 200.0)
    assert (planned.opens_alone, planned.local_share, len(planned.tasks)) == (True, 1, 3)
    mine, other = planned.tasks[1:]
    assert abs(mine.cost_us - other.cost_us - CUT_US) <= 200.0
    assert abs(mine.priority - other.priority) <= 200.0
    # The first branches of the serial order, as one worker's part would be.
    assert [member.node for member in planned.groups[1]] == list(
        range(1, len(planned.groups[1]) + 1)
    )
    assert plan(graph(node(1, 2), *[node(cost=2000.0)] * 2), workers=2).local_share == -1


def test_the_calling_thread_is_one_of_many_workers() -> None:
    nodes = [node(*range(1, 41)), *[node(cost=500.0)] * 40]
    planned = plan(graph(*nodes), workers=8, client_takes_part=True)
    mine, *others = planned.tasks[1:]
    assert planned.local_share == 1
    assert mine.cost_us == pytest.approx((20_000.0 - CUT_US) / 8 + CUT_US, abs=250.0)
    assert len(others) >= 7


def test_where_the_calling_thread_has_no_part() -> None:
    # Where nothing is left for workers while messages are on their way, or each task is long, ...
    assert forked(16, 40.0).local_share == -1
    assert forked(16, 20_000.0).local_share == -1
    # ... for what comes behind a Node that does not run ahead, ...
    assert forked(16, 200.0, first=2.0 * CUT_US).local_share == -1
    assert forked(16, 200.0, on_client=True).local_share == -1
    # ... nor where a gradient would have to be copied for the others.
    large = node(cost=2000.0, nbytes=INLINE_LIMIT_BYTES + 1)
    assert (
        plan(graph(node(1, 2), large, large), workers=2, client_takes_part=True).local_share == -1
    )


def test_several_roots_are_shared_with_the_calling_thread() -> None:
    nodes = (node(cost=1000.0),) * 6
    seeds = tuple([(number, 0) for number in range(6)])
    spec = GraphSpec(nodes, seeds, (), serial_order(nodes, seeds))
    planned = plan(spec, workers=2, client_takes_part=True)
    assert (planned.opens_alone, planned.local_share) == (False, 0)


# ----------------------------------------------------------------------- what the client runs ahead


def test_a_short_fork_opens_alone() -> None:
    branch = node(cost=2000.0)
    assert plan(graph(node(1, 2), branch, branch), workers=2).opens_alone
    # Not what takes longer than to hand it over, ...
    assert not plan(graph(node(1, 2, cost=2.0 * CUT_US), branch, branch)).opens_alone
    # ... what only the next task waits for, nor what would have to be copied to a block, ...
    assert not plan(graph(node(1), node(2, cost=15_000.0), branch)).opens_alone
    large = node(cost=2000.0, nbytes=INLINE_LIMIT_BYTES + 1)
    assert not plan(graph(node(1, 2), large, large)).opens_alone
    # ... nor a hook, whose turn comes in serial order with the others.
    assert not plan(graph(node(1, 2, on_client=True), branch, branch)).opens_alone


def test_what_flows_into_the_first_piece_of_a_wide_sum_goes_first() -> None:
    """The pieces are added one after another, so the first has the longest way to go."""
    branches = 40
    nodes = [node(*range(1, branches + 1))]
    nodes += [node(branches + 1, cost=1000.0) for _ in range(branches)]
    spec = graph(*nodes, node(nbytes=1 << 20, is_sink=True), captures=(branches + 1,))
    planned = plan(spec, fuse=False)
    pieces = [at for at, members in enumerate(planned.groups) if members[0].piece_of is not None]
    assert len(pieces) > 2
    into = {
        piece: [t.priority for t in planned.tasks if any(o.task == piece for o in t.outputs)]
        for piece in pieces
    }
    for earlier, later in pairwise(pieces):
        assert planned.tasks[earlier].priority > planned.tasks[later].priority
        assert max(into[later]) < max(into[earlier])
