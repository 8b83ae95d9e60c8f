"""Bugs of everything about GPUs, planted one at a time: World must catch each of them.

As in ``test_planted_bugs``, with Worlds that have GPU workers.
"""

from __future__ import annotations

import pytest

from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.graph_task import GraphEvent
from mpgrad.scheduler.lease_table import LeaseTable
from mpgrad.scheduler.membership import MemberRecord, Membership
from mpgrad.scheduler.task_dispatch import TaskDispatch
from simulation import Faults, World, worker_process
from simulation.situations import BEREAVED, MEMORY_RETURNED, PEER_READ
from tests.simulation.planting import Plants

PLANTS = Plants(lambda seed: [World.drawn(seed, gpus=2 + seed % 2)], seeds=600)
bug = PLANTS.bug


@bug
def a_task_goes_to_any_worker(patch):
    right = Membership.choose_worker

    def wrong(self, *, device, **rest):
        any_device = self.workers()[0].device if self.workers() else device
        return right(self, device=any_device, **rest)

    patch.setattr(Membership, "choose_worker", wrong)


@bug
def the_worker_that_answered_gets_tasks_of_another_device(patch):
    right = Membership.choose_worker

    def wrong(self, *, near, **rest):
        member = self.members.get(near)
        if member is not None and member.is_worker and member.is_idle:
            return member
        return right(self, near=near, **rest)

    patch.setattr(Membership, "choose_worker", wrong)


@bug
def makers_are_not_told_that_their_blocks_are_free(patch):
    patch.setattr(CoordinatorState, "_tell_makers", lambda self: self.leases.freed.clear())


@bug
def makers_are_told_of_one_block_only(patch):
    right = CoordinatorState._tell_makers

    def wrong(self):
        del self.leases.freed[1:]
        right(self)

    patch.setattr(CoordinatorState, "_tell_makers", wrong)


@bug
def blocks_of_a_gpu_go_back_too_early(patch):
    def wrong(self, member, key, flight, outputs):
        adopted = right(self, member, key, flight, outputs)
        self.leases.freed.extend(block for block in adopted.blocks[len(flight.blocks) :][:1])
        return adopted

    right = TaskDispatch._adopt
    patch.setattr(TaskDispatch, "_adopt", wrong)


@bug
def what_a_gpu_worker_made_is_held_for_ever(patch):
    right = LeaseTable.adopt

    def wrong(self, block):
        right(self, block)
        self.hold(block)

    patch.setattr(LeaseTable, "adopt", wrong)


@bug
def the_death_of_a_gpu_worker_loses_nothing(patch):
    patch.setattr(CoordinatorState, "_lose_arena", lambda self, arena, event: {})


@bug
def the_death_of_a_gpu_worker_fails_every_graph(patch):
    right = CoordinatorState._lose_arena

    def wrong(self, arena, event):
        lost = right(self, arena, event)
        for graph in self.graphs.values():
            self.happens(graph, GraphEvent.HOPELESS, "lost", -1, b"")
            lost[graph.number] = graph
        return lost

    patch.setattr(CoordinatorState, "_lose_arena", wrong)


@bug
def a_graph_waits_for_a_gpu_that_nobody_serves_any_more(patch):
    def wrong(self, graph):
        return not self.membership.workers()

    patch.setattr(TaskDispatch, "_is_stranded", wrong)


@bug
def the_arena_of_a_dead_process_is_taken_for_that_of_the_next(patch):
    right = MemberRecord.__init__

    def wrong(self, peer, *, is_worker, device=-1, arena=-1):
        right(self, peer, is_worker=is_worker, device=device, arena=arena)
        if arena >= 0:
            self.arena = 1024 + self.slot

    patch.setattr(MemberRecord, "__init__", wrong)


@bug
def a_worker_makes_blocks_in_somebody_elses_memory(patch):
    right = worker_process.WorkerProcess._leave_on_device

    def wrong(self, value, program):
        block = right(self, value, program)
        return block._replace(arena=block.arena + 1) if block in self._made else block

    patch.setattr(worker_process.WorkerProcess, "_leave_on_device", wrong)


@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)


def test_worlds_with_gpus_go_through_what_only_they_can() -> None:
    seen: dict[str, int] = {}
    for seed in range(60):
        world = World(seed, gpus=3, graphs=2, faults=Faults(kill=1.0)).run()
        for what, count in world.coordinator.situations.seen.items():
            seen[what] = seen.get(what, 0) + count
    assert {MEMORY_RETURNED, BEREAVED, PEER_READ} <= set(seen)
