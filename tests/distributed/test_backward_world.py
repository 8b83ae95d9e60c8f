"""Backwards over hosts on a network that a seed drives: right bits or the right error, no hang."""

from __future__ import annotations

from typing import Any

import pytest

from mpgrad.distributed.autograd import dist_engine
from mpgrad.distributed.autograd.contexts import Contexts
from mpgrad.distributed.autograd.local_part import LocalPart
from mpgrad.graph import node
from mpgrad.scheduler.hosts import pass_state
from mpgrad.scheduler.hosts.context_state import ReleasedContexts
from mpgrad.scheduler.hosts.marking import Marking
from mpgrad.scheduler.hosts.pass_state import PassState
from simulation.backward_world import BackwardWorld, BackwardWorldFailure


@pytest.mark.parametrize("seeds", [range(k, 60, 2) for k in range(2)])
def test_every_host_gets_the_bits_of_one_process_or_none_does(seeds: range) -> None:
    run_worlds(seeds)


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    run_worlds(range(1_000, 6_000))


def run_worlds(seeds: range) -> None:
    for seed in seeds:
        BackwardWorld(seed).run()


def questions_are_answered_too_early(patch: pytest.MonkeyPatch) -> None:
    def answer(marking: Marking) -> Any:
        unanswered, marking._unanswered = marking._unanswered, set()
        try:
            return right(marking)
        finally:
            marking._unanswered = unanswered

    right = Marking._answer_if_done
    patch.setattr(Marking, "_answer_if_done", answer)


def doubled_gradients_count_twice(patch: pytest.MonkeyPatch) -> None:
    def take(state: PassState, event: pass_state.GradientsArrived) -> Any:
        state._arrived.discard(event.message)
        return right(state, event)

    right = PassState._take_gradients
    patch.setitem(pass_state._HANDLERS, pass_state.GradientsArrived, take)


def the_root_concludes_after_the_first_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PassState, "_is_quiet", lambda _: True)


def numbers_stay_at_home(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("simulation.backward_world.node.continue_sequence_from", lambda _: None)


def gradients_are_taken_one_by_one(patch: pytest.MonkeyPatch) -> None:
    def run(part: LocalPart) -> None:
        right(part)
        part.take_gradients()
        part._captured, part._kept = None, []

    right = LocalPart.run
    patch.setattr(LocalPart, "run", run)


def the_dead_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        dist_engine.DistEngine, "gone", lambda self, rank, _: self._lost.update({rank: ""})
    )


def all_slots_of_a_message_are_marked(patch: pytest.MonkeyPatch) -> None:
    def sends(part: LocalPart) -> Any:
        return [(send, range(len(send.next_edges))) for send, _ in right(part)]

    right = LocalPart._awaited_sends
    patch.setattr(LocalPart, "_awaited_sends", sends)


def contexts_are_left_at_home_alone(patch: pytest.MonkeyPatch) -> None:
    def release(engine: dist_engine.DistEngine, context_id: int, loss: Any = None) -> None:
        engine.contexts.remove(context_id, loss)

    patch.setattr(dist_engine.DistEngine, "release", release)


@pytest.mark.parametrize(
    "plant",
    [
        questions_are_answered_too_early,
        doubled_gradients_count_twice,
        the_root_concludes_after_the_first_report,
        numbers_stay_at_home,
        gradients_are_taken_one_by_one,
        the_dead_are_waited_for,
        all_slots_of_a_message_are_marked,
        contexts_are_left_at_home_alone,
    ],
)
def test_planted_bugs_are_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BackwardWorldFailure):
        run_worlds(range(400))


# ---------------------------------------------------------------------------- tombstones


def test_a_released_context_is_not_revived() -> None:
    contexts = Contexts(3)
    made = contexts.new()
    assert made.id >> 48 == 3
    contexts.remove(made.id)
    assert contexts.find_or_add(made.id) is None
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {made.id}"):
        contexts.find(made.id)


def test_tombstones_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpgrad.scheduler.hosts.context_state.TOMBSTONES_MAX", 2)
    released = ReleasedContexts()
    for number in range(3):
        released.add(number)
    assert [number in released for number in range(3)] == [False, True, True]


def test_numbers_go_on() -> None:
    before = node.upcoming_sequence_nr()
    node.begin_sequence_at(7)
    node.continue_sequence_from(5)
    assert node.SEQUENCE.next() == 7
    node.continue_sequence_from(20)
    assert node.upcoming_sequence_nr() == 20
    node.begin_sequence_at(before)
