"""The tree over rank numbers, and that the steps of all ranks fit together."""

from __future__ import annotations

import pytest

from mpgrad.distributed.states import collective_steps as other
from mpgrad.distributed.states.collective_state import CollectiveState, SegmentsArrived
from mpgrad.distributed.states.reduction_tree import (
    Group,
    Receive,
    Send,
    all_reduce_steps,
    combined,
    groups,
    segments,
)


def text_of(ranks: int) -> str:
    return combined([str(rank) for rank in range(ranks)], lambda a, b: f"({a}+{b})")


def test_the_tree_is_that_of_the_binary_digits() -> None:
    assert text_of(1) == "0"
    assert text_of(4) == "((0+1)+(2+3))"
    assert text_of(6) == "(((0+1)+(2+3))+(4+5))"
    assert text_of(7) == "(((0+1)+(2+3))+((4+5)+6))"
    assert groups(13) == [Group(0, 8), Group(8, 4), Group(12, 1)]
    assert segments(13) == 8


@pytest.mark.parametrize("ranks", [*range(1, 20), 31, 32, 33, 64])
def test_what_one_rank_sends_another_expects(ranks: int) -> None:
    plans = [
        lambda rank: all_reduce_steps(rank, ranks),
        lambda rank: other.broadcast_steps(rank, ranks, ranks // 2),
        lambda rank: other.gather_steps(rank, ranks, ranks // 3),
        lambda rank: other.scatter_steps(rank, ranks, ranks - 1),
        lambda rank: other.all_gather_steps(rank, ranks),
        lambda rank: other.all_to_all_steps(rank, ranks),
    ]
    for plan in plans:
        steps = {rank: plan(rank) for rank in range(ranks)}
        sent = [
            (rank, step.peer, step.phase)
            for rank, all_of in steps.items()
            for step in all_of
            if isinstance(step, Send)
        ]
        received = [
            (step.peer, rank, step.phase)
            for rank, all_of in steps.items()
            for step in all_of
            if isinstance(step, Receive)
        ]
        assert len(set(sent)) == len(sent)
        assert sorted(sent) == sorted(received)


@pytest.mark.parametrize("ranks", range(2, 18))
def test_a_rank_sends_less_than_two_arrays(ranks: int) -> None:
    # Halving and doubling move twice all but the own part; between groups comes a part more.
    cut = segments(ranks)
    for rank in range(ranks):
        sent = sum(s.last - s.first for s in all_reduce_steps(rank, ranks) if isinstance(s, Send))
        assert sent <= 3 * cut


def test_a_message_that_comes_twice_is_taken_once() -> None:
    state = CollectiveState(all_reduce_steps(0, 2))
    (send,) = state.begin()
    assert isinstance(send, Send)
    assert state.awaited == 1
    receive, back = state.handle_event(SegmentsArrived(1, send.phase))
    assert isinstance(receive, Receive)
    assert isinstance(back, Send)
    assert state.handle_event(SegmentsArrived(1, send.phase)) == []
    assert state.handle_event(SegmentsArrived(1, 99)) == []
    assert not state.is_complete
    state.handle_event(SegmentsArrived(1, back.phase))
    assert state.is_complete
    assert state.awaited is None
