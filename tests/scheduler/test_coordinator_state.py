"""The coordinator's core in scenarios of a few events, each with the instructions it must give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpgrad.base.handles import CLIENT_ARENA, ENGINE_ARENA, Block
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import (
    DEATHS_MAX,
    KILLS_MAX,
    RESTARTS_WITHOUT_PROGRESS_MAX,
    CoordinatorState,
)
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec, OutputSpec
from mpgrad.shm.free_list import FreeList
from simulation.coordinator_statistics import statistics_of

CLIENT, WORKER, OTHER = "c1.0", "w0.1", "w1.1"
KIB = 1024


def task(*outputs: OutputSpec, places: tuple[int, ...] = (1,), **fields) -> NodeTaskSpec:
    """A NodeTask that waits for its inputs only."""
    given = {"on_client": False, "priority": 0.0, "position": 0, "dependencies": sum(places)}
    return NodeTaskSpec(**(given | fields), places=places, outputs=outputs)


def to(task: int, slot: int = 0, place: int = 0, nbytes: int = 0) -> OutputSpec:
    return OutputSpec(nbytes, task, slot, place)


class Core(CoordinatorState):
    """The core with every table recounted after every event, and short words for events."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.arena = FreeList(1 << 40, limit)
        super().__init__(self.arena)

    def handle_event(self, event):
        try:
            return super().handle_event(event)
        finally:
            check_invariants(self)

    def submit(self, *tasks: NodeTaskSpec, name: int = 0, captures: int = 1, **fields):
        seeds = fields.pop("seeds", ((0, 0, 0, b"seed"),))
        depth = fields.pop("depth", 0)
        return self.handle_event(
            ev.GraphSubmitted(CLIENT, name, depth, tasks, seeds, captures, **fields)
        )

    def done(self, dispatch: do.DispatchNodeTask, *outputs, kept=()):
        return self.handle_event(
            ev.NodeTaskDone(
                dispatch.peer, dispatch.graph, dispatch.task, dispatch.attempt, outputs, kept
            )
        )

    def failed(self, dispatch: do.DispatchNodeTask, error: bytes = b"boom", step: int = 0):
        name = (dispatch.graph, dispatch.task, dispatch.attempt)
        return self.handle_event(ev.NodeTaskFailed(dispatch.peer, *name, error, step=step))

    def lost(self, peer: str, running: do.DispatchNodeTask | None = None, *, killed=False):
        key = running and (running.graph, running.task, running.attempt)
        return self.handle_event(ev.WorkerDied(peer, "died", killed, key))


@pytest.fixture
def core() -> Iterator[Core]:
    """One session, one worker."""
    core = Core()
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(WORKER))
    yield core
    check_invariants(core)


def kinds(instructions) -> list[str]:
    return [type(instruction).__name__ for instruction in instructions]


# ----------------------------------------------------------------------- the plain course


def test_a_chain_of_two_tasks(core: Core) -> None:
    [first] = core.submit(task(to(1)), task(to(CAPTURE), position=1))
    assert first == do.DispatchNodeTask(WORKER, 0, 0, 1, 0, 0, (0, 0), ((b"seed",),), (None,))
    [second] = core.done(first, b"middle")
    assert (second.task, second.inputs) == (1, ((b"middle",),))
    [end] = core.done(second, b"result")
    ran = ((0, 0, 0, 0, None), (1, 0, 0, 0, None))
    assert end == do.CompleteGraph(CLIENT, 0, (b"result",), (False,), ran)
    assert statistics_of(core)._replace(workers=0, sessions=0) == (0,) * 6


def test_many_results_inside_messages_do_not_wait_for_the_end(core: Core) -> None:
    core.message_part_bytes = 10
    outputs = [to(CAPTURE, slot) for slot in range(4)]
    [first] = core.submit(task(to(1), *outputs[:3]), task(outputs[3], position=1), captures=4)
    progress = ev.NodeTaskProgress(first.peer, first.graph, 0, 1, ((1, b"12345"),))
    assert core.handle_event(progress) == []
    told, second = core.done(first, b"", None, b"123", b"abc")
    assert told == do.DeliverCaptures(CLIENT, 0, ((0, b"12345"), (1, b"123"), (2, b"abc")))
    [end] = core.done(second, b"last")
    assert end.captures == (None, None, None, b"last")


def test_results_of_a_cancelled_graph_are_not_delivered(core: Core) -> None:
    core.message_part_bytes = 0
    [first] = core.submit(task(to(CAPTURE)))
    assert kinds(core.handle_event(ev.GraphCancelled(CLIENT, 0))) == ["CancelGraph"]
    assert kinds(core.done(first, b"result")) == ["FailGraph"]


def test_who_waits_for_a_graph_hears_that_it_will_never_end(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE)))
    assert core.handle_event(ev.GraphAwaited(CLIENT, 0)) == [do.GraphGoesOn(CLIENT, 0)]
    core.graphs[first.graph].outstanding_tasks -= 1
    stuck = CoordinatorState.handle_event(core, ev.GraphAwaited(CLIENT, 0))
    assert stuck == [do.GraphForgotten(CLIENT, 0)]
    core.graphs[first.graph].outstanding_tasks += 1
    core.done(first, b"")
    assert core.handle_event(ev.GraphAwaited(CLIENT, 0)) == [do.GraphForgotten(CLIENT, 0)]


def test_large_replies_are_not_kept_with_the_last_events(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE)))
    core.done(first, bytes(1 << 20))
    assert core.last_events[-1].outputs == ()
    [first] = core.submit(task(to(CAPTURE)), name=1)
    core.done(first, b"small")
    assert core.last_events[-1].outputs == (b"small",)


def test_what_the_caller_computes_meanwhile_is_a_late_seed(core: Core) -> None:
    """Task 0 is the caller's. Task 2 waits for it, and comes before task 1 in serial order."""
    tasks = task(to(2)), task(to(CAPTURE), position=5), task(to(CAPTURE, 1), position=3)
    seeds = ((1, 0, 0, b"seed"),)
    [first] = core.submit(*tasks, captures=2, seeds=seeds, is_whole=False, done=1)
    assert first.task == 1
    assert core.done(first, b"one") == []
    late = ev.GraphExtended(CLIENT, 0, (), True, ((2, 0, 0, b"late"),))
    [second] = core.handle_event(late)
    assert (second.task, second.inputs) == (2, ((b"late",),))
    [end] = core.done(second, b"two")
    assert end.captures == (b"one", b"two")


def test_an_earlier_error_may_follow_what_the_caller_computes(core: Core) -> None:
    tasks = task(to(2)), task(to(CAPTURE), position=5), task(to(CAPTURE, 1), position=3)
    seeds = ((1, 0, 0, b"seed"),)
    [first] = core.submit(*tasks, captures=2, seeds=seeds, is_whole=False, done=1)
    assert core.failed(first, b"second") == []
    late = ev.GraphExtended(CLIENT, 0, (), True, ((2, 0, 0, b"late"),))
    [second] = core.handle_event(late)
    [end] = core.failed(second, b"first")
    assert end == do.FailGraph(CLIENT, 0, "error", 2, b"first")


def test_the_callers_own_error_comes_in_its_turn(core: Core) -> None:
    tasks = task(to(2), inner_positions=(1,)), task(to(CAPTURE), position=5), task(to(CAPTURE, 1))
    seeds = ((1, 0, 0, b"seed"),)
    [first] = core.submit(*tasks, captures=2, seeds=seeds, is_whole=False, done=1)
    late = ev.GraphExtended(CLIENT, 0, (), True, failed=(0, 1))
    assert core.handle_event(late) == []
    assert core.failed(first) == [do.FailGraph(CLIENT, 0, "error", 0, b"", 1)]


@pytest.mark.parametrize("failed", [(1, 0), (7, 0), (0, 1), (0, -1)])
def test_a_caller_blames_only_what_it_runs(core: Core, failed: tuple[int, int]) -> None:
    core.submit(task(to(1)), task(to(CAPTURE)), seeds=(), is_whole=False, done=1)
    with pytest.raises(ProtocolError, match="blames Node"):
        core.handle_event(ev.GraphExtended(CLIENT, 0, (), True, failed=failed))


def test_contributions_keep_their_places_whatever_arrives_first(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    first, second = core.submit(
        task(to(2, place=0)),
        task(to(2, place=1)),
        task(to(CAPTURE), places=(2,)),
        seeds=((0, 0, 0, b""), (1, 0, 0, b"")),
    )
    assert core.done(second, b"right") == []
    [third] = core.done(first, b"left")
    assert third.inputs == ((b"left", b"right"),)


def test_undefined_contributions_are_left_out(core: Core) -> None:
    [first] = core.submit(task(to(1, place=0), to(1, place=1)), task(to(CAPTURE), places=(2,)))
    [second] = core.done(first, None, b"defined")
    assert second.inputs == ((b"defined",),)
    [end] = core.done(second, None)
    assert end.captures == (None,)


def test_an_empty_graph_completes_at_once(core: Core) -> None:
    [end] = core.submit(seeds=(), captures=2)
    assert end.captures == (None, None)


def test_tables_may_come_after_the_arrivals(core: Core) -> None:
    [first] = core.submit(task(to(1)), is_whole=False)
    assert core.done(first, b"early") == []
    [second] = core.handle_event(ev.GraphExtended(CLIENT, 0, (task(to(CAPTURE)),), is_whole=True))
    assert second.inputs == ((b"early",),)


def test_what_the_client_ran_ahead_is_done(core: Core) -> None:
    [second] = core.submit(
        task(to(1), to(2), to(CAPTURE, 1)),
        task(to(CAPTURE)),
        seeds=((1, 0, 0, b"left"), (2, 0, 0, b"early"), (CAPTURE, 1, 0, b"captured")),
        captures=2,
        is_whole=False,
        done=1,
    )
    assert (second.task, second.inputs) == (1, ((b"left",),))
    last = (task(places=(1,)),)
    [third] = core.handle_event(ev.GraphExtended(CLIENT, 0, last, is_whole=True))
    assert third.inputs == ((b"early",),)
    assert core.done(second, b"result") == []
    [end] = core.done(third)
    assert end.captures == (b"result", b"captured")
    assert [ran[0] for ran in end.ran] == [1, 2]


def test_more_tasks_done_than_there_are(core: Core) -> None:
    with pytest.raises(ProtocolError, match="2 of 1 tasks"):
        core.submit(task(to(CAPTURE)), done=2)


def test_urgent_tasks_go_first(core: Core) -> None:
    busy = [*core.submit(task(to(CAPTURE)), name=0), *core.submit(task(to(CAPTURE)), name=1)]
    assert core.submit(task(to(CAPTURE), priority=1.0), name=2) == []
    assert core.submit(task(to(CAPTURE), priority=9.0), name=3) == []
    assert core.submit(task(to(CAPTURE), priority=0.0), name=4, depth=1) == []
    order = []
    while busy:
        busy.extend(
            instruction
            for instruction in core.done(busy.pop(0), b"")
            if isinstance(instruction, do.DispatchNodeTask)
        )
        order.append(busy[-1].owner_number if busy else None)
    assert order[:3] == [4, 3, 2]  # the deepest, then by the length of the path


def test_the_least_busy_worker_gets_the_task(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    tasks = [task(to(CAPTURE, slot=n), position=n) for n in range(6)]
    seeds = tuple((n, 0, 0, b"") for n in range(6))
    dispatched = core.submit(*tasks, seeds=seeds, captures=6)
    assert [d.peer for d in dispatched] == [WORKER, OTHER, WORKER, OTHER]


def test_client_tasks_wait_for_their_turn(core: Core) -> None:
    instructions = core.submit(
        task(to(CAPTURE), on_client=True, unlocks=(1,)),
        task(to(CAPTURE, slot=1), on_client=True, dependencies=2),
        seeds=((0, 0, 0, b"first"), (1, 0, 0, b"second")),
        captures=2,
    )
    assert [(d.peer, d.task) for d in instructions] == [(CLIENT, 0)]
    [second] = core.done(instructions[0], b"")
    assert (second.peer, second.task) == (CLIENT, 1)


def test_what_a_worker_prints_reaches_the_session(core: Core) -> None:
    core.submit(task(to(CAPTURE)), name=7)
    event = ev.OutputEmitted(WORKER, 0, "stdout", b"hello")
    assert core.handle_event(event) == [do.ForwardOutput(CLIENT, 7, "stdout", b"hello")]


# ----------------------------------------------------------------------- blocks


def test_a_captured_block_belongs_to_the_session_until_it_lets_go(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    [end] = core.done(first, *first.blocks)
    assert (end.captures, end.exclusive) == (first.blocks, (True,))
    assert first.blocks[0] in core.leases.holders
    core.handle_event(ev.BlocksReleased(CLIENT, first.blocks))
    assert core.arena.used_bytes == 0


def test_a_session_that_ends_gives_back_what_it_held(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    core.done(first, *first.blocks)
    core.handle_event(ev.SessionClosed(CLIENT))
    assert core.arena.used_bytes == 0


def test_a_block_may_be_passed_on_as_it_is(core: Core) -> None:
    [first] = core.submit(
        task(to(1, nbytes=4 * KIB)),
        task(to(CAPTURE, nbytes=4 * KIB), to(CAPTURE, slot=1)),
        captures=2,
    )
    [second] = core.done(first, *first.blocks)
    passed = first.blocks[0]
    [end] = core.done(second, passed, passed)
    assert end.captures == (passed, passed)
    assert end.exclusive == (False, False)
    assert second.blocks[0] not in core.leases.holders
    core.handle_event(ev.BlocksReleased(CLIENT, (passed, passed)))
    assert core.arena.used_bytes == 0


def test_a_kept_view_outlives_the_graph_and_dies_with_its_worker(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    block = first.blocks[0]
    [end] = core.done(first, block, kept=(block,))
    assert end.exclusive == (False,)
    core.handle_event(ev.BlocksReleased(CLIENT, (block,)))
    assert block in core.leases.holders
    core.lost(WORKER)
    assert block not in core.leases.holders


def test_a_task_waits_for_memory_while_something_may_give_it_back() -> None:
    core = Core(limit=4 * KIB)
    core.handle_event(ev.SessionOpened(CLIENT))
    core.handle_event(ev.WorkerJoined(WORKER))
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    assert core.submit(task(to(CAPTURE, nbytes=4 * KIB)), name=1) == []
    instructions = core.done(first, None)
    assert kinds(instructions) == ["CompleteGraph", "DispatchNodeTask"]


def test_a_graph_without_memory_fails_and_the_next_one_runs() -> None:
    """Found by World: the queue stood still after the failure."""
    core = Core(limit=4 * KIB)
    core.handle_event(ev.SessionOpened(CLIENT))
    core.submit(task(to(CAPTURE, nbytes=8 * KIB), priority=9.0))
    core.submit(task(to(CAPTURE)), name=1)
    failed, dispatched = core.handle_event(ev.WorkerJoined(WORKER))
    assert (failed.graph, failed.kind, failed.task) == (0, "memory", 0)
    assert failed.error == b"8192 0 4096"
    assert dispatched.owner_number == 1


# ----------------------------------------------------------------------- deaths


def test_a_lost_task_runs_again_with_fresh_blocks(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    core.handle_event(ev.WorkerJoined(OTHER))
    start, again = core.lost(WORKER, first)
    assert start == do.StartWorker(0)
    assert (again.peer, again.task, again.attempt) == (OTHER, 0, 2)
    assert again.blocks != first.blocks
    # What the dead one still says is dropped whole.
    assert core.done(first, *first.blocks) == []
    assert core.handle_event(ev.BlocksReleased(WORKER, first.blocks)) == []
    assert kinds(core.done(again, *again.blocks)) == ["CompleteGraph"]


def test_a_duplicate_reply_changes_nothing(core: Core) -> None:
    [first] = core.submit(task(to(1)), task(to(CAPTURE)))
    core.done(first, b"once")
    assert core.done(first, b"twice") == []


@pytest.mark.parametrize(("killed", "limit"), [(False, DEATHS_MAX), (True, KILLS_MAX)])
def test_a_task_that_kills_its_workers_fails_its_graph(
    core: Core, killed: bool, limit: int
) -> None:
    [running] = core.submit(task(to(CAPTURE)))
    for death in range(1, limit):
        core.lost(running.peer, running, killed=killed)
        [running] = core.handle_event(ev.WorkerJoined(f"w0.{death + 1}"))
    end, start = core.lost(running.peer, running, killed=killed)
    assert (end.kind, end.task) == ("lost", 0)
    assert start == do.StartWorker(0)


def test_a_crash_after_a_kill_from_outside_is_the_first(core: Core) -> None:
    [running] = core.submit(task(to(CAPTURE)))
    for incarnation, killed in ((2, True), (3, False)):
        assert core.lost(running.peer, running, killed=killed) == [do.StartWorker(0)]
        [running] = core.handle_event(ev.WorkerJoined(f"w0.{incarnation}"))
    assert kinds(core.done(running, b"")) == ["CompleteGraph"]


def test_only_the_running_task_is_suspect(core: Core) -> None:
    first, prefetched = core.submit(
        task(to(CAPTURE)),
        task(to(CAPTURE, slot=1), position=1),
        seeds=((0, 0, 0, b""), (1, 0, 0, b"")),
        captures=2,
    )
    for death in range(DEATHS_MAX * 2):
        core.lost(first.peer)  # between two tasks: nobody's fault
        first, prefetched = core.handle_event(ev.WorkerJoined(f"w0.{death + 2}"))
    assert (first.task, prefetched.task) == (0, 1)


def test_a_suspect_task_is_retried_alone(core: Core) -> None:
    first, _ = core.submit(
        task(to(CAPTURE)),
        task(to(CAPTURE, slot=1), position=1),
        seeds=((0, 0, 0, b""), (1, 0, 0, b"")),
        captures=2,
    )
    core.lost(WORKER, first)
    [alone] = core.handle_event(ev.WorkerJoined("w0.2"))
    assert (alone.task, alone.attempt) == (0, 2)
    [other] = core.done(alone, b"")
    assert other.task == 1


def test_the_engine_gives_up_after_deaths_without_progress(core: Core) -> None:
    core.submit(task(to(CAPTURE)))
    for death in range(RESTARTS_WITHOUT_PROGRESS_MAX):
        assert do.StartWorker(0) in core.lost(f"w0.{death + 1}")
        core.handle_event(ev.WorkerJoined(f"w0.{death + 2}"))
    [end] = core.lost(f"w0.{RESTARTS_WITHOUT_PROGRESS_MAX + 1}")
    assert (end.kind, end.task) == ("lost", -1)


def test_one_incident_may_kill_any_number_of_workers(core: Core) -> None:
    """Found by World, where 24 workers were killed at once: the engine gave up."""
    slots = range(1, 2 * RESTARTS_WITHOUT_PROGRESS_MAX)
    for slot in slots:
        core.handle_event(ev.WorkerJoined(f"w{slot}.1"))
    [first] = core.submit(task(to(CAPTURE)))
    for slot in slots:
        assert do.StartWorker(slot) in core.lost(f"w{slot}.1", killed=True)
    assert do.StartWorker(0) in core.lost(WORKER, first, killed=True)
    [again] = core.handle_event(ev.WorkerJoined("w7.2"))
    assert (again.task, again.attempt) == (0, 2)


def test_a_finished_task_is_progress_of_all_workers(core: Core) -> None:
    core.handle_event(ev.WorkerJoined("w1.1"))
    for death in range(2 * RESTARTS_WITHOUT_PROGRESS_MAX):
        [first] = core.submit(task(to(CAPTURE)), name=death)
        assert do.StartWorker(1) in core.lost(f"w1.{death + 1}")
        core.handle_event(ev.WorkerJoined(f"w1.{death + 2}"))
        core.done(first, b"result")


def test_the_last_death_fails_all_graphs_where_no_worker_can_be_had(core: Core) -> None:
    """Found by World: they waited for ever."""
    [first] = core.submit(task(to(CAPTURE)))
    assert core.handle_event(ev.WorkerUnavailable("no processes left")) == []
    [end] = core.lost(WORKER, first)
    assert (end.kind, end.error) == ("lost", b"no processes left")
    [end] = core.submit(task(to(CAPTURE)), name=1)
    assert end.kind == "lost"


# ----------------------------------------------------------------------- early ends


def test_a_cancelled_graph_ends_when_its_last_task_has_landed(core: Core) -> None:
    first, second = core.submit(
        task(to(CAPTURE, nbytes=4 * KIB)),
        task(to(CAPTURE, slot=1)),
        task(to(CAPTURE, slot=2)),
        seeds=tuple((n, 0, 0, b"") for n in range(3)),
        captures=3,
    )
    assert core.handle_event(ev.GraphCancelled(CLIENT, 0)) == [do.CancelGraph(WORKER, 0)]
    assert core.handle_event(ev.NodeTaskDropped(WORKER, 0, 1, second.attempt)) == []
    assert core.done(first, *first.blocks) == [
        do.FailGraph(CLIENT, 0, "cancelled", -1, b"cancelled by the caller")
    ]
    assert core.arena.used_bytes == 0


def test_the_first_error_of_the_serial_order_is_reported(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    tasks = [task(to(CAPTURE, slot=at), position=at) for at in range(5)]
    seeds = tuple((at, 0, 0, b"") for at in range(5))
    zeroth, first, second, third = core.submit(*tasks, seeds=seeds, captures=5)
    assert core.failed(third, b"late") == []
    assert core.failed(second, b"earlier") == []
    assert core.done(zeroth, b"") == []
    assert len(core.ready) == 0
    assert core.failed(first, b"first") == [do.FailGraph(CLIENT, 0, "error", 1, b"first")]


def test_what_comes_before_an_error_still_runs(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    early, late = core.submit(
        task(to(CAPTURE), position=9),
        task(to(2), position=0),
        task(to(CAPTURE), position=1),
        seeds=((0, 0, 0, b""), (1, 0, 0, b"")),
    )
    assert core.failed(late) == []
    [between] = core.done(early, b"")
    assert between.task == 2
    assert core.done(between, b"") == [do.FailGraph(CLIENT, 0, "error", 0, b"boom")]


def test_of_a_fused_task_the_node_that_raised_counts(core: Core) -> None:
    fused = task(to(CAPTURE), position=0, inner_positions=(5,))
    single = task(to(CAPTURE), position=3)
    first, second = core.submit(fused, single, seeds=((0, 0, 0, b""), (1, 0, 0, b"")))
    assert core.failed(first, step=1) == []
    assert core.failed(second, b"before") == [do.FailGraph(CLIENT, 0, "error", 1, b"before")]


def test_an_exception_fails_its_graph_and_no_other(core: Core) -> None:
    [bad] = core.submit(task(to(1)), task(to(CAPTURE)))
    [good] = core.submit(task(to(CAPTURE)), name=1)
    assert core.failed(bad) == [do.FailGraph(CLIENT, 0, "error", 0, b"boom")]
    assert kinds(core.done(good, b"")) == ["CompleteGraph"]


def test_a_gone_session_leaves_nothing(core: Core) -> None:
    on_client, on_worker = core.submit(
        task(to(CAPTURE), on_client=True),
        task(to(CAPTURE, nbytes=4 * KIB), position=1),
        seeds=((0, 0, 0, b""), (1, 0, 0, b"")),
        captures=2,
    )
    assert (on_client.peer, on_worker.peer) == (CLIENT, WORKER)
    assert core.handle_event(ev.SessionClosed(CLIENT)) == [do.CancelGraph(WORKER, 0)]
    assert core.done(on_worker, *on_worker.blocks) == []
    assert statistics_of(core) == (0, 0, 0, 1, 0, 0)


def test_a_graph_of_an_unknown_session_is_ignored(core: Core) -> None:
    core.handle_event(ev.SessionClosed(CLIENT))
    assert core.submit(task(to(CAPTURE))) == []
    assert core.handle_event(ev.GraphExtended(CLIENT, 0, (), is_whole=True)) == []
    assert core.handle_event(ev.GraphCancelled(CLIENT, 0)) == []
    assert statistics_of(core).graphs == 0


# ----------------------------------------------------------------------- lies


def test_a_worker_may_publish_only_what_it_was_given(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    for foreign in (
        first.blocks[0]._replace(generation=99),
        Block(ENGINE_ARENA, 0, 1 << 40, 1),
        Block(CLIENT_ARENA, 64, 64, 1),
    ):
        with pytest.raises(ProtocolError, match="not its own"):
            core.done(first, foreign)
        with pytest.raises(ProtocolError, match="not its own"):
            core.done(first, None, kept=(foreign,))
    with pytest.raises(ProtocolError, match="2 outputs, not 1"):
        core.done(first, None, None)
    # The tables are as before: the true reply still counts.
    assert kinds(core.done(first, *first.blocks)) == ["CompleteGraph"]


def test_a_graph_is_submitted_once(core: Core) -> None:
    core.submit(task(to(CAPTURE)))
    with pytest.raises(ProtocolError, match="twice"):
        core.submit(task(to(CAPTURE)))


def test_nobody_releases_what_it_does_not_hold(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    block = first.blocks[0]
    with pytest.raises(ProtocolError, match="does not hold"):
        core.handle_event(ev.BlocksReleased(WORKER, (block,)))
    core.done(first, block)
    with pytest.raises(ProtocolError, match="does not hold"):
        core.handle_event(ev.BlocksReleased(CLIENT, (block, block)))
    assert block in core.leases.holders


def test_a_worker_may_not_drop_what_nobody_cancelled(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE)))
    with pytest.raises(ProtocolError, match="nobody cancelled"):
        core.handle_event(ev.NodeTaskDropped(WORKER, 0, 0, first.attempt))


def test_the_check_of_the_tables_finds_a_wrong_one(core: Core) -> None:
    [first] = core.submit(task(to(CAPTURE, nbytes=4 * KIB)))
    core.leases.hold(first.blocks[0])
    with pytest.raises(InvariantViolated, match="leases do not add up"):
        check_invariants(core)
    core.leases.release(first.blocks[0])


# ----------------------------------------------------------------------- what waits at a worker


def test_a_worker_keeps_itself_free_for_the_rest_of_a_chain(core: Core) -> None:
    """A weight gradient prefetched there would stand between two links."""
    (first,) = core.submit(
        task(to(1), to(2), priority=30.0),
        task(to(CAPTURE), priority=20.0, behind=10.0),
        task(to(CAPTURE, 1), priority=5.0),
        captures=2,
    )
    (link,) = core.done(first, b"x", b"y")
    assert (link.task, statistics_of(core).ready) == (1, 1)
    (late,) = core.done(link, b"x")
    assert late.task == 2


def test_what_nothing_urgent_follows_does_not_keep_others_away(core: Core) -> None:
    (first,) = core.submit(
        task(to(1), to(2), priority=30.0),
        task(to(CAPTURE), priority=20.0),
        task(to(CAPTURE, 1), priority=5.0),
        captures=2,
    )
    assert [dispatch.task for dispatch in core.done(first, b"x", b"y")] == [1, 2]


def test_what_an_answer_makes_ready_stays_with_its_worker(core: Core) -> None:
    core.handle_event(ev.WorkerJoined(OTHER))
    a, b = core.submit(
        task(to(2)),
        task(to(2, place=1)),
        task(to(CAPTURE), places=(2,)),
        seeds=((0, 0, 0, b"s"), (1, 0, 0, b"s")),
    )
    assert (a.peer, b.peer) == (WORKER, OTHER)
    core.done(a, b"x")
    (joined,) = core.done(b, b"y")
    assert joined.peer == OTHER
