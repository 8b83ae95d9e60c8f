"""Outputs that are published before their task ends: by the plan, and in the coordinator's core."""

from __future__ import annotations

import pytest

from mpgrad.base.handles import ENGINE_ARENA, Block
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec
from mpgrad.scheduler.tuning import MESSAGE_US
from tests.scheduler.test_coordinator_state import CLIENT, KIB, Core, kinds, task, to
from tests.scheduler.test_plan import graph, groups, node
from tests.scheduler.test_split import layers

FIRST, SECOND = "w0.1", "w1.1"


@pytest.fixture
def core() -> Core:
    """One session, two workers."""
    core = Core()
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(FIRST))
    core.handle_event(ev.WorkerJoined(SECOND))
    return core


def chain() -> tuple[NodeTaskSpec, ...]:
    """Task 0 feeds tasks 1 and 2, each of which gives a result."""
    return (
        task(to(1, nbytes=8 * KIB), to(2, nbytes=8 * KIB)),
        task(to(CAPTURE, 0)),
        task(to(CAPTURE, 1)),
    )


def progress(core: Core, of: do.DispatchNodeTask, *outputs):
    name = (of.graph, of.task, of.attempt)
    return core.handle_event(ev.NodeTaskProgress(of.peer, *name, outputs))


def test_a_consumer_begins_while_its_producer_runs(core: Core) -> None:
    (first,) = core.submit(*chain(), captures=2)
    (second,) = progress(core, first, (0, first.blocks[0]))
    assert (second.peer, second.task, second.inputs) == (SECOND, 1, ((first.blocks[0],),))
    core.done(second, b"one")
    assert first.blocks[0] in core.leases.holders  # the task that wrote it may still read it
    (third,) = core.done(first, None, first.blocks[1])
    assert first.blocks[0] not in core.leases.holders
    assert third.inputs == ((first.blocks[1],),)
    (completed,) = core.done(third, b"two")
    assert completed.captures == (b"one", b"two")
    assert len(core.leases) == 0


def test_what_was_published_is_not_delivered_again(core: Core) -> None:
    (first,) = core.submit(*chain(), captures=2)
    assert kinds(progress(core, first, (0, first.blocks[0]))) == ["DispatchNodeTask"]
    assert progress(core, first, (0, first.blocks[0])) == []
    assert kinds(core.done(first, *first.blocks)) == ["DispatchNodeTask"]
    assert progress(core, first, (1, first.blocks[1])) == []  # too late: the task has ended


def test_a_lost_task_publishes_only_what_it_had_not_yet(core: Core) -> None:
    (first,) = core.submit(*chain(), captures=2)
    (second,) = progress(core, first, (0, first.blocks[0]))
    again = [do_ for do_ in core.lost(FIRST, first) if isinstance(do_, do.DispatchNodeTask)]
    assert again == []  # a suspect: it waits for a worker of its own
    assert first.blocks[0] in core.leases.holders
    assert first.blocks[1] not in core.leases.holders
    (again,) = core.done(second, b"one")
    assert (again.task, again.attempt, again.published) == (0, 2, (0,))
    assert again.blocks[0] is None
    assert again.blocks[1] not in (None, first.blocks[1])
    (third,) = core.done(again, None, again.blocks[1])
    assert third.inputs == ((again.blocks[1],),)
    assert progress(core, first, (1, first.blocks[1])) == []  # the voice of a dead one


def test_only_its_own_blocks_and_outputs_may_be_published(core: Core) -> None:
    (first,) = core.submit(*chain(), captures=2)
    stranger = Block(ENGINE_ARENA, 1 << 30, 8 * KIB, 77)
    with pytest.raises(ProtocolError, match="not its own"):
        progress(core, first, (0, first.blocks[0]), (1, stranger))
    with pytest.raises(ProtocolError, match="does not have"):
        progress(core, first, (2, None))
    assert core.graphs[0].published == {}


def test_an_error_after_progress_leaves_what_comes_before_it_running(core: Core) -> None:
    # Serial order: the head of task 0, task 1, the second Node of task 0, which raises; task 2.
    first, second, third = chain()
    tasks = (first._replace(inner_positions=(2,)), second._replace(position=1),
             third._replace(position=3))  # fmt: skip
    (running,) = core.submit(*tasks, captures=2)
    (beside,) = progress(core, running, (0, running.blocks[0]))
    assert core.failed(running, b"later", step=1) == []
    (failed,) = core.failed(beside, b"earlier")
    assert (failed.task, failed.error) == (1, b"earlier")
    assert len(core.leases) == 0


def test_progress_of_a_cancelled_graph_is_nothing(core: Core) -> None:
    (first,) = core.submit(*chain(), captures=2)
    core.handle_event(ev.GraphCancelled(CLIENT, 0))
    assert progress(core, first, (0, first.blocks[0])) == []
    assert kinds(core.done(first, None, None)) == ["FailGraph"]
    assert len(core.leases) == 0


def test_nothing_waits_behind_a_task_that_still_publishes(core: Core) -> None:
    tasks = (
        task(*(to(number) for number in range(1, 6)), publications=2, cost_us=9000),
        *(task(to(CAPTURE, number), cost_us=1000) for number in range(5)),
    )
    (chain,) = core.submit(*tasks, captures=5)
    given = progress(core, chain, (0, b"0"), (1, b"1"), (2, b"2"))
    assert [(do_.peer, do_.task) for do_ in given] == [(SECOND, 1), (SECOND, 2)]
    # Its last publication: now it may have a task to go on with.
    given = progress(core, chain, (3, b"3"))
    assert [(do_.peer, do_.task) for do_ in given] == [(FIRST, 3)]


def test_a_task_is_prefetched_behind_the_shorter_one(core: Core) -> None:
    tasks = [task(to(CAPTURE, number), cost_us=cost) for number, cost in enumerate((9, 2, 2))]
    seeds = tuple((number, 0, 0, b"seed") for number in range(3))
    given = core.submit(*tasks, captures=3, seeds=seeds)
    assert [do_.peer for do_ in given] == [FIRST, SECOND, SECOND]


# ----------------------------------------------------------------------- the plan


def test_the_halves_of_a_chain_are_one_task_that_publishes() -> None:
    planned = plan(layers(4), workers=2)
    critical = planned.groups[0]
    assert [member.is_half for member in critical] == [True, True, True, False]
    assert all(member.publishes for member in critical[:3])
    assert planned.tasks[0].publications == 3
    assert not any(task.publications for task in planned.tasks[1:])


def test_nothing_is_published_before_a_short_node() -> None:
    short = layers(4, cost_us=MESSAGE_US / 2)
    planned = plan(short, workers=2)
    assert not any(member.publishes for group in planned.groups for member in group)


def spine(count: int, link_us: float = 60.0, branch_us: float = 3000.0) -> GraphSpec:
    """A chain of cheap Nodes; each begins an expensive branch."""
    links = [node(at + 1, count + at, cost=link_us) for at in range(count - 1)]
    links.append(node(2 * count - 1, cost=link_us))
    return graph(*links, *(node(cost=branch_us) for _ in range(count)))


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_spine_publishes_until_every_worker_has_something(workers: int) -> None:
    planned = plan(spine(12), workers=workers)
    first = planned.tasks[0]
    published = [member.publishes for member in planned.groups[0]]
    # Every 120 us, when two branches wait; one worker runs the spine.
    assert first.publications == sum(published) == workers // 2
    assert not any(task.publications for task in planned.tasks[1:])
    alone = plan(spine(12), workers=1)
    assert not any(task.publications for task in alone.tasks)


def test_branches_that_are_not_worth_a_message_are_not_published() -> None:
    spec = spine(12, branch_us=0.9 * MESSAGE_US)
    # On a GPU, so that they do not join the spine.
    nodes = [n._replace(device=0) if n.cost_us > 60.0 else n for n in spec.nodes]
    planned = plan(spec._replace(nodes=tuple(nodes)), bundles=False, workers=8)
    assert len(planned.tasks) > 12
    assert not any(task.publications for task in planned.tasks)


def test_nothing_is_published_where_the_workers_have_work_from_the_start() -> None:
    count = 8
    several = [spine(12) for _ in range(count)]
    size = len(several[0].nodes)
    nodes = tuple(
        one._replace(edges=tuple((to + at * size, nr) for to, nr in one.edges if to is not None))
        for at, spec in enumerate(several)
        for one in spec.nodes
    )
    seeds = tuple((at * size, 0) for at in range(count))
    planned = plan(GraphSpec(nodes, seeds, (), serial_order(nodes, seeds)), workers=count)
    assert not any(task.publications for task in planned.tasks)


def sides(join_us: float) -> GraphSpec:
    """Two tasks; each gives something to a join, then has 1 ms to do that nobody waits for."""
    heads = (node(3, 5), node(4, 5))
    rest = (node(cost=1000.0), node(cost=1000.0), node(cost=join_us), node(cost=6000.0))
    return graph(node(1, 2, 6), *heads, *rest)


@pytest.mark.parametrize(("join_us", "publishes"), [(1500.0, 1), (500.0, 0)])
def test_what_several_tasks_give_is_published_where_it_is_urgent(
    join_us: float, publishes: int
) -> None:
    """Nobody knows who gives last; so it counts whether more follows than is left of the task."""
    planned = plan(sides(join_us), workers=4)
    assert groups(planned) == [[0], [6], [1, 3], [2, 4], [5]]  # the most urgent first
    assert [task.publications for task in planned.tasks] == [0, 0, publishes, publishes, 0]


@pytest.mark.parametrize(
    ("link", "publishes"), [(node(2, cost=500.0), 1), (node(2, 3, cost=500.0), 0)]
)
def test_half_of_what_a_task_waits_for_is_no_use_to_it(link: NodeSpec, publishes: int) -> None:
    planned = plan(graph(node(1, 3, cost=500.0), link, node(), node(cost=300.0)), workers=2)
    assert groups(planned) == [[0, 1, 2], [3]]
    assert [task.publications for task in planned.tasks] == [publishes, 0]


def test_results_of_the_caller_are_not_waited_for() -> None:
    planned = plan(layers(3, is_splittable=False, cost_us=2 * MESSAGE_US))
    assert [output.task for output in planned.tasks[0].outputs] == [CAPTURE] * 3
    assert planned.tasks[0].publications == 0
