"""Graphs over processes that die and come back, on a network that a seed drives."""

from __future__ import annotations

from typing import Any

import pytest

from mpgrad.distributed.autograd.dist_engine import DistEngine
from mpgrad.distributed.autograd.local_part import LocalPart
from mpgrad.distributed.rpc.own_calls import OwnCalls
from mpgrad.distributed.rpc.service import RpcService
from mpgrad.distributed.states.context_state import ContextState
from mpgrad.distributed.states.pass_state import (
    BackwardBegun,
    PartDone,
    PartRequested,
    TakeGradients,
)
from simulation.rejoin_world import RejoinWorld, RejoinWorldFailure


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(k, 90, 3) for k in range(3)])
def test_a_graph_goes_on_without_a_process_that_can_do_all_again(seeds: range) -> None:
    worlds = run_worlds(seeds)
    assert sum(world.saved for world in worlds) > 5


@pytest.mark.slow
def test_a_call_names_the_process_whose_death_has_ended_its_context() -> None:
    # Its own callee died, too, a little later.
    run_worlds(range(30_692, 30_693))


@pytest.mark.long
@pytest.mark.slow
def test_many_worlds() -> None:
    worlds = run_worlds(range(1_000, 1_250))
    assert sum(world.saved for world in worlds) > 100
    assert sum(world.over for world in worlds) > 50


def run_worlds(seeds: range) -> list[RejoinWorld]:
    return [RejoinWorld(seed, graphs=True).run() for seed in seeds]


# ---------------------------------------------------------------------------- planted bugs


def what_is_called_again_answers_under_another_number(patch: pytest.MonkeyPatch) -> None:
    right = RpcService._packed
    patch.setattr(RpcService, "_packed", lambda service, *args: right(service, *args[:4]))


def graphs_are_freed_at_once(patch: pytest.MonkeyPatch) -> None:
    def run(part: LocalPart) -> None:
        keeps = part.keep_graph
        part.keep_graph = keeps and not part.frees
        try:
            right(part)
        finally:
            part.keep_graph = keeps

    right = LocalPart.run
    patch.setattr(LocalPart, "run", run)


def nobody_waits_for_what_is_called_again(patch: pytest.MonkeyPatch) -> None:
    def gone(calls: OwnCalls, rank: int, cause: str) -> None:
        right(calls, rank, cause)
        for context in calls._contexts.all():
            context.repeated.clear()

    right = OwnCalls.gone
    patch.setattr(OwnCalls, "gone", gone)


def all_contexts_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContextState, "why_over", lambda *_: "")


def no_context_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContextState, "why_over", lambda *_: "a process has died")


def gradients_that_were_there_do_not_count(patch: pytest.MonkeyPatch) -> None:
    def handle(state: ContextState, *args: Any, **kwargs: Any) -> Any:
        steps = right(state, *args, **kwargs)
        state.has_counted = False
        return steps

    right = ContextState.handle_event
    patch.setattr(ContextState, "handle_event", handle)


def who_was_called_by_the_dead_does_not_mind(patch: pytest.MonkeyPatch) -> None:
    def span(state: ContextState, rank: int, bond: str = "") -> None:
        right(state, rank, "" if bond.startswith("it had called rank") else bond)

    right = ContextState.span
    patch.setattr(ContextState, "span", span)


def the_old_backward_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DistEngine, "_end_parts", lambda *_: None)


def who_has_called_again_takes_part_in_backwards_of_others(patch: pytest.MonkeyPatch) -> None:
    def handle(engine: DistEngine, *message: Any) -> None:
        contexts = engine.contexts.all()
        mended = [context.mended for context in contexts]
        for context in contexts:
            context.mended = None
        try:
            right(engine, *message)
        finally:
            for context, loss in zip(contexts, mended, strict=True):
                context.mended = loss

    right = DistEngine.handle
    patch.setattr(DistEngine, "handle", handle)


def a_new_process_does_not_say_that_it_is_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DistEngine, "_as_successor", lambda *_: None)


def a_loss_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mpgrad.distributed.autograd.contexts.ReleasedContexts.loss", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        what_is_called_again_answers_under_another_number,
        graphs_are_freed_at_once,
        nobody_waits_for_what_is_called_again,
        all_contexts_go_on,
        no_context_goes_on,
        pytest.param(gradients_that_were_there_do_not_count, marks=pytest.mark.long),
        who_was_called_by_the_dead_does_not_mind,
        pytest.param(the_old_backward_goes_on, marks=pytest.mark.long),
        pytest.param(
            who_has_called_again_takes_part_in_backwards_of_others, marks=pytest.mark.long
        ),
        pytest.param(a_new_process_does_not_say_that_it_is_new, marks=pytest.mark.long),
        a_loss_is_not_remembered,
    ],
)
def test_planted_bugs_are_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(RejoinWorldFailure):
        run_worlds(range(1_000))


# ---------------------------------------------------------------------------- the pure state


def test_a_context_outlives_a_process_that_it_has_no_bond_with() -> None:
    state = ContextState(0)
    state.span(1)
    state.span(2, "a bond")
    state.span(2, "another one")
    assert [state.why_over(rank) for rank in (1, 2)] == ["", "a bond"]


def test_a_backward_of_another_rank_ends_a_context_with_whom_this_one_has_called() -> None:
    state = ContextState(0)
    state.handle_event((0, 3), BackwardBegun({}), is_smart=True)
    assert state.why_over(1) == ""
    state.handle_event((2, 5), PartRequested(), is_smart=True)
    assert state.why_over(1) == "rank 0 had called it, and rank 2 ran a backward"


def test_gradients_that_count_end_a_context_with_any_process() -> None:
    state = ContextState(0)
    state.handle_event((0, 3), BackwardBegun({}), is_smart=True)
    assert state.handle_event((0, 3), PartDone(), is_smart=True)[0] == TakeGradients()
    assert state.why_over(1).startswith("a backward had ended before")
