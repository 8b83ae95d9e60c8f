"""The launchers of a job on a network that a seed drives: each rank ends well, nobody waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mpgrad.distributed.carrier.contract import CarrierEvent, HostArrival
from mpgrad.distributed.carrier.messages import Assignment
from mpgrad.distributed.hosts_of_job import FirstHost, OtherHost
from mpgrad.distributed.states.host_membership import HostJoined
from mpgrad.distributed.states.rank_placement import AssignRanks, PlacementAnswer, RankPlacement
from simulation.placement_world import PlacementWorld, PlacementWorldFailure


def run_worlds(seeds: Sequence[int]) -> list[PlacementWorld]:
    return [PlacementWorld(seed).run() for seed in seeds]


@pytest.mark.parametrize("seeds", [range(k, 150, 3) for k in range(3)])
def test_each_rank_ends_well_on_one_host(seeds: range) -> None:
    run_worlds(seeds)


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    worlds = run_worlds(range(1_000, 3_500))
    assert sum(world.killed for world in worlds) > 625
    assert sum(world.fenced for world in worlds) > 250
    assert sum(world.moved for world in worlds) > 375


# ---------------------------------------------------------------------------- planted bugs


def who_is_taken_for_lost_does_not_learn_it(patch: pytest.MonkeyPatch) -> None:
    def objection(placement: RankPlacement, event: HostJoined) -> str:
        known, placement._lost = placement._lost, {}
        try:
            return right(placement, event)
        finally:
            placement._lost = known

    right = RankPlacement._objection
    patch.setattr(RankPlacement, "_objection", objection)


def a_host_that_has_ranks_is_silent(patch: pytest.MonkeyPatch) -> None:
    def look(host: OtherHost, now: float) -> None:
        if not host._ranks:
            right(host, now)

    right = OtherHost.look
    patch.setattr(OtherHost, "look", look)


def ranks_outlive_host_0(patch: pytest.MonkeyPatch) -> None:
    def take(host: OtherHost, event: CarrierEvent) -> None:
        if isinstance(event, HostArrival):
            right(host, event)

    right = OtherHost.take
    patch.setattr(OtherHost, "take", take)


def ranks_of_a_lost_host_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def place(placement: RankPlacement) -> list[PlacementAnswer]:
        placement._unplaced = []
        return []

    patch.setattr(RankPlacement, "_place", place)


def a_message_that_comes_twice_is_obeyed_twice(patch: pytest.MonkeyPatch) -> None:
    def hear(host: OtherHost, event: HostArrival) -> None:
        host._ranks = set()
        right(host, event)

    right = OtherHost._hear
    patch.setattr(OtherHost, "_hear", hear)


def another_hosts_message_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    def perform(host: FirstHost, answers: list[PlacementAnswer]) -> None:
        right(host, answers)
        for answer in answers:
            if isinstance(answer, AssignRanks) and answer.losses:
                host._run(Assignment("", 0, 0, 0, answer.ranks, 0))

    right = FirstHost._perform
    patch.setattr(FirstHost, "_perform", perform)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        who_is_taken_for_lost_does_not_learn_it,
        a_host_that_has_ranks_is_silent,
        ranks_outlive_host_0,
        ranks_of_a_lost_host_are_forgotten,
        a_message_that_comes_twice_is_obeyed_twice,
        another_hosts_message_is_obeyed,
    ],
)
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(PlacementWorldFailure):
        run_worlds(range(2_000))
