"""Backwards over hosts on a network that a seed drives: right bits or the right error, no hang."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.distributed.autograd import dist_engine
from mpgrad.distributed.autograd.contexts import Contexts, UpstreamWalk
from mpgrad.distributed.autograd.local_part import LocalPart
from mpgrad.distributed.states import pass_state
from mpgrad.distributed.states.context_state import ReleasedContexts
from mpgrad.distributed.states.marking import AnswerHost, AskHost, Marking
from mpgrad.distributed.states.pass_state import PassState
from mpgrad.distributed.states.upstream import KnownUpstream, Upstream, upstream_of
from mpgrad.recording.graph import node
from mpgrad.recording.tensors.tensor import gradient_edge
from simulation.backward_world import BackwardWorld, BackwardWorldFailure


@pytest.mark.parametrize("seeds", [range(k, 60, 2) for k in range(2)])
def test_every_host_gets_the_bits_of_one_process_or_none_does(seeds: range) -> None:
    run_worlds(seeds)


def test_the_context_is_gone_before_backward_tells_of_a_lost_host() -> None:
    run_worlds([168, 297, 436])


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    run_worlds(range(1_000, 2_250))


def test_some_worlds_need_a_wave_and_others_do_not() -> None:
    worlds = [BackwardWorld(seed).run() for seed in range(60)]
    assert {world.asked_nobody for world in worlds if not world.is_fast} == {True, False}


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


def the_unknown_leads_nowhere(patch: pytest.MonkeyPatch) -> None:
    def marks(known: KnownUpstream, begin: Any) -> Any:
        return right(known, [slot for slot in begin if slot[0] in known._known])

    right = KnownUpstream.marks
    patch.setattr(KnownUpstream, "marks", marks)


def of_several_ways_back_one_is_told(patch: pytest.MonkeyPatch) -> None:
    right = UpstreamWalk.leads
    patch.setattr(UpstreamWalk, "leads", lambda walk, to: [s[:1] for s in right(walk, to)])


@pytest.mark.parametrize(
    "plant",
    [
        the_unknown_leads_nowhere,
        of_several_ways_back_one_is_told,
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
    monkeypatch.setattr("mpgrad.distributed.states.marking.SLOTS_MAX", 2)
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


MANY = 48


def test_marks_follow_messages_over_hosts() -> None:
    first, second, third = 0 << MANY, 1 << MANY, 2 << MANY
    known = KnownUpstream()
    known.add(upstream_of(first, [(), ()]))
    known.learn(1, [upstream_of(second, [((first, 1),), ()])])
    assert known.marks([(third, 0)]) is None
    known.learn(2, [upstream_of(third, [((second, 0), (second, 1))])])
    assert known.marks([(third, 0)]) == {
        2: [(third, 0)], 1: [(second, 1), (second, 0)], 0: [(first, 1)],
    }  # fmt: skip


def test_the_graph_of_the_roots_lives_no_longer() -> None:
    leaf = mg.ones(1, requires_grad=True)
    walk, sent, root = UpstreamWalk(1), leaf * 2.0, leaf * 3.0 + 1.0
    walk.leads([gradient_edge(sent)])
    gone = weakref.ref(root.grad_fn)
    assert walk.leads_once([gradient_edge(root)]) == [()]
    assert walk._leads.keys() == {sent.grad_fn, gradient_edge(leaf)[0]}
    del root
    assert gone() is None


def test_nothing_is_told_twice() -> None:
    known = KnownUpstream()
    told = upstream_of(1 << MANY, [()])
    known.learn(1, [told])
    own = [upstream_of(number, [((1 << MANY, 0),)]) for number in range(3)]
    for one in own:
        known.add(one)
    assert known.untold(1, 0) == (own[0],)
    assert known.untold(2, 1) == (own[1], told)
    assert known.untold(2, 2) == (own[2],)
    assert known.untold(2, 2) == ()


def test_what_names_too_much_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpgrad.distributed.states.upstream.NAMED_MAX", 3)
    known = KnownUpstream()
    known.add(Upstream(5, (((0, 1), ((1 << MANY, 0), (1 << MANY, 1))),)))
    assert known.untold(1, 5) == ()
    assert known.marks([(5, 0)]) is None
    known.add(Upstream(6, (((0,), ()),)))
    known.add(Upstream(7, (((0,), ((6, 0),)), ((1,), ()))))
    assert [told.message for told in known.untold(1, 7)] == [7]
    assert [told.message for told in known.untold(1, 6)] == [6]


def test_more_marks_than_a_message_takes_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpgrad.distributed.states.upstream.SLOTS_MAX", 1)
    known = KnownUpstream()
    known.add(upstream_of(5, [(), ()]))
    assert known.marks([(5, 0)]) == {0: [(5, 0)]}
    assert known.marks([(5, 0), (5, 1)]) is None


def test_known_marks_need_no_question() -> None:
    state = PassState(0, 0, is_smart=True)
    begun = pass_state.BackwardBegun({}, {0: [(7, 0)], 1: [(8, 0), (8, 1)]})
    assert state.handle_event(begun) == [
        pass_state.RequestPart(1, ((8, 0), (8, 1))),
        pass_state.StartPart(),
    ]


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
    monkeypatch.setattr("mpgrad.distributed.states.context_state.TOMBSTONES_MAX", 2)
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
