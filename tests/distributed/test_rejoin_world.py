"""Processes that call each other, die and come back, on a network that a seed drives."""

from __future__ import annotations

from typing import Any

import pytest

from mpgrad.distributed.carrier.contract import HostArrival
from mpgrad.distributed.carrier.messages import ForkHeld, ForkReleased, Roster
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.rendezvous import read
from mpgrad.distributed.rpc.own_calls import OwnCalls
from mpgrad.distributed.rpc.references import Home, References
from mpgrad.distributed.rpc.service import RpcService
from mpgrad.distributed.states.host_membership import (
    HostGone,
    HostJoined,
    HostMembership,
    LeaveRequested,
    Participant,
    PeerDisconnected,
    PeerReturned,
    RefuseHost,
    Rendezvous,
    SayFarewell,
    SendRoster,
)
from mpgrad.distributed.states.idle_rounds import AnswerAll, IdleRounds, RankGone, RankReported
from mpgrad.distributed.states.incarnations import (
    INCARNATIONS_MAX,
    REPLACED,
    AdmitMember,
    Incarnations,
    LoseMember,
    MemberGone,
    RosterTold,
    first_number,
    number_of,
)
from mpgrad.distributed.states.pending_calls import (
    CallAnswered,
    CalleeGone,
    CalleeReturned,
    CallMade,
    FailCall,
    PendingCalls,
    SendCall,
    TakeAnswer,
    TimePassed,
)
from mpgrad.distributed.states.remote_values import ForkAdded
from mpgrad.errors import HostLost
from simulation.rejoin_world import RejoinWorld, RejoinWorldFailure


@pytest.mark.parametrize("seeds", [range(k, 300, 3) for k in range(3)])
def test_every_call_ends_and_nobody_keeps_anything(seeds: range) -> None:
    run_worlds(seeds)


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    worlds = run_worlds(range(1_000, 2_250))
    assert sum(len(world.died) for world in worlds) > 1_250
    assert sum(world.died.count(0) for world in worlds) > 375
    assert sum(world.lost for world in worlds) > 375
    assert sum(world.ignored for world in worlds) > 250


def run_worlds(seeds: range) -> list[RejoinWorld]:
    return [RejoinWorld(seed).run() for seed in seeds]


# ---------------------------------------------------------------------------- planted bugs


def what_was_for_a_dead_process_is_read(patch: pytest.MonkeyPatch) -> None:
    def hear(generation: Generation, event: HostArrival) -> None:
        if len(event.frames) > 1:
            event.frames[-1] = memoryview(generation._own)
        right(generation, event)

    right = Generation._hear
    patch.setattr(Generation, "_hear", hear)


def nobody_asks_for_rank_0(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incarnations, "asks_for_rank_0", False)


def an_answer_of_a_dead_rank_0_counts(patch: pytest.MonkeyPatch) -> None:
    def hear(generation: Generation, event: HostArrival) -> None:
        attempts, asked = generation._attempts, generation._asked
        message = read(event)
        if isinstance(message, Roster):
            generation._attempts, generation._asked = message.attempt, asked or "any"
        right(generation, event)
        generation._attempts = attempts
        if generation._asked == "any":
            generation._asked = asked

    right = Generation._hear_of_meeting
    patch.setattr(Generation, "_hear_of_meeting", hear)


def a_new_process_hears_only_rank_0(patch: pytest.MonkeyPatch) -> None:
    right = RpcService.returned

    def returned(service: RpcService, rank: int, number: int) -> None:
        own, service._own = service._own, None  # type: ignore[assignment]
        told, service.thread.member.tell = service.thread.member.tell, lambda *_: None  # type: ignore[method-assign]
        right(service, rank, number)
        service._own, service.thread.member.tell = own, told  # type: ignore[method-assign]

    patch.setattr(RpcService, "returned", returned)


def numbers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    for module in ("references", "own_calls", "service"):
        patch.setattr(f"mpgrad.distributed.rpc.{module}.first_number", lambda _: 0)


def a_call_that_may_be_repeated_fails(patch: pytest.MonkeyPatch) -> None:
    def handle(calls: PendingCalls, event: Any) -> Any:
        if isinstance(event, CallMade):
            event = event._replace(repeats=False, number=calls._numbers[event.to])
        return right(calls, event)

    right = PendingCalls.handle_event
    patch.setattr(PendingCalls, "handle_event", handle)


def any_call_is_repeated(patch: pytest.MonkeyPatch) -> None:
    def handle(calls: PendingCalls, event: Any) -> Any:
        if isinstance(event, CallMade):
            event = event._replace(repeats=True)
        return right(calls, event)

    right = PendingCalls.handle_event
    patch.setattr(PendingCalls, "handle_event", handle)
    # Its bytes are there.
    patch.setattr(OwnCalls, "make", _keeping(OwnCalls.make))


def _keeping(make: Any) -> Any:
    def keeps(calls: OwnCalls, *args: Any, **kwargs: Any) -> Any:
        kwargs["repeats"] = True
        return make(calls, *args, **kwargs)

    return keeps


def references_of_the_dead_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(References, "_is_gone", lambda *_: False)


def farewells_go_to_the_first_processes_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostMembership, "_take_back", lambda *_: [])


def a_report_of_the_dead_counts(patch: pytest.MonkeyPatch) -> None:
    def handle(rounds: IdleRounds, event: Any) -> Any:
        return [] if isinstance(event, RankGone) else right(rounds, event)

    right = IdleRounds.handle_event
    patch.setattr(IdleRounds, "handle_event", handle)


def one_idle_round_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mpgrad.distributed.states.idle_rounds.ROUNDS", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        what_was_for_a_dead_process_is_read,
        nobody_asks_for_rank_0,
        pytest.param(an_answer_of_a_dead_rank_0_counts, marks=pytest.mark.long),
        a_new_process_hears_only_rank_0,
        pytest.param(numbers_begin_anew, marks=pytest.mark.long),
        a_call_that_may_be_repeated_fails,
        any_call_is_repeated,
        references_of_the_dead_are_waited_for,
        pytest.param(farewells_go_to_the_first_processes_alone, marks=pytest.mark.long),
        pytest.param(a_report_of_the_dead_counts, marks=pytest.mark.long),
        pytest.param(one_idle_round_is_enough, marks=pytest.mark.long),
    ],
)
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    with pytest.raises(RejoinWorldFailure):
        run_worlds(range(5_000))


# ---------------------------------------------------------------------------- the pure states


def asks(rank: int, incarnation: str, numbers: tuple[int, ...] = (), size: int = 2) -> HostJoined:
    return HostJoined(Participant(rank, incarnation, "tcp://h"), size, (), (), numbers)


def test_a_process_takes_the_place_of_one_that_has_gone() -> None:
    meeting = Rendezvous(2, (), replaces=True, reopens=True)
    meeting.handle_event(asks(0, "a"))
    meeting.handle_event(asks(1, "b"))
    assert meeting.handle_event(asks(1, "c")) == []  # nobody has gone yet
    meeting.handle_event(HostGone("b"))
    assert meeting.handle_event(asks(1, "b")) == []  # a message that comes late
    refused = meeting.handle_event(asks(1, "c", size=3))
    assert isinstance(refused[0], RefuseHost)
    first, second = meeting.handle_event(asks(1, "c"))
    assert isinstance(first, SendRoster)
    assert isinstance(second, SendRoster)
    assert [(m.incarnation, m.number) for m in second.members] == [("a", 0), ("c", 1)]


def test_another_rank_0_learns_the_numbers_of_those_that_ask() -> None:
    meeting = Rendezvous(2, (), replaces=True, reopens=True)
    meeting.handle_event(asks(0, "d"))
    answer, _ = meeting.handle_event(asks(1, "b", (3, 5)))
    assert isinstance(answer, SendRoster)
    assert [(m.incarnation, m.number) for m in answer.members] == [("d", 4), ("b", 5)]


OLD = (Participant(0, "a", "x"), Participant(1, "b", "y"), Participant(2, "c", "z"))
NEW = Participant(2, "d", "w", 1)


def test_rosters_come_late_and_twice() -> None:
    known = Incarnations(1, OLD, reopens=True)
    told = RosterTold("a", (*OLD[:2], NEW))
    assert known.handle_event(told) == [LoseMember(OLD[2], REPLACED), AdmitMember(NEW)]
    assert known.handle_event(told) == []
    assert known.handle_event(RosterTold("a", OLD)) == []
    assert known.numbers == (0, 0, 1)
    assert known.handle_event(MemberGone("c", "it died")) == []
    assert known.handle_event(MemberGone("d", "it died")) == [LoseMember(NEW, "it died")]


def test_a_roster_that_is_not_for_this_process_is_not_read() -> None:
    known = Incarnations(1, OLD, reopens=True)
    other = Participant(1, "another", "y")
    assert known.handle_event(RosterTold("a", (OLD[0], other, NEW))) == []
    assert known.handle_event(RosterTold("c", (*OLD[:2], NEW))) == []
    assert Incarnations(1, OLD, reopens=False).handle_event(RosterTold("a", (*OLD[:2], NEW))) == []


def test_a_rank_may_not_be_started_too_often() -> None:
    assert number_of(first_number(7) + 3) == 7
    with pytest.raises(OverflowError):
        first_number(INCARNATIONS_MAX)


def test_a_call_goes_to_the_process_that_it_is_for() -> None:
    calls = PendingCalls([0, 0])
    assert calls.handle_event(CallMade(1, 1, 0, 9.0, False)) == [SendCall(1)]
    assert calls.handle_event(CallMade(2, 1, 0, 9.0, True)) == [SendCall(2)]
    assert calls.handle_event(CalleeGone(1)) == [FailCall(1, is_lost=True)]
    assert calls.handle_event(CallAnswered(2)) == []
    # It has been heard of elsewhere.
    assert calls.handle_event(CallMade(3, 1, 1, 9.0, False)) == []
    assert calls.handle_event(CalleeReturned(1, 1)) == [SendCall(2), SendCall(3)]
    assert calls.handle_event(CallMade(4, 1, 0, 9.0, False)) == [FailCall(4, is_lost=True)]
    assert calls.handle_event(CallAnswered(2)) == [TakeAnswer(2)]
    assert calls.handle_event(TimePassed(9.0)) == [FailCall(3, is_lost=False)]
    assert calls.count == 0


def test_a_call_waits_for_a_process_no_longer_than_its_time() -> None:
    calls = PendingCalls([0, 0])
    calls.handle_event(CalleeGone(1))
    assert calls.handle_event(CallMade(1, 1, 0, 5.0, True)) == []
    assert calls.next_deadline == 5.0
    assert calls.handle_event(TimePassed(5.0)) == [FailCall(1, is_lost=True)]


def test_what_is_for_a_process_to_come_waits_for_it() -> None:
    sent: list[Any] = []
    numbers, value, fork = [0, 0], (0, 5), (0, 6)
    lost: dict[int, str] = {}
    known = References(0, numbers, lost, lambda to, message: sent.append((to, message)))
    known.hold(Home(1, 1), value, fork, 2)
    known.add_dead(Home(1, 1), value, fork)
    known.send_releases()
    known.hold(Home(1, 0), value, fork, 2)
    assert sent == [(1, ForkHeld(value, fork, 2))]
    lost[1] = "it died"
    known.gone(1)
    numbers[1] = 1
    del lost[1]
    known.returned(1)
    assert sent[1:] == [(1, ForkHeld(value, fork, 2)), (1, ForkReleased(((value, fork),)))]
    known.hold(Home(1, 0), value, fork, 2)
    assert len(sent) == 3


@pytest.mark.parametrize("is_asked_for_before", [False, True])
def test_a_value_whose_call_will_never_come_is_lost(is_asked_for_before: bool) -> None:
    lost: dict[int, str] = {}
    known = References(0, [0, 0, 0], lost, lambda to, message: None)
    known.note(ForkAdded((2, 5), (1, 0), 1, -1))
    if is_asked_for_before:
        assert not known.value((2, 5)).done()
    lost[2] = "it died"
    known.gone(2)
    value = known.value((2, 5))
    assert value.done()
    with pytest.raises(HostLost, match=r"RRef \(2, 5\): rank 2 is lost: it died"):
        value.wait()


def test_a_value_that_nobody_will_make_is_lost() -> None:
    known = References(0, [0, 0, 0], {2: "it died"}, lambda to, message: None)
    known.note(ForkAdded((2, 5), (1, 0), 1, -1))
    with pytest.raises(HostLost, match=r"RRef \(2, 5\): rank 2 is lost: it died"):
        known.value((2, 5)).wait()
    with pytest.raises(RuntimeError, match=r"nobody holds the value of RRef \(2, 6\)"):
        known.value((2, 6)).wait()


def test_a_value_is_lost_with_its_only_known_holder() -> None:
    known = References(0, [0, 0, 0], {}, lambda to, message: None)
    known.begin((2, 5), (2, 6), 2).set_result("a value")
    known.gone(2)
    assert known.values == 0
    known.note(ForkAdded((2, 5), (2, 7), 1, 2))  # the dead one had passed it on
    with pytest.raises(HostLost, match=r"RRef \(2, 5\): rank 2 is lost"):
        known.value((2, 5)).wait()


def test_a_death_begins_the_idle_rounds_anew() -> None:
    rounds = IdleRounds(2)
    tell = [RankReported(0, 0), RankReported(1, 0)]
    assert [rounds.handle_event(one) for one in tell] == [[], [AnswerAll(False)]]
    rounds.handle_event(RankGone(1))
    assert [rounds.handle_event(one) for one in tell] == [[], [AnswerAll(False)]]
    assert [rounds.handle_event(one) for one in tell] == [[], [AnswerAll(True)]]


def test_who_leaves_says_farewell_to_those_that_come_back() -> None:
    state = HostMembership(0, 2)
    state.handle_event(PeerDisconnected(1, "it died"))
    assert state.handle_event(LeaveRequested()) == []
    assert state.handle_event(PeerReturned(1)) == [SayFarewell(1)]
    assert not state.may_go
