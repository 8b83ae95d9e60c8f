"""Elastic programs whose ranks die anywhere, on a network that a seed drives: the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mpgrad.distributed.carrier.contract import CarrierEvent, HostArrival
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.group_member import GroupMember
from mpgrad.distributed.rendezvous import RendezvousGuest
from mpgrad.distributed.states.host_membership import HostJoined, Participant, Rendezvous, newest
from simulation.elastic_world import ElasticWorld, ElasticWorldFailure


@pytest.mark.parametrize("seeds", [range(k, 60, 3) for k in range(3)])
def test_all_ranks_end_with_the_bits_of_a_run_in_which_nobody_died(seeds: range) -> None:
    run_worlds(seeds)


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    worlds = run_worlds(range(1_000, 2_250))
    assert sum(world.died for world in worlds) > 1_250
    assert sum(world.asked for world in worlds) > 125
    assert sum(world.taken_over for world in worlds) > 625
    assert sum(world.ignored for world in worlds) > 1_250


def test_a_death_after_the_function_has_returned_ends_the_others() -> None:
    # Some had ended, and others waited for the dead rank, which they would have met again.
    worlds = run_worlds(range(200))
    assert sum(world.late is not None and world.asked > 0 for world in worlds) > 2


def run_worlds(seeds: range) -> list[ElasticWorld]:
    return [ElasticWorld(seed).run() for seed in seeds]


def test_the_lowest_rank_that_went_on_farthest_is_followed() -> None:
    assert newest([-1, -1]) == 0
    assert newest([-1, 3, 4, 4]) == 2


def test_of_two_processes_of_one_rank_the_one_that_asked_last_counts() -> None:
    def joined(rank: int, incarnation: str) -> HostJoined:
        return HostJoined(Participant(rank, incarnation, "tcp://host"), 3, ())

    meeting = Rendezvous(3, (), replaces=True)
    for rank, incarnation in ((0, "a"), (1, "dead"), (1, "alive")):
        assert meeting.handle_event(joined(rank, incarnation)) == []
    answers = meeting.handle_event(joined(2, "a"))
    assert [member.incarnation for member in answers[0].members] == ["a", "alive", "a"]  # type: ignore[union-attr]
    # It waits for the end of this generation.
    assert meeting.handle_event(joined(1, "new")) == []


# ---------------------------------------------------------------------------- planted bugs


def former_generations_are_read(patch: pytest.MonkeyPatch) -> None:
    def take(generation: Generation, event: CarrierEvent) -> None:
        if isinstance(event, HostArrival):
            rank = int(event.sender.partition(".")[0])
            if rank != generation.member.rank:
                generation.member.handle(rank, event.frames)
        else:
            right(generation, event)

    right = Generation.take
    patch.setattr(Generation, "take", take)


def the_one_that_is_behind_is_followed(patch: pytest.MonkeyPatch) -> None:
    def oldest(commits: Sequence[int]) -> int:
        return min(range(len(commits)), key=lambda rank: commits[rank])

    patch.setattr("simulation.elastic_world.newest", oldest)


def a_rank_that_was_started_again_is_refused(patch: pytest.MonkeyPatch) -> None:
    def begin(rendezvous: Rendezvous, *args: object, replaces: bool, reopens: bool) -> None:
        right(rendezvous, *args, replaces=False, reopens=reopens)  # type: ignore[arg-type]

    right = Rendezvous.__init__
    patch.setattr(Rendezvous, "__init__", begin)


def who_waits_asks_once(patch: pytest.MonkeyPatch) -> None:
    def ask(guest: RendezvousGuest) -> None:
        if not hasattr(guest, "has_asked"):
            guest.has_asked = True  # type: ignore[attr-defined]
            right(guest)

    right = RendezvousGuest.ask
    patch.setattr(RendezvousGuest, "ask", ask)


def a_death_right_after_the_meeting_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def take(side: RendezvousGuest, event: CarrierEvent) -> None:
        if side.meeting is None or isinstance(event, HostArrival):
            right(side, event)

    right = RendezvousGuest.take
    patch.setattr(RendezvousGuest, "take", take)


def nobody_knows_that_all_have_returned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "has_ended", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(nobody_knows_that_all_have_returned, marks=pytest.mark.long),
        former_generations_are_read,
        the_one_that_is_behind_is_followed,
        a_rank_that_was_started_again_is_refused,
        who_waits_asks_once,
        a_death_right_after_the_meeting_is_forgotten,
    ],
)
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(ElasticWorldFailure):
        run_worlds(range(3_000))
