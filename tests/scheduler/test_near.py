"""Tasks near the worker that has recorded their branch: a hint, never a condition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpgrad.errors import SharedMemoryExhausted
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.scheduler.membership import NEAR_WAITING_MAX, WORKER_CREDIT
from mpgrad.scheduler.plan_tables import CAPTURE
from mpgrad.scheduler.ready_queue import ReadyQueue, ReadyTask, lane_of, slot_of
from tests.scheduler.test_coordinator_state import CLIENT, Core, task, to

W0, W1, W2 = "w0.1", "w1.1", "w2.1"


@pytest.fixture
def core() -> Iterator[Core]:
    """One session, three workers."""
    core = Core()
    core.handle_event(ev.SessionOpened(CLIENT))
    for peer in (W0, W1, W2):
        core.handle_event(ev.WorkerJoined(peer))
    yield core
    check_invariants(core)


def branches(core: Core, *near: int, name: int = 0, **fields):
    """Submit a graph with one task for each slot in ``near``; a call has no inputs."""
    tasks = [
        task(to(CAPTURE, at), places=(), position=at, near=slot, **fields)
        for at, slot in enumerate(near)
    ]
    return core.submit(*tasks, name=name, seeds=(), captures=len(near))


def peers(instructions) -> list[str]:
    return [one.peer for one in instructions if isinstance(one, do.DispatchNodeTask)]


@pytest.mark.parametrize("device", [ON_CPU, 0, 3])
def test_lanes_of_devices_and_of_slots_do_not_meet(device: int) -> None:
    assert lane_of(device, -1) == device
    assert slot_of(device) == -1
    assert [slot_of(lane_of(ON_CPU, slot)) for slot in range(5)] == [0, 1, 2, 3, 4]


def test_a_task_goes_to_the_worker_with_its_branch(core: Core) -> None:
    assert peers(branches(core, 2, 0, 1, 2)) == [W2, W0, W1, W2]


def test_a_few_wait_for_a_busy_worker(core: Core) -> None:
    assert peers(branches(core, *[1] * (WORKER_CREDIT + NEAR_WAITING_MAX))) == [W1] * WORKER_CREDIT


def test_idle_workers_take_what_would_wait_long(core: Core) -> None:
    sent = branches(core, *[1] * (WORKER_CREDIT + NEAR_WAITING_MAX + 2))
    assert peers(sent) == [W1, W1, W0, W2]
    # They take no second one: that would have to wait there, too.
    assert peers(core.done(sent[0], b"x")) == [W1]


def test_nobody_takes_tasks_near_a_worker_that_is_busy_itself(core: Core) -> None:
    sent = branches(core, 0, 0, 2, 2)
    assert peers(branches(core, *[1] * 9, name=1)) == [W1, W1]
    # w0 is idle only when it has given both answers.
    assert peers(core.done(sent[0], b"x")) == []
    assert peers(core.done(sent[1], b"x")) == [W0]


def test_others_make_the_branches_of_a_dead_worker_again(core: Core) -> None:
    first, second, *_ = branches(core, 1, 1, 1)
    out = core.lost(W1, first, killed=True)
    # The suspect alone, the other two where there is room: nobody is in the slot.
    assert peers(out) == [W0, W2]
    assert [one for one in out if isinstance(one, do.StartWorker)] == [do.StartWorker(1)]
    # The new process in the slot has none of them; a hint is a hint.
    assert peers(core.handle_event(ev.WorkerJoined("w1.2"))) == ["w1.2"]
    assert second.peer == W1


def test_nobody_waits_for_a_worker_that_is_being_killed(core: Core) -> None:
    branches(core, 1, 1)
    core.handle_event(ev.WorkerHung(W1, "stopped", None))
    assert peers(branches(core, 1, 1, name=1)) == [W0, W2]


@pytest.mark.parametrize("slot", [3, 1 << 40])
def test_a_slot_without_a_worker_is_no_obstacle(core: Core, slot: int) -> None:
    assert peers(branches(core, slot, slot)) == [W0, W1]


def test_what_is_near_and_what_is_not_share_one_order(core: Core) -> None:
    """The more urgent task takes the last credit, whichever lane it waits in."""
    first, *_ = branches(core, *[0, 1, 2] * WORKER_CREDIT)
    assert peers(branches(core, -1, name=1, priority=5.0)) == []
    assert peers(branches(core, 0, name=2, priority=9.0)) == []
    [sent] = core.done(first, b"x")
    assert (sent.peer, sent.owner_number) == (W0, 2)
    [sent] = core.done(sent, b"x")[1:]
    assert (sent.peer, sent.owner_number) == (W0, 1)


def test_a_nested_graph_comes_first_though_it_is_near(core: Core) -> None:
    first, *_ = branches(core, *[0, 1, 2] * WORKER_CREDIT)
    branches(core, -1, name=1, priority=9.0)
    core.submit(task(to(CAPTURE), places=(), near=0), name=2, seeds=(), depth=1)
    [sent] = core.done(first, b"x")
    assert sent.owner_number == 2


def test_a_task_near_a_worker_waits_for_memory_in_its_lane() -> None:
    core = Core(limit=8192)
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(W0))
    large = [task(to(CAPTURE, at, nbytes=6000), places=(), position=at, near=0) for at in range(2)]
    [first] = core.submit(*large, seeds=(), captures=2)
    assert [(slot_of(lane), core.ready.length(lane)) for lane in core.ready.lanes()][1:] == [(0, 1)]
    # The result of the first stays with the graph: nothing is left that could give memory back.
    out = core.done(first, *first.blocks)
    assert [(one.kind, one.task) for one in out] == [("memory", 1)]
    with pytest.raises(SharedMemoryExhausted):
        core.leases.allot(1 << 20)


def test_a_cancelled_graph_leaves_all_lanes(core: Core) -> None:
    branches(core, *[0, 1, -1] * 5)
    core.handle_event(ev.GraphCancelled(CLIENT, 0, None))
    assert len(core.ready) == 0


def test_the_lengths_of_the_queue_count_lanes_of_slots_with_the_cpu() -> None:
    queue = ReadyQueue()
    queue.push(ReadyTask(0, 0.0, 0, 0, 0), lane_of(ON_CPU, 2))
    queue.push(ReadyTask(-1, 0.0, 0, 0, 1), lane_of(ON_CPU, 5))
    queue.push(ReadyTask(0, 0.0, 0, 0, 2), lane_of(1, -1))
    assert queue.lengths() == [(ON_CPU, 1, 1), (1, 0, 1)]


# ----------------------------------------------------------------------- branches end


def test_a_branch_is_released_where_it_was_recorded(core: Core) -> None:
    out = core.handle_event(ev.BranchesReleased(CLIENT, ((2, 7), (0, 8), (2, 9))))
    assert out == [do.ReleaseBranches(W0, (8,)), do.ReleaseBranches(W2, (7, 9))]


def test_a_branch_that_may_be_anywhere_is_released_everywhere(core: Core) -> None:
    out = core.handle_event(ev.BranchesReleased(CLIENT, ((ev.ANY_SLOT, 7), (1, 8))))
    assert out == [
        do.ReleaseBranches(W0, (7,)),
        do.ReleaseBranches(W1, (7, 8)),
        do.ReleaseBranches(W2, (7,)),
    ]


def test_the_branches_of_a_dead_worker_are_gone(core: Core) -> None:
    core.lost(W1)
    assert core.handle_event(ev.BranchesReleased(CLIENT, ((1, 7), (9, 8)))) == []
