"""Bugs of branches and of tasks near them, planted one at a time: World must catch each.

As in ``test_planted_bugs``, with Worlds whose callers call functions forward.
"""

from __future__ import annotations

import itertools

import pytest

from mpgrad.calls.kept_branches import Branches
from mpgrad.engine.session import Session
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler import membership
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.membership import Membership
from mpgrad.scheduler.ready_queue import ReadyQueue
from mpgrad.scheduler.task_dispatch import TaskDispatch
from mpgrad.scheduler.worker_state import WorkerState
from simulation import World, branch_values, branches
from simulation.many_worlds import run_worlds
from tests.simulation.planting import Plants

PLANTS = Plants(
    lambda seed: [World.drawn(seed, branches=1, workers=2 + seed % 3, gpus=0)], seeds=600
)
bug = PLANTS.bug


# ----------------------------------------------------------------------- near is a hint


@bug
def a_task_waits_for_a_worker_that_is_not_there(patch):
    right = Membership.worker_for_branch

    def wrong(self, slot, waiting, **wanted):
        if all(worker.slot != slot for worker in self.workers()):
            return None
        return right(self, slot, waiting, **wanted)

    patch.setattr(Membership, "worker_for_branch", wrong)


@bug
def a_task_waits_for_a_worker_that_is_being_killed(patch):
    right = Membership.worker_for_branch

    def wrong(self, slot, waiting, **wanted):
        if any(worker.slot == slot and worker.is_fenced for worker in self.workers()):
            return None
        return right(self, slot, waiting, **wanted)

    patch.setattr(Membership, "worker_for_branch", wrong)


@bug
def a_worker_that_is_being_killed_gets_a_task_near_it(patch):
    right = Membership.worker_for_branch

    def wrong(self, slot, waiting, **wanted):
        there = [worker for worker in self.workers() if worker.slot == slot]
        if there and there[0].is_fenced:
            return there[0]
        return right(self, slot, waiting, **wanted)

    patch.setattr(Membership, "worker_for_branch", wrong)


@bug
def idle_workers_look_on_while_many_tasks_wait_for_one(patch):
    patch.setattr(membership, "NEAR_WAITING_MAX", 1 << 30)


@bug
def a_busy_worker_takes_the_task_of_another(patch):
    def wrong(self, slot, waiting, **wanted):
        return self.workers()[0] if self.workers() else None

    patch.setattr(Membership, "worker_for_branch", wrong)


@bug
def a_suspect_near_a_worker_gets_company(patch):
    right = Membership.worker_for_branch
    patch.setattr(
        Membership,
        "worker_for_branch",
        lambda self, slot, waiting, *, for_suspect, **rest: right(
            self, slot, waiting, for_suspect=False, **rest
        ),
    )


@bug
def only_the_worker_with_the_branch_may_run_a_task(patch):
    def wrong(self, slot, waiting, *, for_suspect, priority):
        for worker in self.workers():
            if worker.slot == slot and worker.has_credit(
                for_suspect=for_suspect, for_short=False, priority=priority
            ):
                return worker
        return None

    patch.setattr(Membership, "worker_for_branch", wrong)


# ----------------------------------------------------------------------- lanes of slots


@bug
def lanes_are_served_in_the_order_of_their_first_task(patch):
    """It was so: what was near a worker waited behind all that was not."""

    def wrong(self, lanes):
        return next((lane for lane in lanes if self.heaps[lane]), None)

    patch.setattr(ReadyQueue, "most_urgent", wrong)


@bug
def tasks_of_an_ended_graph_stay_in_the_lanes_of_slots(patch):
    right = ReadyQueue.drop_graph

    def wrong(self, graph, start=0):
        near = {lane: heap for lane, heap in self.heaps.items() if lane < -1}
        for lane in near:
            del self.heaps[lane]
        dropped = right(self, graph, start)
        self.heaps |= near
        return dropped

    patch.setattr(ReadyQueue, "drop_graph", wrong)


@bug
def a_lane_that_waits_stops_the_others(patch):
    def wrong(self, near):
        lanes = self.ready.lanes()
        while (lane := self.ready.most_urgent(lanes)) is not None:
            if not self._dispatch_first(lane, near):
                return

    patch.setattr(TaskDispatch, "dispatch_ready", wrong)


# ----------------------------------------------------------------------- branches end


@bug
def branches_that_have_ended_are_not_told(patch):
    right = Session._releases

    def wrong(self):
        self._ended_branches.clear()
        return right(self)

    patch.setattr(Session, "_releases", wrong)


@bug
def a_branch_is_released_in_another_slot(patch):
    right = CoordinatorState._on_branches_released

    def wrong(self, event):
        moved = tuple((slot + (slot >= 0), number) for slot, number in event.branches)
        right(self, event._replace(branches=moved))

    patch.setattr(CoordinatorState, "_on_branches_released", wrong)


@bug
def one_branch_of_each_worker_is_released(patch):
    right = CoordinatorState._on_branches_released

    def wrong(self, event):
        right(self, event)
        self.out[:] = [
            one._replace(numbers=one.numbers[:1]) if isinstance(one, do.ReleaseBranches) else one
            for one in self.out
        ]

    patch.setattr(CoordinatorState, "_on_branches_released", wrong)


@bug
def the_branches_of_a_map_that_failed_stay(patch):
    """It was so: nobody asked for them, and nobody ended them."""
    right = CoordinatorState._on_branches_released

    def wrong(self, event):
        known = tuple(one for one in event.branches if one[0] != ev.ANY_SLOT)
        right(self, event._replace(branches=known))

    patch.setattr(CoordinatorState, "_on_branches_released", wrong)


@bug
def a_worker_does_not_release_its_branches(patch):
    right = WorkerState.handle_event

    def wrong(self, event):
        return [] if isinstance(event, do.ReleaseBranches) else right(self, event)

    patch.setattr(WorkerState, "handle_event", wrong)


@bug
def all_branches_of_a_worker_go_with_one(patch):
    right = branches.WorkerBranches.release

    def wrong(self, numbers):
        right(self, tuple(self.kept) if numbers else ())

    patch.setattr(branches.WorkerBranches, "release", wrong)


# ----------------------------------------------------------------------- what branches hold


@bug
def a_client_keeps_the_digest_of_the_call_before(patch):
    right = branches.CallerBranches._take

    def wrong(self, numbers, arrived):
        right(self, numbers, arrived)
        kept = [self._digests[number] for number in numbers]
        self._digests.update(zip(numbers, kept[-1:] + kept[:-1], strict=True))

    patch.setattr(branches.CallerBranches, "_take", wrong)


@bug
def a_backward_gets_the_ctx_of_the_call_before(patch):
    right = Branches.get

    def wrong(self, number):
        found, before = right(self, number), right(self, number - 1)
        return found if before is None else before

    patch.setattr(Branches, "get", wrong)


@bug
def a_branch_is_put_where_an_older_one_lies(patch):
    right = Branches.put

    def wrong(self, number, branch, of_map=None):
        oldest = next(iter(self._kept), number)
        right(self, number, branch, of_map)
        if oldest != number and oldest in self._kept:
            right(self, oldest, branch, of_map)

    patch.setattr(Branches, "put", wrong)


def _another_seed_when_made_again(patch):
    right = branch_values.made_again
    patch.setattr(
        branch_values,
        "made_again",
        lambda call, digest: right(call._replace(seed=call.seed + 1), digest),
    )


@bug
def a_branch_that_was_evicted_is_made_with_another_seed(patch):
    _another_seed_when_made_again(patch)


@bug
def nobody_compares_the_digest_of_what_is_made_again(patch):
    """Then the wrong gradients themselves show it."""
    patch.setattr(branch_values.Recorded, "digest", lambda self: 1)
    _another_seed_when_made_again(patch)


@bug
def items_draw_from_whatever_the_worker_has_drawn_before(patch):
    count = itertools.count()
    patch.setattr(branch_values, "drawn", lambda seed, item: float(next(count) % 97))


@bug
def a_call_begins_with_the_buffer_that_one_before_has_left_in_its_worker(patch):
    right, left = branches.WorkerBranches.record, {}

    def wrong(self, dispatch):
        with patch.context() as inside:
            run = branch_values.record

            def spoiled(call, buffer):
                if buffer is None:
                    return run(call, buffer)
                found = run(call, left.get(self, buffer))
                left[self] = found.buffer
                return found

            inside.setattr(branch_values, "record", spoiled)
            right(self, dispatch)

    patch.setattr(branches.WorkerBranches, "record", wrong)


@bug
def a_buffer_is_written_a_second_time_when_a_call_has_run_twice(patch):
    right = branches.CallerBranches._write_buffers

    def wrong(self, answers):
        changed = [one for one in answers if one.buffer is not None]
        for one in changed:
            self._buffer = 0.5 * one.buffer + one.result
        right(self, answers if not changed else [])

    patch.setattr(branches.CallerBranches, "_write_buffers", wrong)


@bug
def the_items_of_a_chunk_are_added_from_the_last_one(patch):
    right = branch_values.record
    patch.setattr(
        branch_values,
        "record",
        lambda call, buffer: right(call._replace(items=call.items[::-1]), buffer),
    )


@bug
def the_chunks_of_a_sum_are_added_in_the_order_of_arrival(patch):
    patch.setattr(
        branches.CallerBranches, "in_order", lambda self, numbers, arrived: arrived or numbers
    )


# ----------------------------------------------------------------------- the tests


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)


@pytest.mark.slow
def test_worlds_reach_all_that_may_happen_to_a_branch() -> None:
    tally = run_worlds(range(60), branches=1)
    rare = {branches.DIED_IN_BACKWARD, branches.MAP_IN_HOOK, branches.BRANCH_OF_ANOTHER_ENGINE}
    wanted = rare | {
        branches.BRANCH_EVICTED,
        branches.BRANCH_FOUND,
        branches.BRANCH_LOST,
        branches.BRANCH_MADE_AGAIN,
        branches.DIED_IN_FORWARD,
        branches.MAP_FAILED,
    }
    assert wanted <= set(tally.seen)
