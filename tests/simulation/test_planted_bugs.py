"""A simulation that finds nothing proves nothing: each bug planted here, World must catch.

One bug at a time goes into the cores or the planner. Some seed of the first 2,000 must fail with
it, and that seed must pass without it.
"""

from __future__ import annotations

import math

import pytest

from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.errors import SharedMemoryExhausted
from mpgrad.scheduler import bundling, coordinator_state, fusion, membership
from mpgrad.scheduler import plan as plan_module
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.events import GraphSubmitted, NodeTaskDone, NodeTaskFailed
from mpgrad.scheduler.graph_task import MISSING, GraphEvent, GraphTask, InputBuffer, TaskState
from mpgrad.scheduler.lease_table import LeaseTable
from mpgrad.scheduler.membership import Flight, MemberRecord, Membership
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.ready_queue import ReadyQueue
from mpgrad.scheduler.sum_places import SumPlaces
from mpgrad.scheduler.task_dispatch import TaskDispatch
from mpgrad.scheduler.worker_state import WorkerState
from simulation import Faults, World, WorldFailure, caller
from simulation.expectations import BYTES_CORRUPTED
from simulation.simulated_memory import SimulatedMemory
from tests.simulation.planting import Plants

#: Options of the Worlds that are tried: those of the seed, then many backwards inside backwards.
CHOSEN: tuple[dict[str, int], ...] = ({}, {"graphs": 4, "sessions": 1})


PLANTS = Plants(lambda seed: (World.drawn(seed, **chosen) for chosen in CHOSEN))
bug, rare_bug = PLANTS.bug, PLANTS.rare_bug


def forget(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Make ``owner.name`` a method that does nothing."""
    patch.setattr(owner, name, lambda *_, **__: None)


# ----------------------------------------------------------------------- limits


@bug
def a_limit_is_written_a_second_time(patch):
    """Only Worlds whose credit is another one show it."""
    right = MemberRecord.has_credit

    def wrong(self, **wanted):
        with patch.context() as inside:
            inside.setattr(membership, "WORKER_CREDIT", 2)
            return right(self, **wanted)

    patch.setattr(MemberRecord, "has_credit", wrong)


# ----------------------------------------------------------------------- bytes


@bug
def nobody_compares_checksums(patch):
    forget(patch, SimulatedMemory, "check_bytes")


@rare_bug
def a_caller_takes_results_without_a_look_at_their_checksums(patch):
    right = caller.Caller._check_result

    def wrong(self, name, end):
        with patch.context() as inside:
            forget(inside, SimulatedMemory, "check_bytes")
            right(self, name, end)

    patch.setattr(caller.Caller, "_check_result", wrong)


@bug
def a_task_with_damaged_inputs_ends_as_if_it_had_none(patch):
    """The error of a task without user code is thrown away."""
    right = CoordinatorState.handle_event

    def wrong(self, event):
        if isinstance(event, NodeTaskFailed) and event.error == BYTES_CORRUPTED:
            key = event[1:4]
            graph = self.graphs.get(event.graph)
            if graph is not None:
                outputs = (None,) * len(graph.specs[event.task].outputs)
                event = NodeTaskDone(event.peer, *key, outputs, event.kept)
        return right(self, event)

    patch.setattr(CoordinatorState, "handle_event", wrong)


# ----------------------------------------------------------------------- leases


@bug
def inputs_are_released_twice(patch):
    right = TaskDispatch._release_flight

    def wrong(self, graph, task, flight):
        for slot in flight.inputs:
            for ref in slot:
                self.leases.release(ref)
        right(self, graph, task, flight)

    patch.setattr(TaskDispatch, "_release_flight", wrong)


@bug
def inputs_are_not_released(patch):
    def wrong(self, graph, task, flight):
        for block in flight.blocks:
            self.leases.release(block)
        graph.buffers.pop(task, None)

    patch.setattr(TaskDispatch, "_release_flight", wrong)


@bug
def what_the_client_ran_ahead_is_run_again(patch):
    right = GraphTask.extend

    def wrong(self, tasks, is_whole, done=0):
        return right(self, tasks, is_whole)

    patch.setattr(GraphTask, "extend", wrong)


@bug
def what_the_caller_computes_meanwhile_is_not_delivered(patch):
    right = CoordinatorState._seed

    def wrong(self, graph, event):
        if isinstance(event, GraphSubmitted):
            right(self, graph, event)

    patch.setattr(CoordinatorState, "_seed", wrong)


@bug
def the_failure_of_the_callers_task_is_forgotten(patch):
    forget(patch, TaskDispatch, "on_client_failure")


@bug
def blocks_lent_to_a_lost_task_are_not_taken_back(patch):
    def wrong(self, member, key):
        member.flights.pop(key)
        graph = self.graphs[key.graph]
        graph.requeue(key.task)
        if graph.failure is None:
            self.enqueue(graph, [key.task])

    patch.setattr(TaskDispatch, "abandon", wrong)


@bug
def what_a_dead_worker_kept_is_forgotten(patch):
    forget(patch, CoordinatorState, "_release_row")


@bug
def kept_views_are_not_counted(patch):
    forget(patch, TaskDispatch, "_keep")


@bug
def captured_blocks_are_freed_at_the_end(patch):
    def wrong(self, graph):
        right(self, graph)
        if graph.number not in self.graphs and graph.failure is None:
            kept = self.membership.members[graph.owner].kept
            for block, count in kept.items():
                for _ in range(count):
                    self.leases.release(block)
            kept.clear()

    right = CoordinatorState.complete
    patch.setattr(CoordinatorState, "complete", wrong)


@bug
def a_block_in_sight_of_others_is_given_away(patch):
    patch.setattr(LeaseTable, "is_exclusive", lambda self, ref: ref in self.holders)


# ----------------------------------------------------------------------- replies


@bug
def a_reply_of_a_dead_incarnation_counts(patch):
    """The shell hears no dead ones, and the core believes none: either would do."""
    patch.setattr(Coordinator, "_is_ready", lambda self, peer: True)
    right = TaskDispatch._flight_of

    def wrong(self, event):
        member, key, flight = right(self, event)
        if flight is None:
            for other in self.membership.members.values():
                for found in other.flights:
                    if found[:2] == key[:2]:
                        return other, found, other.flights[found]
        return member, key, flight

    patch.setattr(TaskDispatch, "_flight_of", wrong)


@bug
def a_duplicate_reply_counts_twice(patch):
    right = TaskDispatch._flight_of

    def wrong(self, event):
        member, key, flight = right(self, event)
        answered = self.__dict__.setdefault("answered", {})
        if flight is not None:
            answered[key] = flight
        elif member is not None and key in answered and key.graph in self.graphs:
            member.flights[key] = flight = answered[key]
        return member, key, flight

    patch.setattr(TaskDispatch, "_flight_of", wrong)


@bug
def a_forged_block_is_believed(patch):
    forget(patch, Flight, "check_reply")


@bug
def the_wrong_task_is_blamed_for_an_exception(patch):
    right = GraphTask.note_error

    def wrong(self, task, step, error):
        right(self, max(task - 1, 0), 0, error)

    patch.setattr(GraphTask, "note_error", wrong)


@bug
def the_first_error_to_arrive_wins(patch):
    right = GraphTask.note_error

    def wrong(self, task, step, error):
        if self.first_error is None:
            right(self, task, step, error)

    patch.setattr(GraphTask, "note_error", wrong)


@bug
def what_comes_before_an_error_is_not_run(patch):
    patch.setattr(GraphTask, "is_wanted", lambda self, task: self.first_error is None)


@bug
def the_wrong_task_is_blamed_for_a_death(patch):
    right = CoordinatorState._on_worker_died

    def wrong(self, event):
        member = self.membership.get(event.peer)
        if member is not None and member.flights:
            event = event._replace(running=tuple(list(member.flights)[-1]))
        right(self, event)

    patch.setattr(CoordinatorState, "_on_worker_died", wrong)


@bug
def a_kill_from_outside_is_the_fault_of_the_task(patch):
    right = CoordinatorState._blame
    patch.setattr(
        CoordinatorState,
        "_blame",
        lambda self, graph, task, event, kind: right(
            self, graph, task, event._replace(killed=False), kind
        ),
    )


@rare_bug
def the_deaths_of_all_slots_are_counted_together(patch):
    right = CoordinatorState._replace_worker

    def wrong(self, slot, cause):
        counts = self.deaths_without_progress
        counts[slot] = sum(counts.values())
        right(self, slot, cause)

    patch.setattr(CoordinatorState, "_replace_worker", wrong)


@bug
def nobody_is_blamed_for_a_death(patch):
    forget(patch, CoordinatorState, "_blame")


@rare_bug
def a_fence_is_taken_for_a_kill_from_outside(patch):
    right = coordinator_state._fenced
    patch.setattr(coordinator_state, "_fenced", lambda *args: right(*args)._replace(killed=True))


@rare_bug
def a_stop_is_the_fault_of_the_task(patch):
    right = coordinator_state._fenced
    patch.setattr(coordinator_state, "_fenced", lambda *args: right(*args)._replace(killed=False))


@rare_bug
def what_runs_when_the_fence_strikes_is_blamed(patch):
    patch.setattr(coordinator_state, "_fenced", lambda event, hung: event._replace(killed=False))


@rare_bug
def a_hung_worker_gets_more_tasks(patch):
    def wrong(self, **wanted):
        is_fenced, self.is_fenced = self.is_fenced, False
        try:
            return right(self, **wanted)
        finally:
            self.is_fenced = is_fenced

    right = MemberRecord.has_credit
    patch.setattr(MemberRecord, "has_credit", wrong)


@bug
def a_hung_worker_is_left_alone(patch):
    forget(patch, CoordinatorState, "_on_worker_hung")


@bug
def a_passed_deadline_is_forgotten(patch):
    forget(patch, CoordinatorState, "_on_deadline_passed")


@bug
def a_hung_task_is_given_to_others_before_its_worker_is_dead(patch):
    right = CoordinatorState._on_worker_hung

    def wrong(self, event):
        right(self, event)
        member = self.membership.get(event.peer)
        for key in list(member.flights):
            self.abandon(member, key)

    patch.setattr(CoordinatorState, "_on_worker_hung", wrong)


# ----------------------------------------------------------------------- the end of graphs


@bug
def a_graph_completes_with_tasks_in_flight(patch):
    patch.setattr(
        GraphTask,
        "is_complete",
        property(lambda self: self.is_whole and TaskState.NOT_READY not in self.states),
    )


@bug
def a_graph_completes_before_all_its_tables_came(patch):
    patch.setattr(GraphTask, "is_complete", property(lambda self: self.remaining == 0))


@bug
def a_graph_fails_with_tasks_in_flight(patch):
    right = TaskDispatch.settle

    def wrong(self, graph):
        members, self.membership.members = self.membership.members, {}
        owner = members.get(graph.owner)
        if owner is not None:
            self.membership.members[graph.owner] = owner
        right(self, graph)
        self.membership.members = members

    patch.setattr(TaskDispatch, "settle", wrong)


@bug
def ready_tasks_of_a_failed_graph_stay_queued(patch):
    patch.setattr(ReadyQueue, "drop_graph", lambda *_, **__: 0)


@bug
def a_cancelled_task_is_lost_by_the_worker(patch):
    right = WorkerState._give_back

    def wrong(self, graph):
        right(self, graph)
        return []

    patch.setattr(WorkerState, "_give_back", wrong)


@bug
def graphs_of_a_gone_session_go_on(patch):
    def wrong(self, event):
        member = self.membership.leave(event.peer)
        if member is not None:
            self._release_row(member)

    patch.setattr(CoordinatorState, "_on_session_closed", wrong)


@rare_bug
def inner_graphs_of_a_gone_session_go_on(patch):
    right = CoordinatorState._on_session_closed

    def wrong(self, event):
        inner = {number: g for number, g in self.graphs.items() if g.depth > 0}
        for number in inner:
            del self.graphs[number]
        right(self, event)
        self.graphs.update(inner)

    patch.setattr(CoordinatorState, "_on_session_closed", wrong)


@bug
def a_session_takes_its_siblings_along(patch):
    right = CoordinatorState._on_session_closed

    def wrong(self, event):
        right(self, event)
        process = event.peer.partition(".")[0]
        for graph in list(self.graphs.values()):
            if graph.owner.partition(".")[0] == process:
                self.happens(graph, GraphEvent.CANCELLED, "cancelled", -1, b"")
                self.settle(graph)

    patch.setattr(CoordinatorState, "_on_session_closed", wrong)


@rare_bug
def what_a_refused_submission_left_behind_stays(patch):
    right = CoordinatorState._on_session_closed

    def wrong(self, event):
        empty = {number: g for number, g in self.graphs.items() if not g.specs}
        for number in empty:
            del self.graphs[number]
        right(self, event)
        self.graphs.update(empty)

    patch.setattr(CoordinatorState, "_on_session_closed", wrong)


@bug
def sessions_share_the_names_of_their_graphs(patch):
    right = CoordinatorState.graph_of

    def wrong(self, owner, name):
        others = [key for key in self.numbers if key[1] == name]
        return right(self, *(others[0] if others else (owner, name)))

    patch.setattr(CoordinatorState, "graph_of", wrong)


# ----------------------------------------------------------------------- readiness and dispatch


@bug
def a_task_is_ready_one_arrival_early(patch):
    def wrong(self, task):
        self.dependencies[task] -= 1
        is_ready = self.dependencies[task] <= 1 and self.states[task] is TaskState.NOT_READY
        if is_ready:
            self._apply(task, "inputs complete")
        return is_ready

    patch.setattr(GraphTask, "_count_down", wrong)


@bug
def arrivals_before_the_tables_are_lost(patch):
    right = GraphTask._comes_early

    def wrong(self, task, slot, place, ref):
        is_ready = right(self, task, slot, place, ref)
        if slot >= 0:
            self.early.pop()
        return is_ready

    patch.setattr(GraphTask, "_comes_early", wrong)


@bug
def a_lost_task_is_not_run_again(patch):
    def wrong(self, member, key):
        for block in member.flights.pop(key).blocks:
            self.leases.release(block)
        self.graphs[key.graph].requeue(key.task)

    patch.setattr(TaskDispatch, "abandon", wrong)


@bug
def credit_has_no_limit(patch):
    patch.setattr(MemberRecord, "has_credit", lambda self, **_: True)
    patch.setattr(membership, "WORKER_CREDIT", 99)


@bug
def a_long_task_is_put_in_front_of_an_urgent_one(patch):
    right = MemberRecord.has_credit
    patch.setattr(
        MemberRecord,
        "has_credit",
        lambda self, *, priority, **wanted: right(self, priority=math.inf, **wanted),
    )


@bug
def what_a_worker_holds_is_counted_wrongly(patch):
    right = MemberRecord.end

    def wrong(self, key):
        flight = right(self, key)
        self.long += flight.is_short
        return flight

    patch.setattr(MemberRecord, "end", wrong)


@bug
def a_suspect_task_gets_company(patch):
    right = MemberRecord.has_credit
    patch.setattr(
        MemberRecord,
        "has_credit",
        lambda self, *, for_suspect, **wanted: right(self, for_suspect=False, **wanted),
    )


@bug
def a_worker_is_left_idle(patch):
    """Seldom a deadlock, for the next event looks again; always a loss."""
    right = TaskDispatch.dispatch_ready

    def wrong(self, near):
        sent = []

        def choose(**wanted):
            if sent:
                return None
            sent.append(True)
            return Membership.choose_worker(self.membership, **wanted)

        self.membership.choose_worker = choose
        right(self, near)
        del self.membership.choose_worker

    patch.setattr(TaskDispatch, "dispatch_ready", wrong)


@bug
def a_full_arena_fails_graphs_that_could_wait(patch):
    right = TaskDispatch._must_wait_for_memory

    def wrong(self, graph, task, full):
        workers, self.membership.workers = self.membership.workers, list
        try:
            return right(self, graph, task, full)
        finally:
            self.membership.workers = workers

    patch.setattr(TaskDispatch, "_must_wait_for_memory", wrong)


@bug
def a_failed_dispatch_stops_the_others(patch):
    """World found this one: out of memory failed a graph, and nobody looked at the next."""
    right = TaskDispatch._must_wait_for_memory

    def wrong(self, graph, task, full: SharedMemoryExhausted):
        right(self, graph, task, full)
        return True

    patch.setattr(TaskDispatch, "_must_wait_for_memory", wrong)


@rare_bug
def graphs_wait_for_workers_that_never_come(patch):
    """World found this one: the last worker died after no other could be had."""
    right = CoordinatorState._replace_worker

    def wrong(self, slot, cause):
        if self.unavailable is None:
            right(self, slot, cause)

    patch.setattr(CoordinatorState, "_replace_worker", wrong)


# ----------------------------------------------------------------------- sums and plans


@bug
def a_sum_is_taken_in_order_of_arrival(patch):
    def wrong(self, slot, place, ref):
        self.slots[slot][self.slots[slot].index(MISSING)] = ref

    patch.setattr(InputBuffer, "fill", wrong)


@bug
def places_do_not_follow_the_serial_order(patch):
    class Wrong(SumPlaces):
        def __init__(self, spec, group_of, groups):
            by_index = spec._replace(order=tuple(range(len(spec.nodes))))
            super().__init__(by_index, group_of, groups)
            for members in self.members:
                members.sort(key=lambda member: self._member[member.node])

    patch.setattr(plan_module, "SumPlaces", Wrong)


@bug
def nodes_are_fused_around_another(patch):
    def home_for(self, index):
        return -1 if index in self._seeded else self.group_of[self.producers[index][-1]]

    patch.setattr(fusion.Grouping, "home_for", home_for)


@bug
def groups_of_several_levels_are_bundled(patch):
    right = bundling._Bundling.levels

    def wrong(self):
        found = [*right(self), []]
        return [a + b for a, b in zip(found[::2], found[1::2], strict=False)]

    patch.setattr(bundling._Bundling, "levels", wrong)


@bug
def bundles_do_not_wait_for_hooks_in_turn(patch):
    patch.setattr(bundling, "pairwise", lambda client: [])


@bug
def the_slots_of_a_task_are_mistaken(patch):
    def wrong(spec, **options):
        planned = plan(spec, **options)
        return planned._replace(slots=tuple(slots[::-1] for slots in planned.slots))

    patch.setattr(caller, "plan", wrong)


@bug
def hooks_run_in_any_order(patch):
    def wrong(spec, **options):
        planned = plan(spec, **options)
        return planned._replace(
            tasks=tuple(
                task._replace(unlocks=(), dependencies=sum(task.places)) for task in planned.tasks
            )
        )

    patch.setattr(caller, "plan", wrong)


# ----------------------------------------------------------------------- the test


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)


def test_a_failure_with_chosen_faults_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.by_name["inputs_are_not_released"](monkeypatch)
    with pytest.raises(WorldFailure) as caught:
        World(3, workers=1, faults=Faults(kill=1.0)).run()
    again = str(caught.value).splitlines()[-1].partition('"')[2].rstrip('"')
    with pytest.raises(WorldFailure) as repeated:
        exec(again, {})
    assert str(repeated.value) == str(caught.value)


def test_a_failure_tells_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.by_name["inputs_are_not_released"](monkeypatch)
    found = PLANTS.first_failure()
    assert found is not None
    seed, failure = found
    lines = str(failure).splitlines()
    assert lines[0].startswith("InvariantViolated: leases do not add up")
    assert lines[1].startswith(f"World({seed}, workers=")
    assert f"python -m simulation --seeds {seed}:{seed + 1}" in lines[-1]
    # Microseconds end in one column, and "who" begins in one.
    assert {line[9:11] for line in lines[2:-1]} == {"  "}
