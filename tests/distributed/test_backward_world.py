"""Backwards over hosts on a network that a seed drives: right bits or the right error, no hang."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mpgrad.distributed.autograd import dist_engine
from mpgrad.distributed.autograd.contexts import Contexts
from mpgrad.distributed.autograd.like_steps import LikeSteps
from mpgrad.distributed.autograd.local_part import LocalPart
from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward
from mpgrad.graph import node
from mpgrad.scheduler.hosts import pass_state
from mpgrad.scheduler.hosts.context_state import ReleasedContexts
from mpgrad.scheduler.hosts.marking import AnswerHost, AskHost, Marking
from mpgrad.scheduler.hosts.pass_state import PassState
from simulation.backward_world import BackwardWorld, BackwardWorldFailure


@pytest.mark.parametrize("seeds", [range(k, 60, 2) for k in range(2)])
def test_every_host_gets_the_bits_of_one_process_or_none_does(seeds: range) -> None:
    run_worlds(seeds)


def test_the_context_is_gone_before_backward_tells_of_a_lost_host() -> None:
    run_worlds([168, 297, 436])


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    run_worlds(range(1_000, 6_000))


def test_in_some_worlds_the_root_guesses_rightly() -> None:
    assert any(BackwardWorld(seed).run().guessed_right for seed in range(60))


def run_worlds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        BackwardWorld(seed).run()


def questions_are_answered_too_early(patch: pytest.MonkeyPatch) -> None:
    def go_on(marking: Marking, reached: Any) -> Any:
        unanswered, marking._unanswered = marking._unanswered, set()
        try:
            return [*right(marking, {}), *marking._ask(reached)]
        finally:
            marking._unanswered |= unanswered

    right = Marking._go_on
    patch.setattr(Marking, "_go_on", go_on)


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


def guesses_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalPart, "is_guessed", False)


@pytest.mark.parametrize(
    "plant",
    [
        guesses_are_believed,
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


# ---------------------------------------------------------------------------- the pure states


def test_a_long_question_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpgrad.scheduler.hosts.marking.SLOTS_MAX", 2)
    marking = Marking(is_root=True)
    asks = marking.begin({1: [(7, 0), (7, 1), (8, 0)]})
    assert asks == [AskHost(1, 0, ((7, 0), (7, 1))), AskHost(1, 1, ((8, 0),))]
    assert not marking.is_over
    for ask in asks:
        marking.take_answer(ask.question, (), {})
    assert marking.is_over


def test_a_host_answers_the_first_question_last() -> None:
    marking = Marking(is_root=False)
    assert marking.take_question(0, 5, {2: [(1, 0)]}) == [AskHost(2, 0, ((1, 0),))]
    assert marking.take_question(3, 9, {}) == [AnswerHost(3, 9, (), ())]
    assert marking.take_answer(0, (4,), {0: [(7, 1)]}) == [AnswerHost(0, 5, (2, 4), ((7, 1),))]
    assert marking.take_answer(0, (4,), {}) == []


def test_a_guess_that_no_walk_has_reached_ends_the_backward() -> None:
    state = PassState(0, 0, is_smart=True)
    [ask] = state.handle_event(pass_state.BackwardBegun({1: [(7, 0), (8, 0)]}, is_guessed=True))
    steps = state.handle_event(pass_state.MarksAnswered(ask.question, (), {}, is_guessed=True))
    assert steps[0] == pass_state.Conclude(1, commits=False)
    assert steps[-1] == pass_state.EndBackward(guessed_wrong=True)


def test_like_steps_are_guessed_after_two() -> None:
    def recv(message: int, slots: int) -> RecvRpcBackward:
        made = RecvRpcBackward(1, message, 1, 0)
        made.input_metadata = ((),) * slots
        return made

    steps = LikeSteps()
    for first in (10, 20):
        recvs = [recv(first, 1), recv(first + 1, 2)]
        assert steps.guess(recvs) == []
        steps.learn(recvs, [(first + 1, 1)])
    recvs = [recv(30, 1), recv(31, 2)]
    assert steps.guess(recvs) == [(recvs[1], 1)]
    assert steps.guess(recvs[:1]) == []
    steps.learn(recvs, [(30, 0)])
    assert steps.guess(recvs) == []


def test_a_report_of_an_earlier_moment_does_not_count() -> None:
    state = PassState(0, 0, is_smart=False)
    state.handle_event(pass_state.BackwardBegun({}))
    state.handle_event(pass_state.GradientsLeft(1))
    state.handle_event(pass_state.PartDone())
    late = pass_state.PartReport(1, 5, (), ((0, 1),))
    done = pass_state.PartReport(2, pass_state.NOTHING_AWAITED, (), ((0, 1),))
    steps = state.handle_event(pass_state.ReportArrived(1, done))
    assert steps == [pass_state.Conclude(1, True), pass_state.TakeGradients()]
    assert state.handle_event(pass_state.ReportArrived(1, late)) == []
    assert state.handle_event(pass_state.ConclusionSeen(1)) == [pass_state.EndBackward()]


def test_a_gradient_under_way_keeps_a_backward_open() -> None:
    state = PassState(0, 0, is_smart=False)
    state.handle_event(pass_state.BackwardBegun({}))
    state.handle_event(pass_state.GradientsLeft(1))
    state.handle_event(pass_state.PartWaits(3))
    before = pass_state.PartReport(1, 8, (), ())
    assert state.handle_event(pass_state.ReportArrived(1, before)) == []
    after = pass_state.PartReport(2, 8, (), ((0, 1),))
    *_, end = state.handle_event(pass_state.ReportArrived(1, after))
    assert end == pass_state.EndBackward(stuck=(0, 3))


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
