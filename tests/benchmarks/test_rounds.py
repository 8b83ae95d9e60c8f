"""How cases are measured, and what is said about the figures; nothing here is timed."""

from __future__ import annotations

import gc
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.report import Row
from benchmarks.rounds import (
    WARM_UP_ROUNDS,
    Case,
    CaseResult,
    Contender,
    Effort,
    Target,
    WrongGradient,
    backward,
    measure,
    order,
)
from benchmarks.statistics import speed_up, time_ratio, verdict


def contender(name, *gradients, log=None, group=""):
    def sample():
        if log is not None:
            log.append(name)
        return 0.001

    return Contender(name, sample, lambda: [np.array(g) for g in gradients], group)


def result(**samples):
    return CaseResult("case", "ms", ["b"], [], samples, dict.fromkeys(samples, ""))


def test_contenders_take_turns_and_each_round_begins_with_another():
    log = []
    case = Case("case", [contender(name, [1.0], log=log) for name in "abc"], "a", rounds=2)
    measured = measure(case)
    assert log == list("abc" * WARM_UP_ROUNDS + "abc" + "bca")
    assert measured.samples == {name: [1.0, 1.0] for name in "abc"}


def test_only_times_are_taken_again():
    """Bytes are what earlier samples have found: they are there once."""
    rows = [Contender(name, iter([1.0, 2.0]).__next__) for name in "ab"]
    case = Case("memory", rows, ("a",), 2, warm_up_rounds=0, quantity="bytes")
    measured = measure(case, take=lambda sample: sample() + sample())
    assert {name: list(found) for name, found in measured.samples.items()} == {
        name: [1000.0, 2000.0] for name in "ab"
    }
    timed = Case("time", [Contender("a", lambda: 1.0)], ("a",), 1, per_second=1.0)
    assert measure(timed, take=lambda sample: sample() + sample()).samples == {"a": [2.0]}


@pytest.mark.parametrize(("count", "rounds"), [(1, 1), (2, 2), (3, 6), (4, 4), (7, 14), (8, 8)])
def test_everyone_follows_everyone_else_equally_often(count, rounds):
    orders = [order(count, turn) for turn in range(rounds)]
    assert all(sorted(row) == list(range(count)) for row in orders)
    followed = Counter(pair for row in orders for pair in pairwise(row))
    assert len(followed) == count * (count - 1)
    assert len(set(followed.values())) <= 1


@pytest.mark.parametrize(
    ("mine", "theirs", "group"),
    [
        ([[1.0, 2.0]], [[1.0, 2.1]], ""),
        ([[1.0, 2.0]], [[1.0, math.nan]], ""),
        ([[1.0]], [[1.0, 1.0]], ""),
        ([[1.0]], [[1.0], [1.0]], ""),
        ([], [], ""),
        ([[1.0]], [[1.0 + 1e-12]], "same bits"),
    ],
)
def test_wrong_gradients_end_the_case_before_anything_is_measured(mine, theirs, group):
    pair = [contender("a", *mine, group=group), contender("b", *theirs, group=group)]
    with pytest.raises(WrongGradient, match="b and a"):
        measure(Case("case", pair, (), rounds=1))


def test_rounding_is_no_wrong_gradient():
    pair = [contender("a", [1.0]), contender("b", [1.0 + 1e-12])]
    assert set(measure(Case("case", pair, (), rounds=1)).samples) == {"a", "b"}


def test_repeats_build_a_graph_for_each_backward():
    built, ran = [], []

    class Root:
        def backward(self):
            ran.append(self)

    def build():
        built.append(Root())
        return built[-1]

    assert backward(build, repeats=3)() >= 0.0
    assert ran == built
    assert len(built) == 4, "three that count and the first, which does not"


@pytest.mark.parametrize(
    ("rounds", "generations", "renewals"),
    [(9, 3, {3, 6}), (15, 3, {5, 10}), (2, 3, {1}), (1, 3, set()), (9, 1, set())],
)
def test_processes_are_renewed_after_equal_shares_of_the_rounds(rounds, generations, renewals):
    renewed = Contender("a", lambda: 1.0, renew=lambda: None)
    case = Case("case", [renewed], (), rounds)
    assert Effort(generations=generations).renewals_of(case) == renewals


def test_a_renewed_contender_is_warmed_up_and_checked_again():
    log = []
    rows = [
        contender("a", [1.0], log=log),
        replace(contender("b", [1.0], log=log), renew=lambda: log.append("renewed")),
        Contender("absent", None, renew=lambda: log.append("never")),
    ]
    case, effort = Case("case", rows, (), 4), Effort(warm_up_rounds=1, generations=2)
    ticks = []
    measured = measure(case, effort, lambda: ticks.append(1))
    assert log == [*"ab", *"ab", *"ba", "renewed", *"ab", *"ab", *"ba"]
    assert {name: len(found) for name, found in measured.samples.items()} == {"a": 4, "b": 4}
    assert effort.samples(case) == len(ticks) == 12


def test_a_renewed_process_that_computes_something_else_ends_the_case():
    value = [1.0]
    other = Contender("b", lambda: 0.1, lambda: [np.array(value)], renew=lambda: value.append(2.0))
    with pytest.raises(WrongGradient):
        measure(Case("case", [contender("a", [1.0]), other], (), 4), Effort(generations=2))


def test_nothing_is_renewed_where_all_happens_in_this_process():
    case = Case("case", [contender("a", [1.0])], (), 9)
    assert Effort().renewals_of(case) == frozenset()


@pytest.mark.slow
def test_what_somebody_has_frozen_stays_so():
    case = Case("case", [contender("a", [1.0])], (), 1)
    assert gc.get_freeze_count() > 0  # see conftest
    measure(case)
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    measure(case)
    assert gc.get_freeze_count() == 0


def test_ratios_are_formed_within_a_round():
    measured = result(a=[1.0, 10.0, 4.0], b=[2.0, 30.0, 4.0])
    # The ratio of the medians would be 1.
    assert speed_up(measured, "a", "b") == (2.0, 1.0, 3.0)
    assert time_ratio(measured, "a", "b") == (0.5, pytest.approx(1 / 3), 1.0)
    assert speed_up(measured, "a", "missing") is None


@pytest.mark.parametrize(
    ("target", "is_reached", "missed_by"),
    [
        (Target("a", "b", at_least=2.0), True, 0.0),
        (Target("a", "b", at_least=4.0), False, 0.5),
        (Target("a", "b", at_most=0.5), True, 0.0),
        (Target("a", "b", at_most=0.4), False, 0.25),
        (Target("a", at_most=3.0), True, 0.0),
        (Target("a", at_most=1.0), False, 2.0),
        (Target("missing", at_most=1.0), False, 0.0),
    ],
)
def test_verdicts_go_by_the_median(target, is_reached, missed_by):
    found = verdict(result(a=[1.0, 3.0, 4.0], b=[2.0, 6.0, 4.0]), target)
    assert (found.is_reached, found.missed_by) == (is_reached, pytest.approx(missed_by))
    assert (found.measured is None) == (target.contender == "missing")


def test_a_peer_that_is_not_installed_says_so():
    case = Case(
        "case",
        [contender("a", [1.0]), Contender("peer", None, remark=lambda: "not installed")],
        ("peer",),
        rounds=1,
    )
    measured = measure(case)
    assert Row(measured, "peer").cells[:2] == ["peer", "not installed"]
    assert Row(measured, "a").ratios == ["-"]
