"""The ranks of a group on a network that a seed drives: right bits or the right error, no hang."""

from __future__ import annotations

import pytest

from mpgrad.distributed.group_member import GroupMember
from mpgrad.distributed.operation import Operation
from mpgrad.distributed.states import reduction_tree
from mpgrad.distributed.states.collective_state import CollectiveState
from mpgrad.distributed.states.host_membership import HostMembership
from simulation.host_world import HostWorld, HostWorldFailure, Links


@pytest.mark.parametrize("seeds", [range(k, 80, 4) for k in range(4)])
def test_every_rank_gets_the_bits_of_the_tree_or_the_name_of_the_dead(seeds: range) -> None:
    run_worlds(seeds)


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    run_worlds(range(1_000, 3_500))


def run_worlds(seeds: range) -> None:
    for seed in seeds:
        HostWorld(seed).run()


def test_ways_clog_and_break_in_these_worlds() -> None:
    worlds = [HostWorld(seed).run() for seed in range(60)]
    assert any(world.links.ends for world in worlds)
    assert any(world.links.waited for world in worlds)


def doubled_messages_are_joined_again(patch: pytest.MonkeyPatch) -> None:
    def join(operation: Operation, step: object, frames: object) -> None:
        right(operation, step, frames)
        right(operation, step, frames)

    right = Operation.join
    patch.setattr(Operation, "join", join)


def what_comes_early_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "_hold", lambda self, sender: self._early.clear())


def upper_ranks_are_added_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mpgrad.distributed.operation.ADD_RIGHT", reduction_tree.ADD_LEFT)


def a_step_does_not_wait_for_its_message(patch: pytest.MonkeyPatch) -> None:
    def advance(state: CollectiveState) -> list[object]:
        todo = list(state._steps[state._next :])
        state._next = len(state._steps)
        return [step for step in todo if isinstance(step, reduction_tree.Send)]

    patch.setattr(CollectiveState, "_advance", advance)


def a_loss_ends_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostMembership, "_lose", lambda self, *_, **__: [])


def nobody_hears_of_a_loss(patch: pytest.MonkeyPatch) -> None:
    """All see a death for themselves; that a way has broken sees only who sends there."""
    right = HostMembership._lose
    patch.setattr(HostMembership, "_lose", lambda self, *lost, **_: right(self, *lost, tells=False))
    farewells_do_not_name_the_dead(patch)


def nobody_says_farewell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostMembership, "may_go", True)


def farewells_do_not_name_the_dead(patch: pytest.MonkeyPatch) -> None:
    from mpgrad.distributed.carrier.messages import Farewell

    patch.setattr(GroupMember, "_farewell", lambda self: Farewell())


def a_way_that_clogs_counts_as_broken(patch: pytest.MonkeyPatch) -> None:
    """As if a sender gave up a way on which nothing has moved for a while."""
    right = Links.turn

    def turn(self: Links) -> None:
        before = set(self.clogged)
        right(self)
        for way in set(self.clogged) - before:
            self._learn(*way)

    patch.setattr(Links, "turn", turn)


def who_is_a_little_behind_is_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mpgrad.distributed.group_member.EARLY_MESSAGES_MAX", 12)


@pytest.mark.parametrize(
    "plant",
    [
        a_way_that_clogs_counts_as_broken,
        who_is_a_little_behind_is_given_up,
        doubled_messages_are_joined_again,
        what_comes_early_is_forgotten,
        upper_ranks_are_added_first,
        a_step_does_not_wait_for_its_message,
        a_loss_ends_nothing,
        nobody_hears_of_a_loss,
        nobody_says_farewell,
        pytest.param(farewells_do_not_name_the_dead, marks=(pytest.mark.long, pytest.mark.slow)),
    ],
)
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(HostWorldFailure):
        run_worlds(range(2_000))


def test_only_ways_that_clog_show_that_they_count_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_way_that_clogs_counts_as_broken(monkeypatch)
    monkeypatch.setattr("simulation.host_world.CLOGS", 0.0)
    run_worlds(range(100))
