"""Whatever a World's coordinator has met, a fresh core decides in the same way."""

from __future__ import annotations

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.scheduler.coordinator_state import EVENTS_KEPT
from mpgrad.scheduler.membership import Membership
from simulation import World, WorldFailure
from simulation.replay import Outcome, replay
from tests.simulation.test_planted_bugs import PLANTS


def comparable(outcomes: list[Outcome]) -> list[str | Outcome]:
    return [repr(one) if isinstance(one, Exception) else one for one in outcomes]


def differences(world: World) -> int:
    """The number of the first event after which a fresh core decides otherwise; -1 for none."""
    coordinator = world.coordinator
    # The World is short enough: nothing has left the ring.
    assert len(coordinator.outcomes) == len(coordinator.core.last_events)
    core = coordinator.core
    with world.knobs.in_force():
        again = list(replay(core.last_events, world.memory.answers, core.message_part_bytes))
    pairs = zip(comparable(coordinator.outcomes), comparable(again), strict=True)
    return next((number for number, (was, is_now) in enumerate(pairs) if was != is_now), -1)


@pytest.mark.slow
def test_worlds_replay() -> None:
    refused = full = 0
    for seed in range(80):
        world = World(seed, workers=3, graphs=3, sessions=2).run()
        assert differences(world) == -1, seed
        refused += any(isinstance(one, ProtocolError) for one in world.coordinator.outcomes)
        full += world.memory.refusals > 0
    # The hard cases were among them.
    assert min(refused, full) > 0


def test_another_decision_is_found_at_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, workers=3, graphs=3, sessions=2).run()
    right = Membership.choose_worker

    def wrong(self, **wanted):
        found = right(self, **wanted)
        others = [worker for worker in self.workers() if worker is not found]
        return others[0] if found is not None and others else found

    monkeypatch.setattr(Membership, "choose_worker", wrong)
    assert 0 < differences(world) < len(world.coordinator.core.last_events)


def test_a_violated_invariant_happens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of the World shows the events, and they lead to the same error again."""
    PLANTS.by_name["a_task_is_ready_one_arrival_early"](monkeypatch)
    for seed in range(200):
        world = World.drawn(seed)
        try:
            world.run()
        except WorldFailure as failure:
            notes = getattr(failure.__cause__, "__notes__", [])
            if notes and notes[0].startswith("The last events:"):
                break
    else:
        pytest.fail("no World met an internal error")
    coordinator = world.coordinator
    assert 0 < len(coordinator.core.last_events) < EVENTS_KEPT
    assert differences(world) == -1
    assert notes[0].splitlines()[-1].startswith(type(coordinator.core.last_events[-1]).__name__)
