"""Each table of the coordinator is damaged once, and a recount must say so: that of a core in the
middle of its backwards, and that of a World.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mpgrad.base.handles import ENGINE_ARENA, Block
from mpgrad.errors import InvariantViolated, TablesCorrupt
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import invariants
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.graph_task import GraphPhase, GraphTask, TaskState
from mpgrad.scheduler.invariants import check_invariants
from simulation import World, WorldFailure
from simulation.faults import NO_FAULTS

#: Damages a table; False if there is no row to damage now.
Damage = Callable[[CoordinatorState], bool]
DAMAGES: list[Damage] = []
STRANGER = Block(ENGINE_ARENA, 1 << 30, 64, 1)


def damage(function: Damage) -> Damage:
    DAMAGES.append(function)
    return function


def running(core: CoordinatorState) -> GraphTask | None:
    graphs = core.graphs.values()
    return next((graph for graph in graphs if graph.phase is GraphPhase.RUNNING), None)


@damage
def a_lease_without_holder(core):
    core.leases.holders[STRANGER] = 1
    return True


@damage
def a_lease_with_one_holder_more(core):
    for block in core.leases.holders:
        core.leases.holders[block] += 1
        return True
    return False


@damage
def a_lease_that_is_lost(core):
    return bool(core.leases.holders) and bool(core.leases.holders.popitem())


@damage
def a_block_that_a_session_seems_to_keep(core):
    for session in core.membership.sessions():
        session.keep(STRANGER)
        return True
    return False


@damage
def a_block_that_is_kept_no_time(core):
    for member in core.membership.members.values():
        member.kept[STRANGER] = 0
        return True
    return False


@damage
def outstanding_tasks(core):
    return change(core, "outstanding_tasks")


@damage
def remaining_tasks(core):
    return change(core, "remaining")


@damage
def skipped_tasks(core):
    return change(core, "skipped")


@damage
def bytes_inside_messages(core):
    return change(core, "inline_nbytes")


def change(core, name):
    graph = running(core)
    if graph is None:
        return False
    setattr(graph, name, getattr(graph, name) + 1)
    return True


@damage
def dependencies_of_a_task(core):
    graph = running(core)
    if graph is None or TaskState.NOT_READY not in graph.states:
        return False
    graph.dependencies[graph.states.index(TaskState.NOT_READY)] += 2
    return True


@damage
def a_task_that_is_done_once_more(core):
    graph = running(core)
    if graph is None or TaskState.DISPATCHED not in graph.states:
        return False
    graph.states[graph.states.index(TaskState.DISPATCHED)] = TaskState.DONE
    return True


@damage
def a_task_that_has_published_what_nobody_got(core):
    graph = running(core)
    if graph is None:
        return False
    for task, state in enumerate(graph.states):
        outputs = graph.specs[task].outputs
        if state is TaskState.NOT_READY and outputs and outputs[0].task >= 0:
            graph.published[task] = {0}
            return outputs[0].task < len(graph.specs)
    return False


@damage
def a_buffer_of_another_shape(core):
    graph = running(core)
    for task, buffer in () if graph is None else graph.buffers.items():
        if buffer.slots and graph.states[task] is not TaskState.DONE:
            buffer.slots[0].append(None)
            return True
    return False


@damage
def a_ready_task_that_is_forgotten(core):
    for heap in core.ready.heaps.values():
        if heap:
            heap.pop()
            return True
    return False


@damage
def a_ready_task_that_waits_twice(core):
    for lane, heap in core.ready.heaps.items():
        if heap:
            core.ready.push(heap[0], lane)
            return True
    return False


@damage
def a_ready_task_in_the_lane_of_another_device(core):
    for heap in core.ready.heaps.values():
        if heap:
            core.ready.push(heap.pop(0), 17)
            return True
    return False


@damage
def an_order_that_is_not_that_of_a_heap(core):
    for heap in core.ready.heaps.values():
        if len(heap) > 1 and heap[0] != max(heap):
            heap.sort(reverse=True)
            return True
    return False


@damage
def a_flight_that_is_forgotten(core):
    for worker in core.membership.workers():
        if worker.flights:
            worker.flights.popitem()
            return True
    return False


@damage
def a_flight_of_a_graph_that_has_ended(core):
    for worker in core.membership.workers():
        for key, flight in worker.flights.items():
            worker.flights[key._replace(graph=10_000)] = flight
            return True
    return False


@damage
def the_load_of_a_worker(core):
    for worker in core.membership.workers():
        worker.load_us += 1
        return True
    return False


@damage
def a_worker_that_is_not_listed(core):
    return bool(core.membership.workers()) and bool(core.membership.workers().pop())


@damage
def a_number_of_a_graph_that_has_ended(core):
    core.numbers["c9.9", 0] = 10_000
    return True


@damage
def a_graph_that_its_session_cannot_name(core):
    return bool(core.numbers) and bool(core.numbers.popitem())


def world_at(seed: int, steps: int) -> World:
    """A World in the middle of its backwards."""
    world = World(seed, workers=2, graphs=3, sessions=3, faults=NO_FAULTS)
    world._begin()
    for _ in range(steps):
        world.time.step()
    return world


def idle(core: CoordinatorState, events: int) -> None:
    """Let as many events come that change nothing."""
    for _ in range(events):
        core.handle_event(ev.BlocksReleased("nobody", ()))


def run_worlds_until(damaged: list[object]) -> None:
    for seed in range(40):
        World(seed, workers=2, graphs=3, sessions=3, faults=NO_FAULTS).run()
        assert not damaged, "the World has not noticed it"


NAMES = [function.__name__ for function in DAMAGES]


@pytest.mark.parametrize("damage", DAMAGES, ids=NAMES)
def test_a_recount_finds_it(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "DECIDE_EVERY", 1)
    monkeypatch.setattr(invariants, "EVENTS_PER_ROW", 0)
    for seed in range(40):
        world = world_at(seed, random.Random(seed).randint(40, 400))
        core = world.coordinator.core
        check_invariants(core)
        core.handle_event(ev.BlocksReleased("nobody", ()))
        found = damage(core)
        if found:
            with pytest.raises((InvariantViolated, LookupError)):
                check_invariants(core)
            with pytest.raises(TablesCorrupt, match="has recounted its tables") as caught:
                core.recounts.note_event(core)
            assert caught.value.__cause__ is not None
        for client in world.clients.values():
            client.end()
        if found:
            return
    pytest.fail("no core had a row to damage")


@pytest.mark.parametrize("damage", DAMAGES, ids=NAMES)
def test_a_world_finds_it(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CoordinatorState.handle_event
    damaged = []

    def wrong(self, event):
        instructions = right(self, event)
        if not damaged and len(self.last_events) > 8 and damage(self):
            damaged.append(event)
        return instructions

    monkeypatch.setattr(CoordinatorState, "handle_event", wrong)
    with pytest.raises(WorldFailure):
        run_worlds_until(damaged)
    assert damaged


def test_a_core_recounts_as_often_as_its_tables_are_small() -> None:
    core = world_at(3, 200).coordinator.core
    made = core.recounts.made
    rows = invariants._rows(core)
    assert rows
    events = 4 * invariants.EVENTS_PER_ROW * rows + 4 * invariants.DECIDE_EVERY
    idle(core, events)
    needed = max(invariants.EVENTS_PER_ROW * rows, invariants.DECIDE_EVERY)
    at_most = events // needed
    assert 2 <= core.recounts.made - made <= at_most


def test_what_led_to_it_is_told() -> None:
    core = world_at(3, 200).coordinator.core
    core.leases.holders[STRANGER] = 1
    with pytest.raises(TablesCorrupt) as caught:
        idle(core, 100_000)
    assert "leases do not add up" in str(caught.value)
    assert caught.value.__notes__[0].startswith("The last events:\n")
