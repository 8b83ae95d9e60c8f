"""``scripts/stress cluster``: it passes where all is well, and fails where something is wrong."""

from __future__ import annotations

import random
from typing import cast

import pytest

from mpgrad.errors import WorkerLost
from stress import cluster
from stress.__main__ import main
from tests.ray.clusters import Nodes
from tests.ray.marks import needs_ray


class TestOnNodes:
    pytestmark = needs_ray

    def test_it_passes(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "NODES", 2)
        monkeypatch.setattr(cluster, "KINDS", {"worker": 1, "coordinator": 1, "actor": 1})
        assert main(["cluster", "--kills", "2", "--seed", "7"]) == 0
        verdict = capsys.readouterr().out.splitlines()[-1]
        assert verdict.startswith("cluster: PASSED: 2 killed on 2 nodes: ")
        assert " steps, 0 with other bits than local, " in verdict
        assert verdict.endswith(" s, nothing left")


def judged(gives: str | Exception, deaths: int) -> tuple[bool, cluster.Tally]:
    """A step that gives this, or raises it after so many deaths."""
    killer, tally = cluster.Killer(cast("Nodes", None), random.Random(1), 9), cluster.Tally()

    def steps(number: int, is_due: cluster.IsDue) -> str:
        if isinstance(gives, str):
            return gives
        killer.killed["actor"] += deaths
        if not is_due(gives):
            raise gives
        return "right"

    return cluster._step(steps, 3, "right", killer, tally), tally


def test_other_bits_are_noticed() -> None:
    is_right, tally = judged("other", 0)
    assert (is_right, tally.steps, tally.wrong) == (False, 1, 1)


def test_a_loss_is_due_after_three_deaths_only() -> None:
    is_right, tally = judged(WorkerLost("one"), 2)
    assert (is_right, tally.errors) == (False, ["step 3: WorkerLost: one"])
    is_right, tally = judged(WorkerLost("one"), 3)
    assert (is_right, tally.errors, tally.repeated) == (True, [], 1)


def test_other_errors_are_never_due() -> None:
    is_right, tally = judged(ValueError("one"), 9)
    assert (is_right, tally.errors) == (False, ["step 3: ValueError: one"])
